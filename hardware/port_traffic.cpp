#include "hardware/port_traffic.h"

#include <algorithm>

#include "hardware/link_traffic.h"
#include "hardware/local_cost.h"

namespace foretrain {
Cost held_cost(const DeviceSpec& device, const PortTraffic& traffic, double alpha_s, double seconds,
               double passes) {
  Cost cost;
  cost.duration = max(Time{1}, bounded(seconds));
  cost.latency = min(cost.duration, bounded(alpha_s));
  const double whole = std::max(seconds, 1e-12);
  const std::int32_t inside = share_of(traffic.scale_up_bytes, traffic.scale_up_gb_per_s, whole, 1);
  const std::int32_t outside =
      share_of(traffic.nic_bytes, traffic.nic_gb_per_s, whole, traffic.nic_sharers);
  cost.port_share = {inside, inside, outside, outside, 0, 0};
  const double moved = passes * std::max(traffic.scale_up_bytes, traffic.nic_bytes) / whole;
  cost.memory_share =
      static_cast<std::int32_t>(std::min(0.5, moved / (device.memory_gb_per_s * 1e9)) * kWhole);
  return cost;
}

}  // namespace foretrain
