// Loading the CUDA module, so that the program itself needs no CUDA.
#include <dlfcn.h>

#include <cstdlib>

#include "executor/cuda_module.h"
#include "executor/module_file.h"

namespace foretrain {

Result<CudaModule> open_cuda() {
  const std::string path = find_module(kCudaModuleFile);
  if (path.empty()) {
    return input_error(
        "this build has no CUDA backend (libforetrain_cuda.so): install the CUDA toolkit with "
        "cuBLAS and NCCL and build again");
  }
  void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) {
    return input_error(std::string("the CUDA backend cannot be loaded: ") + dlerror());
  }
  auto* const open = reinterpret_cast<OpenCuda*>(dlsym(module, kOpenCudaSymbol));
  if (open == nullptr) return input_error(path + " is not the CUDA module of this version");
  CudaModule out;
  std::string problem;
  open(out, problem);
  if (!problem.empty()) return input_error(problem);
  return out;
}

Result<int> device_of(RankId rank, int devices) {
  int local = rank.value;
  if (launched_ranks() > 0) {
    for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                             "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}) {
      if (const char* value = std::getenv(name)) {
        local = std::atoi(value);
        break;
      }
    }
  }
  if (local < devices) return local;
  return input_error("rank " + std::to_string(rank.value) + " is number " +
                     std::to_string(local + 1) + " on this machine, which has " +
                     std::to_string(devices) + (devices == 1 ? " CUDA device" : " CUDA devices") +
                     "; NCCL refuses two ranks on one: use fewer ranks or more machines");
}

}  // namespace foretrain
