#include "executor/cuda/host_update.h"

#include "executor/cuda/compute.h"
#include "executor/cuda/host_loops.h"

namespace foretrain {

void run_on_host(const Kernel& kernel, const OpContext& context, const DeviceOperands& x) {
  device::HostLoops loops;
  device::run_kernel(loops, kernel, context, x);
}

}  // namespace foretrain
