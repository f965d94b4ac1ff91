// A fake of the CUDA runtime on memory of the host, for tests of what hands work to it: streams do
// their work at once, in the order of the calls; graphs keep it. Misuse that CUDA refuses or waits
// for without end is an error or a fault here.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace foretrain::fake {

/// What tests set and look at.
struct State {
  std::mutex mutex;
  int devices = 2;
  std::size_t memory = std::size_t{1} << 30;  ///< of a device
  std::map<int, std::size_t> used;            ///< bytes, by device
  std::map<void*, std::pair<int, std::size_t>> blocks;
  std::map<std::string, int> calls;        ///< how often, by name
  std::map<std::string, int> alive;        ///< streams, events, graphs, communicators, handles
  std::map<const void*, int> graphs_with;  ///< graphs that have captured a communicator's calls
  std::vector<std::string> faults;
  std::int64_t now = 0;        ///< the last point of time
  bool refuses_bias = false;   ///< of cublasLt
  bool refuses_split = false;  ///< of NCCL
  int holding = 0;             ///< kernels that hold SMs
};
State& state();

void count(const char* call);
void lives(const char* what, int more);
void fault(const std::string& what);

/// On the stream: at once, or when its graph is launched. `communicator`: of an NCCL call.
void enqueue(cudaStream_t stream, std::function<void()> work, const void* communicator = nullptr);

}  // namespace foretrain::fake
