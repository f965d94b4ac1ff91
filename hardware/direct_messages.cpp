#include "hardware/direct_messages.h"

#include <algorithm>
#include <map>

#include "hardware/mesh_collectives.h"
#include "hardware/port_traffic.h"
#include "hardware/torus_collectives.h"

namespace foretrain {
namespace {

struct Route {
  double gb_per_s = 0, start_us = 0;
};

/// A torus pair's route: `stride` links on each axis, hop by hop.
Route torus_route(const Cluster& cluster, const LinkRates& rates, const Placement& at) {
  double hops = 0, longest = 1;
  for (const TorusAxis& axis : at.axes) {
    if (axis.count < 2) continue;
    hops += axis.stride;
    longest = std::max(longest, static_cast<double>(axis.stride));
  }
  const TorusLaw& law = torus_law();
  return {law.efficiency * torus_link_gb_per_s(cluster, rates) / longest,
          law.message_us + hops * cluster.topology.hop_latency_us};
}

Route route_of(const Cluster& cluster, const LinkRates& rates, const Placement& at) {
  const bool torus = cluster.scale_up == ScaleUp::kTorus;
  const MeshLaw& mesh = mesh_law(cluster.device.architecture);
  if (at.nodes > 1) {
    const double efficiency = torus ? torus_law().network_efficiency : mesh.network_efficiency;
    const double start = torus ? torus_law().network_start_us : mesh.message_us + mesh.step_us;
    return {efficiency * cluster.nic_port_gb_per_s() * rates.network /
                network_slowdown(cluster.topology, at),
            start + cluster.network_latency_us + network_detour_us(cluster.topology, at)};
  }
  if (torus) return torus_route(cluster, rates, at);
  return {mesh.scale_up_efficiency * mesh_pair_gb_per_s(cluster, rates, at), mesh.message_us};
}

}  // namespace

Cost direct_messages_cost(const Cluster& cluster, const LinkRates& rates,
                          std::span<const Placement> placements, const P2PBatch& work,
                          std::ostream* steps) {
  std::map<std::pair<std::int32_t, bool>, double> channel_seconds;
  std::array<double, kPortCount> bytes{};
  double start_us = 0, busiest = 0;
  for (std::size_t i = 0; i < work.messages.size(); ++i) {
    const Message& message = work.messages[i];
    const Route route = route_of(cluster, rates, placements[i]);
    const auto size = static_cast<double>(message.bytes);
    double& seconds = channel_seconds[{message.channel.value, message.send}];
    seconds += size / (route.gb_per_s * 1e9);
    busiest = std::max(busiest, seconds);
    const bool across = placements[i].nodes > 1;
    const Port port = across ? (message.send ? Port::kNicOut : Port::kNicIn)
                             : (message.send ? Port::kScaleUpOut : Port::kScaleUpIn);
    bytes.at(static_cast<std::size_t>(port)) += size;
    start_us = std::max(start_us, route.start_us);
  }
  if (work.messages.empty()) return Cost{};
  const double inside_rate =
      std::max(cluster.device.scale_up_gb_per_s, cluster.package.gb_per_s) * rates.scale_up;
  const double nic_rate = cluster.nic_port_gb_per_s() * rates.network;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const double rate = i >= static_cast<std::size_t>(Port::kNicOut) ? nic_rate : inside_rate;
    if (bytes.at(i) > 0) busiest = std::max(busiest, bytes.at(i) / (rate * 1e9));
  }
  const double seconds = start_us * 1e-6 + busiest;
  const double moved = bytes[0] + bytes[1] + bytes[2] + bytes[3];
  PortTraffic traffic{moved, 0, 0, 0, 1};  // for the memory share
  Cost cost = held_cost(cluster.device, traffic, start_us * 1e-6, seconds, 1);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const double rate = i >= static_cast<std::size_t>(Port::kNicOut) ? nic_rate : inside_rate;
    const double share = bytes.at(i) <= 0 ? 0 : bytes.at(i) / (rate * 1e9) / seconds;
    cost.port_share.at(i) = static_cast<std::int32_t>(std::min(1.0, share) * kWhole);
  }
  add_host_link(cluster, bytes.at(static_cast<std::size_t>(Port::kNicOut)),
                bytes.at(static_cast<std::size_t>(Port::kNicIn)), cost);
  const bool torus = cluster.scale_up == ScaleUp::kTorus;
  cost.deviation =
      static_cast<float>(torus ? torus_law().message_deviation
                               : mesh_law(cluster.device.architecture).message_deviation);
  if (steps != nullptr) {
    *steps << work.messages.size() << " messages: start " << start_us << " us, busiest link "
           << busiest * 1e6 << " us\n";
  }
  return cost;
}

}  // namespace foretrain
