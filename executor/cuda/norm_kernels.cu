#include "executor/cuda/launch.cuh"
#include "executor/cuda/norm_kernels.h"

namespace foretrain::device {

template void run_norm(CudaLauncher&, const Kernel&, const OpContext&, const DeviceOperands&);

}  // namespace foretrain::device
