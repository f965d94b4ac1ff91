// Kernels that a device's Program leaves to the host: updates of states that lie there, and what
// these need.
#pragma once

#include "executor/cuda/device_view.h"

namespace foretrain {

void run_on_host(const Kernel& kernel, const OpContext& context, const DeviceOperands& x);

}  // namespace foretrain
