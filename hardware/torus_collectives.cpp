#include "hardware/torus_collectives.h"

#include <algorithm>
#include <cmath>

#include "hardware/port_traffic.h"
#include "hardware/presets.h"

namespace foretrain {
namespace {

double phases_of(CollectiveKind kind) {
  const bool once = kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter ||
                    kind == CollectiveKind::kAllToAll;
  return once ? 1 : 2;
}

double axis_rate(const TorusAxis& axis, double link) {
  return link * (axis.ring ? 2 : 1) / axis.stride;
}

/// Seconds a byte of the array takes inside a slice of g members (the header's equation over
/// `phases * bytes`).
double seconds_per_byte(const Placement& at, CollectiveKind kind, double link) {
  const double g = at.per_node_max;
  double rates = 0, bound = 0;
  for (const TorusAxis& axis : at.axes) {
    if (axis.count < 2) continue;
    const double rate = axis_rate(axis, link) * 1e9;
    rates += rate;
    const double own = kind == CollectiveKind::kAllToAll ? axis.count / 4.0 : (axis.count - 1) / g;
    bound = std::max(bound, own / rate);
  }
  return rates <= 0 ? 0 : std::max((g - 1) / g / rates, bound);
}

double hops_of(const Placement& at) {
  double hops = 0;
  for (const TorusAxis& axis : at.axes) {
    hops += axis.stride * (axis.ring ? axis.count / 2 : axis.count - 1);
  }
  return hops;
}

}  // namespace

const TorusLaw& torus_law() {
  static const TorusLaw law = [] {
    const Json root = load_constants("torus.json");
    TorusLaw out;
    out.efficiency = number_at(root, "efficiency");
    out.network_efficiency = number_at(root, "network_efficiency");
    out.start_us = number_at(root, "start_us");
    out.network_start_us = number_at(root, "network_start_us");
    out.message_us = number_at(root, "message_us");
    out.message_deviation = number_at(root, "message_deviation");
    out.memory_passes = number_at(root, "memory_passes");
    out.deviation = number_at(root, "deviation");
    return out;
  }();
  return law;
}

double torus_link_gb_per_s(const Cluster& cluster, const LinkRates& rates) {
  const DeviceSpec& device = cluster.device;
  return device.scale_up_gb_per_s / std::max(1, device.scale_up_links) * rates.scale_up;
}

Cost torus_collective_cost(const Cluster& cluster, const LinkRates& rates,
                           const Placement& placement, CollectiveKind kind, double bytes,
                           std::ostream* steps) {
  const TorusLaw& law = torus_law();
  const double phases = phases_of(kind), n = placement.ranks, g = placement.per_node_max;
  const double link = torus_link_gb_per_s(cluster, rates);
  const double own = kind == CollectiveKind::kAllToAll ? bytes * g / n : bytes;
  const double inside_s = phases * own * seconds_per_byte(placement, kind, link) / law.efficiency;
  double alpha_us = law.start_us + phases * hops_of(placement) * cluster.topology.hop_latency_us;
  const Traffic network = direct_traffic_of(placement, kind, bytes);
  double outside_s = 0;
  if (placement.nodes > 1) {
    const double port = cluster.nic_port_gb_per_s() * rates.network;
    outside_s = network.nic_network / (law.network_efficiency * port * 1e9);
    alpha_us += law.network_start_us +
                phases * std::ceil(std::log2(placement.nodes)) * cluster.network_latency_us;
  }
  const double seconds = alpha_us * 1e-6 + inside_s + outside_s;

  PortTraffic traffic;
  traffic.scale_up_bytes = g > 1 ? phases * own * (g - 1) / g : 0;
  traffic.scale_up_gb_per_s = cluster.device.scale_up_gb_per_s * rates.scale_up;
  traffic.nic_bytes = network.rank_network;
  traffic.nic_gb_per_s = cluster.nic_port_gb_per_s() * rates.network;
  traffic.nic_sharers = placement.ranks_per_nic;
  Cost cost = held_cost(cluster.device, traffic, alpha_us * 1e-6, seconds, law.memory_passes);
  add_host_link(cluster, network.rank_network, network.rank_network, cost);
  cost.deviation = static_cast<float>(law.deviation);
  if (steps != nullptr) {
    *steps << "group: " << placement.ranks << " ranks on " << placement.nodes << " slices, axes";
    for (const TorusAxis& axis : placement.axes) {
      if (axis.count < 2) continue;
      *steps << " " << axis.count << (axis.ring ? " ring" : " chain") << " stride " << axis.stride;
    }
    *steps << "\nalpha " << alpha_us << " us, torus " << inside_s * 1e6 << " us at " << link
           << " GB/s a link, between slices " << outside_s * 1e6 << " us: " << seconds * 1e6
           << " us\n";
  }
  return cost;
}

}  // namespace foretrain
