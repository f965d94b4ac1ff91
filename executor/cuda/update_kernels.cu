#include "executor/cuda/launch.cuh"
#include "executor/cuda/update_kernels.h"

namespace foretrain::device {

template void run_update(CudaLauncher&, const Kernel&, const OpContext&, const DeviceOperands&);

}  // namespace foretrain::device
