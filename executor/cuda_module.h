// The seam between the program and its CUDA module, a shared library that is loaded when a run is
// for devices. Both are built together; nothing here is stable across versions.
#pragma once

#include <string>

#include "executor/execute.h"
#include "executor/machine_state.h"

namespace foretrain {

inline constexpr const char* kCudaModuleFile = "libforetrain_cuda.so";
inline constexpr const char* kOpenCudaSymbol = "foretrain_open_cuda";

struct CudaModule {
  int devices = 0;       ///< of this process
  std::string versions;  ///< device, driver, runtime, libraries
  std::vector<std::string> device_names;
  std::vector<GpuName> gpus;  ///< by device
  int sms = 0;                ///< of the first device
  int capability = 0;      ///< likewise, 10 times the major number and the minor one: 89, 90, 100
  Bytes cache_bytes = 0;   ///< L2 of the first device
  bool cudnn = false;      ///< whether it was built with cuDNN and has found the library
  std::string no_records;  ///< why it has no CUPTI records; empty where it has
  /// Rank r on device `device_of(r)`. Ranks share what they need of their device with those that
  /// come after them (handles, plans, memory, communicators of the same transport); that ends with
  /// the last copy of this and the last rank, which must be before `main` returns. Ranks of one
  /// device must not set up or step at the same time.
  MakeRank make_rank;
};

/// Whether its tensor cores multiply fp8.
inline bool multiplies_fp8(const CudaModule& cuda) { return cuda.capability >= 89; }

/// Fills in `module`, or says in `problem` why no device can be used. Needs no device itself: where
/// there is no driver it says so.
using OpenCuda = void(CudaModule& module, std::string& problem);

/// Loads the module that lies beside the program, or in ../lib/foretrain, and opens it: what is
/// missing (module, library, driver, device) is the error.
Result<CudaModule> open_cuda();

/// Whether `--device cuda` can work as far as files tell: the module and the driver's devices.
/// Loads nothing.
Status check_cuda_files();

/// The device of this process that a rank takes: where ranks are processes the launcher's local
/// number, or the only one that the process sees; else the rank's own. An error where there are
/// fewer devices than ranks: NCCL refuses two ranks on one.
Result<int> device_of(RankId rank, int devices);

}  // namespace foretrain
