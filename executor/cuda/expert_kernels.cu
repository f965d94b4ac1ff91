#include "executor/cuda/expert_kernels.h"
#include "executor/cuda/launch.cuh"

namespace foretrain::device {

template void run_experts(CudaLauncher&, const Kernel&, const OpContext&, const DeviceOperands&);

}  // namespace foretrain::device
