#include "hardware/mesh_collectives.h"

#include <algorithm>
#include <cmath>

#include "hardware/port_traffic.h"
#include "hardware/presets.h"

namespace foretrain {
namespace {

MeshLaw law_at(const Json& root, std::string_view library) {
  const Json& json = member(root, library);
  MeshLaw law;
  law.scale_up_efficiency = number_at(json, "scale_up_efficiency");
  law.network_efficiency = number_at(json, "network_efficiency");
  law.alpha_us = number_at(json, "alpha_us");
  law.step_us = number_at(json, "step_us");
  law.message_us = number_at(json, "message_us");
  law.memory_passes = number_at(json, "memory_passes");
  law.sms_held = static_cast<std::int32_t>(number_at(json, "sms_held"));
  law.pipelined = member(json, "pipelined") == Json(true);
  law.deviation = number_at(json, "deviation");
  return law;
}

struct MeshLaws {
  MeshLaw rccl, hccl, mpi;
};

const MeshLaws& laws() {
  static const MeshLaws all = [] {
    const Json root = load_constants("mesh.json");
    return MeshLaws{law_at(root, "rccl"), law_at(root, "hccl"), law_at(root, "mpi")};
  }();
  return all;
}

double phases_of(CollectiveKind kind) {
  const bool once = kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter ||
                    kind == CollectiveKind::kAllToAll;
  return once ? 1 : 2;
}

/// Bytes that one rank sends within its node.
double inside_bytes(const Placement& at, CollectiveKind kind, double bytes) {
  const double n = at.ranks, g = at.per_node_max;
  if (kind == CollectiveKind::kAllToAll) return bytes * (g - 1) / n;
  return phases_of(kind) * bytes * (g - 1) / g;
}

/// Bytes that one node sends to others.
double outside_bytes(const Placement& at, CollectiveKind kind, double bytes) {
  const double n = at.ranks, nodes = at.nodes, g = at.per_node_max;
  if (at.nodes == 1) return 0;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return bytes * 2 * (nodes - 1) / nodes;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      return bytes * (n - g) / n;
    case CollectiveKind::kAllToAll:
      return bytes * g * (n - g) / n;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
      return bytes;
  }
  return bytes;
}

double port_gb_per_s(const Cluster& cluster, const LinkRates& rates) {
  const DeviceSpec& device = cluster.device;
  const double line =
      cluster.scale_up == ScaleUp::kPcie ? device.pcie_gb_per_s : device.scale_up_gb_per_s;
  return line * rates.scale_up;
}

}  // namespace

const MeshLaw& mesh_law(Architecture architecture) {
  if (architecture == Architecture::kAscend) return laws().hccl;
  return architecture == Architecture::kCpu ? laws().mpi : laws().rccl;
}

double mesh_pair_gb_per_s(const Cluster& cluster, const LinkRates& rates,
                          const Placement& placement) {
  if (placement.one_package) return cluster.package_gb_per_s * rates.scale_up;
  const double port = port_gb_per_s(cluster, rates);
  if (cluster.scale_up != ScaleUp::kFullMesh) return port;
  return port / std::max(1, cluster.device.scale_up_links);
}

Cost mesh_collective_cost(const Cluster& cluster, const LinkRates& rates,
                          const Placement& placement, CollectiveKind kind, double bytes,
                          std::ostream* steps) {
  const MeshLaw& law = mesh_law(cluster.device.architecture);
  const double peers = placement.per_node_max - 1;
  const double pair = mesh_pair_gb_per_s(cluster, rates, placement);
  const bool links = cluster.scale_up == ScaleUp::kFullMesh || placement.one_package;
  const double inside_rate = links ? peers * pair : pair;
  const double nics =
      cluster.nic_port_gb_per_s() * std::max(1, placement.nics_per_node) * rates.network;
  const double inside = inside_bytes(placement, kind, bytes);
  const double outside = outside_bytes(placement, kind, bytes);

  const double inside_s = inside <= 0 ? 0 : inside / (law.scale_up_efficiency * inside_rate * 1e9);
  double outside_s = 0, alpha_us = law.alpha_us, slowdown = 1;
  if (placement.nodes > 1) {
    slowdown = network_slowdown(cluster.topology, placement, kind == CollectiveKind::kAllToAll);
    outside_s = outside * slowdown / (law.network_efficiency * nics * 1e9);
    const double hop =
        law.step_us + cluster.network_latency_us + network_detour_us(cluster.topology, placement);
    alpha_us += phases_of(kind) * std::ceil(std::log2(placement.nodes)) * hop;
  }
  const bool at_once = law.pipelined || kind == CollectiveKind::kAllToAll;
  const double x = at_once ? std::max(inside_s, outside_s) : inside_s + outside_s;
  const double seconds = alpha_us * 1e-6 + x;

  PortTraffic traffic;
  traffic.scale_up_bytes = inside;
  traffic.scale_up_gb_per_s = std::max(port_gb_per_s(cluster, rates), inside_rate);
  traffic.nic_bytes = outside / placement.per_node_max;
  traffic.nic_gb_per_s = cluster.nic_port_gb_per_s() * rates.network / slowdown;
  traffic.nic_sharers = placement.ranks_per_nic;
  Cost cost = held_cost(cluster.device, traffic, alpha_us * 1e-6, seconds, law.memory_passes);
  cost.sms_held = law.sms_held;
  cost.deviation = static_cast<float>(law.deviation);
  if (steps != nullptr) {
    *steps << "group: " << placement.ranks << " ranks on " << placement.nodes << " nodes, direct\n"
           << "alpha " << alpha_us << " us, inside " << inside_s * 1e6 << " us at " << inside_rate
           << " GB/s line, across " << outside_s * 1e6 << " us: " << seconds * 1e6 << " us\n"
           << "SMs held " << cost.sms_held << "\n";
  }
  return cost;
}

}  // namespace foretrain
