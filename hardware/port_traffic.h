// What communication without NCCL moves through a rank's ports, as the engine's Cost.
#pragma once

#include "hardware/placement.h"
#include "sim/cost/cost_model.h"

namespace foretrain {

/// Bytes one rank sends, and the line rates (GB/s) of the ports it sends them through.
struct PortTraffic {
  double scale_up_bytes = 0, scale_up_gb_per_s = 0;
  double nic_bytes = 0, nic_gb_per_s = 0;
  std::int32_t nic_sharers = 1;  ///< members of the group on the busiest NIC port
};

/// Port shares are bytes over duration and line rate, so averages over the operation; the memory
/// share is `passes` times the bytes over the memory bandwidth, at most half of it.
Cost held_cost(const DeviceSpec& device, const PortTraffic& traffic, double alpha_s, double seconds,
               double passes);

}  // namespace foretrain
