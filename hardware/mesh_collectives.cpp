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
  law.message_deviation = number_at(json, "message_deviation");
  law.memory_passes = number_at(json, "memory_passes");
  law.sms_held = count_at(json, "sms_held");
  law.pipelined = member(json, "pipelined") == Json(true);
  law.network_rings = member(json, "network_rings") == Json(true);
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

/// Bytes that one rank sends within its node of g members.
double inside_bytes(const Placement& at, double g, CollectiveKind kind, double bytes) {
  if (kind == CollectiveKind::kAllToAll) return bytes * (g - 1) / at.ranks;
  return phases_of(kind) * bytes * (g - 1) / g;
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
  if (placement.one_package) return cluster.package.gb_per_s * rates.scale_up;
  const double port = port_gb_per_s(cluster, rates);
  if (cluster.scale_up != ScaleUp::kFullMesh) return port;
  return port / std::max(1, cluster.device.scale_up_links);
}

namespace {

/// What the node whose links take longest sends.
struct Inside {
  double bytes = 0, gb_per_s = 0, seconds = 0;  ///< of one rank
};

Inside inside_of(const Cluster& cluster, const LinkRates& rates, const Placement& at,
                 CollectiveKind kind, double bytes) {
  const double pair = mesh_pair_gb_per_s(cluster, rates, at);
  const bool links = cluster.scale_up == ScaleUp::kFullMesh || at.one_package;
  Inside longest;
  const auto add = [&](double members) {
    if (members < 2) return;
    const double sent = inside_bytes(at, members, kind, bytes);
    const double rate = links ? (members - 1) * pair : pair;
    const double seconds = sent / (rate * 1e9);
    if (seconds > longest.seconds) longest = {sent, rate, seconds};
  };
  add(at.per_node_max);
  for (const NodeShape& shape : at.shapes) add(shape.members);
  return longest;
}

}  // namespace

Cost mesh_collective_cost(const Cluster& cluster, const LinkRates& rates,
                          const Placement& placement, CollectiveKind kind, double bytes,
                          std::ostream* steps) {
  const MeshLaw& law = mesh_law(cluster.device.architecture);
  const Inside inside = inside_of(cluster, rates, placement, kind, bytes);
  const Traffic network = law.network_rings
                              ? traffic_of(placement, kind, NcclAlgorithm::kRing, bytes)
                              : direct_traffic_of(placement, kind, bytes);
  const double port = cluster.nic_port_gb_per_s() * rates.network;

  const double inside_s = inside.seconds / law.scale_up_efficiency;
  double outside_s = 0, alpha_us = law.alpha_us, slowdown = 1;
  if (placement.nodes > 1) {
    slowdown = network_slowdown(cluster.topology, placement, kind == CollectiveKind::kAllToAll);
    outside_s = network.nic_network * slowdown / (law.network_efficiency * port * 1e9);
    const double hop =
        law.step_us + cluster.network_latency_us + network_detour_us(cluster.topology, placement);
    alpha_us += phases_of(kind) * std::ceil(std::log2(placement.nodes)) * hop;
  }
  const bool at_once = law.pipelined || kind == CollectiveKind::kAllToAll;
  const double x = at_once ? std::max(inside_s, outside_s) : inside_s + outside_s;
  const double seconds = alpha_us * 1e-6 + x;

  PortTraffic traffic;
  traffic.scale_up_bytes = inside.bytes;
  traffic.scale_up_gb_per_s = std::max(port_gb_per_s(cluster, rates), inside.gb_per_s);
  traffic.nic_bytes = network.rank_network;
  traffic.nic_gb_per_s = port / slowdown;
  traffic.nic_sharers = placement.ranks_per_nic;
  Cost cost = held_cost(cluster.device, traffic, alpha_us * 1e-6, seconds, law.memory_passes);
  add_host_link(cluster, network.rank_network, network.rank_network, cost);
  cost.sms_held = law.sms_held;
  cost.deviation = static_cast<float>(law.deviation);
  if (steps != nullptr) {
    *steps << "group: " << placement.ranks << " ranks on " << placement.nodes << " nodes, direct\n"
           << "alpha " << alpha_us << " us, inside " << inside_s * 1e6 << " us at "
           << inside.gb_per_s << " GB/s line, across " << outside_s * 1e6
           << " us: " << seconds * 1e6 << " us\n"
           << "SMs held " << cost.sms_held << "\n";
  }
  return cost;
}

}  // namespace foretrain
