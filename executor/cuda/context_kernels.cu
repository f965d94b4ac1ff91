#include "executor/cuda/context_kernels.h"
#include "executor/cuda/launch.cuh"

namespace foretrain::device {

template void run_context(CudaLauncher&, const Kernel&, const OpContext&, const DeviceOperands&);

}  // namespace foretrain::device
