#include "executor/cuda/end_kernels.h"
#include "executor/cuda/launch.cuh"

namespace foretrain::device {

template void run_ends(CudaLauncher&, const Kernel&, const OpContext&, const DeviceOperands&);

}  // namespace foretrain::device
