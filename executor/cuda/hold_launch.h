// Starting the kernel that holds SMs.
#pragma once

#include <cuda_runtime.h>

#include "executor/cuda/hold_kernel.h"

namespace foretrain::device {

/// `blocks` blocks that each take `shared_bytes` of shared memory, on a stream of their own. They
/// end when `flags->stop` is set, at the latest after `most_ns`.
cudaError_t launch_hold(cudaStream_t stream, const HoldCopy& copy, HoldFlags* flags, int blocks,
                        int shared_bytes, std::uint64_t most_ns);

}  // namespace foretrain::device
