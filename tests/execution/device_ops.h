// Every operation of a Workload alone, on random operands, on two devices.
#pragma once

#include "executor/cuda/device.h"
#include "executor/micro.h"

namespace foretrain {

/// Runs the distinct operations of `workload` that compute, and some that no plan of one rank has,
/// on both devices and compares what they write. `tolerance`: of the largest number written.
/// Without `unfused` attention whose scores are stored is left out: random probabilities are not
/// zero where nothing is seen, and what is then read there is each backend's own affair.
void expect_ops_alike(const Workload& workload, Device& one, Device& other, double tolerance,
                      bool unfused);

/// A device that runs the host backend's kernels: fp32 only, no communication.
std::unique_ptr<Device> make_host_kernels_device();

}  // namespace foretrain
