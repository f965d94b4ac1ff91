#include "hardware/collective_cost.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "hardware/direct_messages.h"
#include "hardware/local_cost.h"
#include "hardware/mesh_collectives.h"
#include "hardware/nccl_constants.h"
#include "hardware/torus_collectives.h"

namespace foretrain {
namespace {

constexpr Bytes kMostBytes = Bytes{1} << 56;

/// Bytes that a rank (scale-up) and a node (network) must send, and the NCCL ring's factor.
struct Traffic {
  double rank_scale_up = 0;  ///< bytes out of one rank over its scale-up port
  double node_network = 0;   ///< bytes out of one node that the algorithm sends
  double node_least = 0;     ///< the least any algorithm can send
};

bool is_nvls(NcclAlgorithm a) { return a == NcclAlgorithm::kNvls || a == NcclAlgorithm::kNvlsTree; }

double bus_factor(CollectiveKind kind, double n) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 2 * (n - 1) / n;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
      return (n - 1) / n;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
      return 1;
  }
  return 1;
}

Traffic traffic_of(const Placement& at, CollectiveKind kind, NcclAlgorithm algorithm,
                   double bytes) {
  const double n = at.ranks, nodes = at.nodes;
  Traffic traffic;
  const double ring = bytes * bus_factor(kind, n);
  traffic.rank_scale_up = at.per_node_max > 1 ? ring : 0;
  if (kind == CollectiveKind::kAllReduce && is_nvls(algorithm)) traffic.rank_scale_up = bytes;
  if (at.nodes == 1) return traffic;
  const double outside = (n - at.per_node_max) / n;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      traffic.node_least = bytes * 2 * (nodes - 1) / nodes;
      break;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      traffic.node_least = bytes * outside;
      break;
    case CollectiveKind::kAllToAll:
      traffic.node_least = bytes * at.per_node_max * outside;
      break;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
      traffic.node_least = bytes;
      break;
  }
  const bool rings = algorithm == NcclAlgorithm::kRing;
  traffic.node_network = rings ? std::max(ring, traffic.node_least) : traffic.node_least;
  return traffic;
}

/// Line rate of one rank's scale-up port.
double scale_up_rate(const Cluster& cluster, const LinkRates& rates) {
  const DeviceSpec& device = cluster.device;
  const double line =
      cluster.scale_up == ScaleUp::kPcie ? device.pcie_gb_per_s : device.scale_up_gb_per_s;
  return line * rates.scale_up;
}

std::int32_t share_of(double bytes, double rate_gb_per_s, double seconds, std::int32_t sharers) {
  if (bytes <= 0 || seconds <= 0) return 0;
  const double share = bytes / (rate_gb_per_s * 1e9) / seconds * kWhole;
  return static_cast<std::int32_t>(
      std::min(std::ceil(share), std::floor(double{kWhole} / sharers)));
}

void fill_shares(const Cluster& cluster, const LinkRates& rates, const Placement& at,
                 const Traffic& traffic, Cost& cost) {
  const double seconds = cost.duration.seconds();
  const bool pcie = cluster.scale_up == ScaleUp::kPcie && cluster.accelerators_per_pcie_switch > 1;
  // Behind a PCIe switch the members of a ring use its uplink once between them, or not at all.
  const std::int32_t inside =
      pcie && !at.across_switches
          ? 0
          : share_of(traffic.rank_scale_up, scale_up_rate(cluster, rates), seconds,
                     pcie ? cluster.accelerators_per_pcie_switch : 1);
  cost.port_share.at(static_cast<std::size_t>(Port::kScaleUpOut)) = inside;
  cost.port_share.at(static_cast<std::size_t>(Port::kScaleUpIn)) = inside;
  if (at.nodes == 1) return;
  const double rate =
      cluster.nic_port_gb_per_s() * rates.network / network_slowdown(cluster.topology, at);
  const std::int32_t outside = share_of(traffic.node_network / at.per_node_max, rate, seconds,
                                        std::max(1, at.ranks_per_nic));
  cost.port_share.at(static_cast<std::size_t>(Port::kNicOut)) = outside;
  cost.port_share.at(static_cast<std::size_t>(Port::kNicIn)) = outside;
}

