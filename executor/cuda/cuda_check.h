// CUDA errors as Status, with the name of the code.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "sim/base/result.h"

namespace foretrain {

inline Status cuda_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return ok_status();
  return input_error(std::string("CUDA: ") + what + ": " + cudaGetErrorName(error) + " (" +
                     cudaGetErrorString(error) + ")");
}

}  // namespace foretrain
