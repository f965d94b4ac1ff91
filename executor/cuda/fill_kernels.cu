#include "executor/cuda/fill_kernels.h"
#include "executor/cuda/launch.cuh"

namespace foretrain::device {

void fill_on_cuda(cudaStream_t stream, LaunchSupport& support, std::byte* to, DType type,
                  std::int64_t count, const Content& content) {
  CudaLauncher launcher(support, stream, 0);
  fill_random(launcher, to, type, count, content);
}

}  // namespace foretrain::device
