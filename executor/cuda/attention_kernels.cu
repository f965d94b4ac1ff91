#include "executor/cuda/attention_kernels.h"
#include "executor/cuda/launch.cuh"

namespace foretrain::device {

template void run_attention(CudaLauncher&, const Attention&, const OpContext&,
                            const DeviceOperands&);

}  // namespace foretrain::device