const TimeLaw& law_of(const Cluster& cluster, const Placement& at) {
  const NcclConstants& c = nccl_constants();
  const bool cloud = cluster.fabric == Fabric::kEfa || cluster.fabric == Fabric::kEthernet;
  const auto& laws = at.nodes == 1 ? c.one_node : cloud ? c.many_nodes_cloud : c.many_nodes;
  return laws.at(nccl_row(cluster.device.architecture));
}

/// The least latency over the protocols; for NVLS and NVLSTree, which offer one protocol only and
/// hand small messages to the others, over the algorithms as well.
double least_latency_us(const NcclGroup& group, CollectiveKind kind, NcclAlgorithm chosen) {
  double least = -1;
  for (int a = 0; a < kNcclAlgorithms; ++a) {
    const auto algorithm = static_cast<NcclAlgorithm>(a);
    if (algorithm != chosen && !is_nvls(chosen)) continue;
    for (int p = 0; p < kNcclProtocols; ++p) {
      const NcclTuning tuning = nccl_tuning(group, kind, algorithm, static_cast<NcclProtocol>(p));
      if (tuning.gb_per_s <= 0) continue;
      if (least < 0 || tuning.latency_us < least) least = tuning.latency_us;
    }
  }
  return std::max(0.0, least);
}

/// A: NCCL's largest over the protocols; within a mesh, measured by the number of members.
double largest_bandwidth(const Cluster& cluster, const NcclGroup& group, CollectiveKind kind,
                         NcclAlgorithm algorithm) {
  double bandwidth = 0;
  for (int p = 0; p < kNcclProtocols; ++p) {
    const auto protocol = static_cast<NcclProtocol>(p);
    bandwidth = std::max(bandwidth, nccl_tuning(group, kind, algorithm, protocol).gb_per_s);
  }
  if (cluster.scale_up != ScaleUp::kMesh || group.nodes > 1) return bandwidth;
  const NcclConstants& c = nccl_constants();
  for (std::size_t i = 0; i < c.mesh_ranks.size(); ++i) {
    if (c.mesh_ranks[i] == group.ranks) return c.mesh_busbw[i] / bus_factor(kind, group.ranks);
  }
  return bandwidth;
}

double memory_share(const Cluster& cluster, const Traffic& traffic, const Placement& at,
                    double seconds) {
  const double bytes = std::max(traffic.rank_scale_up, traffic.node_network / at.per_node_max);
  const double rate = nccl_constants().memory_traffic * bytes / seconds / 1e9;
  return std::min(0.5, rate / cluster.device.memory_gb_per_s);
}

Cost finish(const Cluster& cluster, const LinkRates& rates, const Placement& at,
            const Traffic& traffic, double alpha_s, double seconds) {
  Cost cost;
  cost.duration = max(Time{1}, bounded(seconds));
  cost.latency = min(cost.duration, bounded(alpha_s));
  cost.memory_share =
      static_cast<std::int32_t>(memory_share(cluster, traffic, at, seconds) * kWhole);
  fill_shares(cluster, rates, at, traffic, cost);
  return cost;
}

