// What ranks of this process share on one device, and leave to those that come after them: handles
// of libraries with the plans that they have made, streams, events, memory, communicators.
//
// Of one thread at a time: ranks that share a device take turns, a whole set-up or step each.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "executor/cuda/blas.h"
#include "executor/cuda/block_pool.h"
#include "executor/cuda/nccl_groups.h"
#include "sim/base/result.h"

namespace foretrain {

class Cudnn;
class SmHolder;

class DeviceSession {
 public:
  static Result<std::shared_ptr<DeviceSession>> create(int number);
  DeviceSession(const DeviceSession&) = delete;
  DeviceSession& operator=(const DeviceSession&) = delete;
  DeviceSession(DeviceSession&&) = delete;
  DeviceSession& operator=(DeviceSession&&) = delete;
  ~DeviceSession();

  /// The calling thread works on this device from now on.
  Status make_current() const;

  Blas& blas() { return *x_blas; }
  /// Made by the first call.
  Result<Cudnn*> cudnn();
  Result<SmHolder*> holder();
  bool has_holder() const { return x_holder != nullptr; }

  /// Bytes that can still be taken.
  Result<std::size_t> free_bytes();
  /// Content is what the last user left. Between steps. kUnsupported where the device has no room.
  Result<void*> take(std::size_t bytes);
  void give_back(void* block) { x_blocks.give_back(block); }
  /// Pinned memory of the host, likewise.
  Result<void*> take_host(std::size_t bytes);
  void give_back_host(void* block) { x_host_blocks.give_back(block); }
  /// The address holds until the end of the step: memory that grows moves.
  Result<void*> scratch(std::size_t stream, int which, std::size_t bytes);
  /// All streams are done: scratch memory that has moved is nobody's any more. While SMs are held
  /// it stays, as CUDA would wait for what holds them.
  void end_step();
  /// Stay until the end.
  Result<const float*> rope_table(std::int64_t length, std::int64_t head_dim);
  Result<const float*> one();

  /// Number so and so, made by the first that asks.
  Result<cudaStream_t> stream(std::size_t index);
  /// An event of its own; one that is timed can tell when.
  Result<cudaEvent_t> event(bool timed);
  void give_back(cudaEvent_t event, bool timed) { x_events[timed ? 1 : 0].push_back(event); }

  Result<std::unique_ptr<NcclGroups>> groups(const Workload& workload, RankId rank,
                                             Transport& transport);

 private:
  struct Scratch {
    void* data = nullptr;
    std::size_t bytes = 0;
  };
  DeviceSession(int number, std::size_t most_free);
  Result<void*> keep(const void* content, std::size_t bytes, const char* what);
  void free_scratch();

  int x_number;
  cudaError_t x_refused = cudaSuccess;  ///< what the last memory that was not given is for
  BlockPool x_blocks, x_host_blocks;
  std::map<std::pair<std::size_t, int>, Scratch> x_scratch;  ///< by stream and which
  std::vector<void*> x_moved;                                ///< scratch memory of this step
  std::map<std::pair<std::int64_t, std::int64_t>, const float*> x_tables;
  const float* x_one = nullptr;
  std::vector<cudaStream_t> x_streams;
  std::vector<cudaEvent_t> x_events[2];  ///< unused: without times, with
  std::unique_ptr<Blas> x_blas;
  std::shared_ptr<Cudnn> x_cudnn;
  std::shared_ptr<SmHolder> x_holder;
  NcclWorlds x_worlds;
};

/// By number of the device; ranks may be threads.
class DeviceSessions {
 public:
  Result<std::shared_ptr<DeviceSession>> of(int number);

 private:
  std::mutex x_mutex;
  std::map<int, std::shared_ptr<DeviceSession>> x_sessions;
};

}  // namespace foretrain
