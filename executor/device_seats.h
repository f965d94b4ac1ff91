// Which device each rank of a job has: no two the same.
#pragma once

#include <span>
#include <string>

#include "executor/cuda_module.h"
#include "executor/transport.h"

namespace foretrain {

/// A rank's device. Numbers of devices are the process's own; these are the machine's.
struct DeviceSeat {
  std::string host;
  GpuName gpu;
};

/// Whether all ranks have devices of their own, by their identifiers, else by host and place on the
/// bus; the error names two that have not. A device without identifiers counts as apart.
Status check_apart(std::span<const DeviceSeat> by_rank);

/// This rank's device, `device_of(self)`, told to all ranks; every rank calls it and every rank
/// learns whether all are apart.
Status take_seats(const CudaModule& cuda, RankId self, Transport& transport);

}  // namespace foretrain