Cost all_to_all(const Cluster& cluster, const LinkRates& rates, const Placement& at, double bytes,
                std::ostream* steps) {
  const NcclConstants& c = nccl_constants();
  const double n = at.ranks;
  Traffic traffic = traffic_of(at, CollectiveKind::kAllToAll, NcclAlgorithm::kRing, bytes);
  traffic.rank_scale_up = bytes * (at.per_node_max - 1) / n;
  traffic.node_network = traffic.node_least;
  const double start = (c.all_to_all_us + c.all_to_all_peer_us * (n - 1)) * 1e-6;
  const double inside =
      traffic.rank_scale_up / (c.all_to_all_scale_up * scale_up_rate(cluster, rates) * 1e9);
  double outside = 0;
  if (at.nodes > 1) {
    const double nics = cluster.nic_port_gb_per_s() * at.nics_per_node * rates.network;
    outside = traffic.node_least * network_slowdown(cluster.topology, at, true) /
              (c.all_to_all_network * nics * 1e9);
  }
  const double seconds = start + std::max(inside, outside);
  if (steps != nullptr) {
    *steps << "start " << start * 1e6 << " us; NVLink " << inside * 1e6 << " us; NIC "
           << outside * 1e6 << " us\n";
  }
  Cost cost = finish(cluster, rates, at, traffic, start, seconds);
  cost.sms_held =
      nccl_group(cluster, at.ranks, at.nodes, at.per_node_max, at.nics_per_node).channels;
  cost.deviation = 0.25F;
  return cost;
}

}  // namespace

Result<Cost> collective_cost(const Cluster& cluster, const LinkRates& rates,
                             const Placement& placement, const Collective& work,
                             std::ostream* steps) {
  if (work.count < 0 || work.count > kMostBytes) {
    return input_error("a collective of " + std::to_string(work.count) + " elements");
  }
  if (placement.ranks < 2 || work.count == 0) {
    if (steps != nullptr) *steps << "nothing to exchange\n";
    return Cost{};
  }
  const Bytes bytes = bytes_of(work.dtype, work.count);
  const auto size = static_cast<double>(bytes);
  if (cluster.scale_up == ScaleUp::kTorus) {
    return torus_collective_cost(cluster, rates, placement, work.kind, size, steps);
  }
  if (!is_nvidia(cluster.device.architecture)) {
    return mesh_collective_cost(cluster, rates, placement, work.kind, size, steps);
  }
  if (work.kind == CollectiveKind::kAllToAll) {
    return all_to_all(cluster, rates, placement, size, steps);
  }
  const NcclGroup group = nccl_group(cluster, placement.ranks, placement.nodes,
                                     placement.per_node_max, placement.nics_per_node);
  const NcclChoice choice = choose_nccl(group, work.kind, bytes);
  const double latency_us = least_latency_us(group, work.kind, choice.algorithm);
  const double bandwidth = largest_bandwidth(cluster, group, work.kind, choice.algorithm);
  const TimeLaw& law = law_of(cluster, placement);
  const Traffic traffic = traffic_of(placement, work.kind, choice.algorithm, size);

  const double alpha = (law.latency_factor * latency_us +
                        (placement.nodes > 1 ? cluster.network_latency_us +
                                                   network_detour_us(cluster.topology, placement)
                                             : 0)) *
                       1e-6;
  const double at_best = size / (law.efficiency * bandwidth * 1e9);
  const double link = traffic.rank_scale_up / (scale_up_rate(cluster, rates) * 1e9);
  double x = std::max(link, placement.nodes == 1 ? at_best / rates.scale_up : 0);
  if (placement.nodes > 1) {
    const double nics = cluster.nic_port_gb_per_s() * placement.nics_per_node * 1e9;
    x = std::max(x, std::max(at_best, traffic.node_least / nics) / rates.network *
                        network_slowdown(cluster.topology, placement));
  }
  const double seconds =
      std::pow(std::pow(alpha, law.power) + std::pow(x, law.power), 1 / law.power);
  Cost cost = finish(cluster, rates, placement, traffic, alpha, seconds);
  cost.sms_held = nccl_channels(group, choice, bytes);
  cost.deviation = static_cast<float>(law.deviation);
  if (steps != nullptr) {
    *steps << "group: " << placement.ranks << " ranks on " << placement.nodes << " nodes, "
           << placement.nics_per_node << " NICs a node\n"
           << "NCCL: " << name_of(choice.algorithm) << "/" << name_of(choice.protocol)
           << ", its own estimate " << choice.time_us << " us, bandwidth " << bandwidth
           << " GB/s of the array\n"
           << "alpha " << alpha * 1e6 << " us, x " << x * 1e6 << " us, power " << law.power << ": "
           << seconds * 1e6 << " us, busbw "
           << size * bus_factor(work.kind, placement.ranks) / seconds / 1e9 << " GB/s\n"
           << "SMs held " << cost.sms_held << "\n";
  }
  return cost;
}

