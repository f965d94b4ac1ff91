// Loading the CUDA module, so that the program itself needs no CUDA.
#include <dlfcn.h>

#include <filesystem>

#include "executor/cuda/open_library.h"
#include "executor/cuda_module.h"
#include "executor/job_variables.h"
#include "executor/module_file.h"

namespace foretrain {

Result<CudaModule> open_cuda() {
  const std::string path = find_module(kCudaModuleFile);
  if (path.empty()) return check_cuda_files().error();
  // Its cuBLASLt may be a Python package's.
  const Result<void*> opened = open_module(path, library_places());
  if (!opened.ok()) {
    return input_error("the CUDA backend cannot be loaded: " + opened.error().message);
  }
  void* const module = opened.value();
  auto* const open = reinterpret_cast<OpenCuda*>(dlsym(module, kOpenCudaSymbol));
  if (open == nullptr) return input_error(path + " is not the CUDA module of this version");
  CudaModule out;
  std::string problem;
  open(out, problem);
  if (!problem.empty()) return input_error(problem);
  return out;
}

Status check_cuda_files() {
  if (find_module(kCudaModuleFile).empty()) {
    return input_error(
        "this build has no CUDA backend (libforetrain_cuda.so): build all targets, not foretrain "
        "alone, where the CUDA toolkit with cuBLAS, and NCCL for several ranks, are installed");
  }
  // Linux, WSL, Tegra.
  for (const char* file : {"/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-ctrl-gpu", "/dev/nvgpu"}) {
    std::error_code ignored;
    if (std::filesystem::exists(file, ignored)) return ok_status();
  }
  return input_error(
      "there is no CUDA device: the NVIDIA driver has no /dev/nvidiactl here (a container needs "
      "--gpus all, or --nv)");
}

Result<int> device_of(RankId rank, int devices) {
  const JobVariables job = job_variables();
  // Each task with one visible device has its own, unless two have the same: `take_seats`.
  if (job.by != JobVariables::By::kNobody && devices == 1) return 0;
  const std::int64_t local = job.local.value_or(rank.value);
  if (local >= 0 && local < devices) return static_cast<int>(local);
  return input_error("rank " + std::to_string(rank.value) + " is number " +
                     std::to_string(local + 1) + " on this machine, which has " +
                     std::to_string(devices) + (devices == 1 ? " CUDA device" : " CUDA devices") +
                     "; NCCL refuses two ranks on one: use fewer ranks or more machines");
}

}  // namespace foretrain
