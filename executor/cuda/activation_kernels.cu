#include "executor/cuda/activation_kernels.h"
#include "executor/cuda/launch.cuh"

namespace foretrain::device {

template void run_activation(CudaLauncher&, const Kernel&, const DeviceOperands&);

}  // namespace foretrain::device