Result<Cost> messages_cost(const Cluster& cluster, const LinkRates& rates,
                           std::span<const Placement> placements, const P2PBatch& work,
                           std::ostream* steps) {
  if (placements.size() != work.messages.size()) {
    return input_error("a batch of messages needs the placement of each");
  }
  for (const Message& message : work.messages) {
    if (message.bytes < 0 || message.bytes > kMostBytes) {
      return input_error("a message of " + std::to_string(message.bytes) + " bytes");
    }
  }
  if (!is_nvidia(cluster.device.architecture)) {
    return direct_messages_cost(cluster, rates, placements, work, steps);
  }
  const NcclConstants& c = nccl_constants();
  const DeviceSpec& device = cluster.device;
  double inside_rate = scale_up_rate(cluster, rates);
  double inside_share = c.message_scale_up;
  if (cluster.scale_up == ScaleUp::kPcie) inside_share = c.message_pcie;
  if (cluster.scale_up == ScaleUp::kMesh) inside_share /= std::max(1, device.scale_up_links);
  const double nic = cluster.nic_port_gb_per_s() * rates.network;

  std::array<double, kPortCount> port_bytes{};
  std::array<double, kPortCount> port_seconds{};
  double start = 0, moved = 0;
  const bool behind_switches =
      cluster.scale_up == ScaleUp::kPcie && cluster.accelerators_per_pcie_switch > 1;
  for (std::size_t i = 0; i < work.messages.size(); ++i) {
    const Message& message = work.messages[i];
    const bool across = placements[i].nodes > 1;
    const Port port = across ? (message.send ? Port::kNicOut : Port::kNicIn)
                             : (message.send ? Port::kScaleUpOut : Port::kScaleUpIn);
    const auto index = static_cast<std::size_t>(port);
    const double rate =
        across ? c.message_network * nic / network_slowdown(cluster.topology, placements[i])
               : inside_share * inside_rate;
    if (across || !behind_switches || placements[i].across_switches) {
      port_bytes.at(index) += static_cast<double>(message.bytes);
    }
    moved += static_cast<double>(message.bytes);
    port_seconds.at(index) += static_cast<double>(message.bytes) / (rate * 1e9);
    start = std::max(start, across ? c.message_network_us + cluster.network_latency_us +
                                         network_detour_us(cluster.topology, placements[i])
                                   : c.message_scale_up_us);
  }
  if (work.messages.empty()) return Cost{};
  const double busiest = *std::max_element(port_seconds.begin(), port_seconds.end());
  Cost cost;
  cost.latency = Time::from_us(start);
  cost.duration = cost.latency + bounded(busiest);
  const double seconds = cost.duration.seconds();
  for (std::size_t i = 0; i < port_bytes.size(); ++i) {
    const bool network = i >= static_cast<std::size_t>(Port::kNicOut);
    cost.port_share.at(i) = share_of(port_bytes.at(i), network ? nic : inside_rate, seconds, 1);
  }
  cost.memory_share = static_cast<std::int32_t>(
      std::min(0.5, moved / seconds / (device.memory_gb_per_s * 1e9)) * kWhole);
  cost.deviation = 0.15F;
  if (steps != nullptr) {
    *steps << work.messages.size() << " messages: start " << start << " us, busiest port "
           << busiest * 1e6 << " us\n";
  }
  return cost;
}

}  // namespace foretrain
