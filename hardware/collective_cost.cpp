#include "hardware/collective_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "hardware/local_cost.h"
#include "hardware/mesh_collectives.h"
#include "hardware/nccl_constants.h"
#include "hardware/torus_collectives.h"

namespace foretrain {
namespace {

constexpr Bytes kMostBytes = Bytes{1} << 56;

bool in_cloud(const Cluster& cluster) {
  return cluster.fabric == Fabric::kEfa || cluster.fabric == Fabric::kEthernet;
}

const TimeLaw& law_of(const Cluster& cluster, std::int32_t nodes) {
  const NcclConstants& c = nccl_constants();
  const auto& laws = nodes == 1          ? c.one_node
                     : in_cloud(cluster) ? c.many_nodes_cloud
                                         : c.many_nodes;
  return laws.at(nccl_row(cluster.device.architecture));
}

/// NCCL's least latencies over the protocols, in us.
struct Latency {
  double least = -1;   ///< of any algorithm
  double beyond = -1;  ///< what the chosen one has more
};

Latency latency_of(const NcclGroup& group, CollectiveKind kind, NcclAlgorithm chosen) {
  Latency out;
  double own = -1;
  for (int a = 0; a < kNcclAlgorithms; ++a) {
    const auto algorithm = static_cast<NcclAlgorithm>(a);
    for (int p = 0; p < kNcclProtocols; ++p) {
      const NcclTuning tuning = nccl_tuning(group, kind, algorithm, static_cast<NcclProtocol>(p));
      if (tuning.gb_per_s <= 0) continue;
      if (out.least < 0 || tuning.latency_us < out.least) out.least = tuning.latency_us;
      if (algorithm != chosen) continue;
      if (own < 0 || tuning.latency_us < own) own = tuning.latency_us;
    }
  }
  // NVLS and NVLSTree offer one protocol only and hand small messages to the others.
  out.beyond = is_nvls(chosen) ? 0 : own - out.least;
  return out;
}

/// Of a table by number of members; `other` for numbers it lacks.
double at_ranks(const std::vector<double>& ranks, const std::vector<double>& values,
                std::int32_t members, double other) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == members) return values[i];
  }
  return other;
}

/// busbw of a group within a mesh, measured for as many members on as many rings, else the mean of
/// what a ring has; 0 through the host, where nobody measured.
double mesh_busbw(const NcclGroup& group) {
  const NcclConstants& c = nccl_constants();
  for (const NcclConstants::MeshBusbw& row : c.mesh_busbw) {
    if (row.ranks == group.ranks && row.rings == group.mesh.rings &&
        row.relayed == group.mesh.relayed) {
      return row.gb_per_s;
    }
  }
  return group.mesh.rings * (group.mesh.relayed ? c.mesh_relayed_ring : c.mesh_ring);
}

/// A: NCCL's largest over the protocols; within a mesh by the rings, and of few A100 on NVSwitch
/// by the number of members, as measured; NVLSTree no more than its ceiling for nodes of 8 heads.
double largest_bandwidth(const Cluster& cluster, const NcclGroup& group, CollectiveKind kind,
                         NcclAlgorithm algorithm) {
  const NcclConstants& c = nccl_constants();
  double bandwidth = 0;
  for (int p = 0; p < kNcclProtocols; ++p) {
    const auto protocol = static_cast<NcclProtocol>(p);
    bandwidth = std::max(bandwidth, nccl_tuning(group, kind, algorithm, protocol).gb_per_s);
  }
  if (algorithm == NcclAlgorithm::kNvlsTree && group.nvls.channels > c.nvls_tree_heads) {
    const double head = c.nvls_tree.at(nccl_row(group.architecture)).at(group.nodes == 2 ? 1 : 2);
    return std::min(bandwidth, c.nvls_tree_heads * head / bus_factor(kind, group.ranks));
  }
  if (group.nodes > 1) return bandwidth;
  if (cluster.scale_up == ScaleUp::kMesh) {
    const double busbw = mesh_busbw(group);
    return busbw > 0 ? busbw / bus_factor(kind, group.ranks) : bandwidth;
  }
  const bool few =
      cluster.scale_up == ScaleUp::kSwitch && cluster.device.architecture == Architecture::kAmpere;
  return few ? bandwidth * at_ranks(c.few_ranks, c.few_ranks_share, group.ranks, 1) : bandwidth;
}

/// Whether NICs limit what NCCL counts on: its search takes channels in steps of speed, which leave
/// some of them.
bool counts_on_nics(const Cluster& cluster, const NcclGroup& group, NcclAlgorithm algorithm) {
  const bool tree = algorithm == NcclAlgorithm::kTree;
  const NcclGraph& graph = is_nvls(algorithm) ? group.nvls : tree ? group.tree : group.ring;
  const double counted = graph.channels * graph.inter;
  return nccl_constants().search.speed_step * counted >
         cluster.nic_port_gb_per_s() * group.nics_per_node;
}

/// Seconds at full rate, by what limits them.
struct Transfer {
  double algorithm = 0;  ///< at the bandwidth that the algorithm reaches
  double scale_up = 0;   ///< a rank's port
  double network = 0;    ///< a node's NICs
  double bandwidth = 0;  ///< A, GB/s of the array; 0 where only the port counts
  double share = 0;      ///< efficiency, of A or of the port
  double longest() const { return std::max({algorithm, scale_up, network}); }
};

Transfer transfer_of(const Cluster& cluster, const LinkRates& rates, const Placement& at,
                     const NcclGroup& group, const Collective& work, NcclAlgorithm algorithm,
                     const Traffic& traffic) {
  const NcclConstants& c = nccl_constants();
  const TimeLaw& law = law_of(cluster, at.nodes);
  const TimeLaw& inside = law_of(cluster, 1);
  const bool multicast = is_nvls(algorithm) && work.kind == CollectiveKind::kAllReduce;
  const auto size = static_cast<double>(bytes_of(work.dtype, work.count));
  const double line = scale_up_rate(cluster, rates) * 1e9;
  Transfer out;
  out.share = multicast ? inside.nvls_efficiency : 1;
  out.scale_up = traffic.rank_scale_up / (out.share * line);
  if (multicast && at.nodes == 1) return out;
  const bool nvls_across = is_nvls(algorithm) && at.nodes > 1;
  out.share = nvls_across ? law.nvls_efficiency : law.efficiency;
  out.bandwidth = largest_bandwidth(cluster, group, work.kind, algorithm);
  const double reached = size / (out.share * out.bandwidth * 1e9);
  if (at.nodes == 1) {
    out.algorithm = reached / rates.scale_up;
    return out;
  }
  const double slowdown = network_slowdown(cluster.topology, at);
  const double port = cluster.nic_port_gb_per_s() * 1e9;
  const bool of_nics = counts_on_nics(cluster, group, algorithm);
  // On two nodes a byte crosses the NICs once, and what NCCL counts on is no bound for all heads
  // together: 8 B200 a node reach their NICs' rate. Of fewer members a node nothing was measured.
  if (nvls_across && at.nodes == 2 && at.per_node_min >= c.nvls_tree_heads) {
    out.bandwidth = 0;
  } else {
    out.algorithm = reached * slowdown / (of_nics ? rates.network : rates.scale_up);
  }
  out.network = traffic.nic_network / (c.network_line_share * port) * slowdown / rates.network;
  return out;
}

double memory_share(const Cluster& cluster, const Traffic& traffic, double seconds) {
  const double bytes = std::max(traffic.rank_scale_up, traffic.rank_network);
  const double rate = nccl_constants().memory_traffic * bytes / seconds / 1e9;
  return std::min(0.5, rate / cluster.device.memory_gb_per_s);
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
  const double lanes = (at.nodes > 1 ? traffic.rank_network : 0) +
                       (cluster.scale_up == ScaleUp::kPcie ? traffic.rank_scale_up : 0);
  add_host_link(cluster, lanes, lanes, cost);
  if (at.nodes == 1) return;
  const double rate =
      cluster.nic_port_gb_per_s() * rates.network / network_slowdown(cluster.topology, at);
  const std::int32_t outside =
      share_of(traffic.rank_network, rate, seconds, std::max(1, at.ranks_per_nic));
  cost.port_share.at(static_cast<std::size_t>(Port::kNicOut)) = outside;
  cost.port_share.at(static_cast<std::size_t>(Port::kNicIn)) = outside;
}

double power_mean(double a, double b, double power) {
  return std::pow(std::pow(a, power) + std::pow(b, power), 1 / power);
}

Cost finish(const Cluster& cluster, const LinkRates& rates, const Placement& at,
            const Traffic& traffic, double alpha_s, double seconds) {
  Cost cost;
  cost.duration = max(Time{1}, bounded(seconds));
  cost.latency = min(cost.duration, bounded(alpha_s));
  cost.memory_share = static_cast<std::int32_t>(memory_share(cluster, traffic, seconds) * kWhole);
  fill_shares(cluster, rates, at, traffic, cost);
  return cost;
}

/// What `traffic_of` says; what a NIC brings to a device of PCIe passes the same lanes as the rest.
Traffic traffic_on(const Cluster& cluster, const Placement& at, CollectiveKind kind,
                   NcclAlgorithm algorithm, double bytes) {
  Traffic traffic = traffic_of(at, kind, algorithm, bytes);
  if (cluster.scale_up == ScaleUp::kPcie) {
    traffic.rank_scale_up = bytes * bus_factor(kind, at.ranks);
  }
  return traffic;
}

/// Rows that go to several members cross the network once a node, then the node's own links.
void send_once_a_node(const Placement& at, double bytes, const FanOut& fan_out, Traffic& traffic) {
  if (fan_out.drawn == 0 || at.nodes == 1) return;
  const double rank = parts_hit(fan_out, at.ranks) / at.ranks;  // chance of a row to hit a rank
  traffic = Traffic{};
  for (const NodeShape& shape : at.shapes) {
    const std::int64_t nodes = at.ranks / shape.members;
    const double node = parts_hit(fan_out, nodes) / static_cast<double>(nodes);
    const double once = std::min(1.0, node / (shape.members * rank));
    const double sent = node_bytes(at, shape.members, CollectiveKind::kAllToAll, bytes);
    add_node(shape, once * sent, traffic);
  }
  traffic.rank_scale_up = bytes * (at.per_node_max - 1) / at.per_node_max;
}

/// Every pair's message over the links of its way: as long as the busiest links take, or the host.
double mesh_exchange_s(const Cluster& cluster, const Placement& at, double sent, double reached,
                       double line) {
  const NcclConstants& c = nccl_constants();
  const double message = sent / std::max(1, at.per_node_max - 1);
  const double link = line / std::max(1, cluster.device.scale_up_links);
  const double busiest = at.mesh.exchanged / double{kExchangeUnit};
  return message * std::max(busiest / (reached * link), at.mesh.through_host / (c.mesh_host * 1e9));
}

Cost all_to_all(const Cluster& cluster, const LinkRates& rates, const Placement& at,
                const Collective& work, std::ostream* steps) {
  const Bytes bytes = bytes_of(work.dtype, work.count);
  const NcclConstants& c = nccl_constants();
  Traffic traffic = traffic_on(cluster, at, CollectiveKind::kAllToAll, NcclAlgorithm::kRing,
                               static_cast<double>(bytes));
  send_once_a_node(at, static_cast<double>(bytes), work.fan_out, traffic);
  const double network_us = network_latency_us(cluster, at);
  const double start =
      (c.all_to_all_us + c.all_to_all_peer_us * (at.ranks - 1) + network_us) * 1e-6;
  const std::size_t row = nccl_row(cluster.device.architecture);
  const double power = c.all_to_all_power.at(row);
  const double reached =
      work.fan_out.drawn > 0 ? c.fan_out_scale_up : c.all_to_all_scale_up.at(row);
  const double line = scale_up_rate(cluster, rates) * 1e9;
  const double inside = cluster.scale_up == ScaleUp::kMesh
                            ? mesh_exchange_s(cluster, at, traffic.rank_scale_up, reached, line)
                            : traffic.rank_scale_up / (reached * line);
  double outside = 0;
  if (at.nodes > 1) {
    const double port = cluster.nic_port_gb_per_s() * rates.network;
    outside = traffic.nic_network * network_slowdown(cluster.topology, at, true) /
              (c.all_to_all_network * port * 1e9);
  }
  const FanOut& to = work.fan_out;
  const double carried =
      to.enough > 0 ? std::min(1.0, static_cast<double>(to.sms) / static_cast<double>(to.enough))
                    : 1.0;
  const double seconds = power_mean(start, std::max(inside, outside) / carried, power);
  Cost cost = finish(cluster, rates, at, traffic, start, seconds);
  cost.sms_held = work.fan_out.sms > 0 ? std::min(work.fan_out.sms, cluster.device.sm_count)
                                       : nccl_p2p_channels(nccl_group_of(cluster, at), at.ranks - 1,
                                                           bytes / at.ranks);
  cost.deviation = static_cast<float>(c.all_to_all_deviation);
  if (steps != nullptr) {
    *steps << "all-to-all of " << at.ranks << " ranks on " << at.nodes << " nodes: start "
           << start * 1e6 << " us; NVLink " << inside * 1e6 << " us; NIC " << outside * 1e6
           << " us; power " << power << ": " << seconds * 1e6 << " us\n"
           << "SMs held " << cost.sms_held << "\n";
  }
  return cost;
}

/// Nodes after nodes that a byte's way leads over: N - 1 around a ring, twice for an all-reduce;
/// the depth of a tree up and down; a switch once.
double network_steps(const Placement& at, CollectiveKind kind, NcclAlgorithm algorithm) {
  const double nodes = at.nodes;
  const double phases = kind == CollectiveKind::kAllReduce ? 2 : 1;
  switch (algorithm) {
    case NcclAlgorithm::kTree:
    case NcclAlgorithm::kNvlsTree:
    case NcclAlgorithm::kPat:
      return phases * std::ceil(std::log2(nodes));
    case NcclAlgorithm::kRing:
      return phases * (nodes - 1);
    case NcclAlgorithm::kNvls:
    case NcclAlgorithm::kCollNetDirect:
    case NcclAlgorithm::kCollNetChain:
      break;
  }
  return phases;
}

/// What the network's latency adds: once as it is, and at every further step what it has beyond the
/// networks that the law was measured on, whose steps are in its latency_factor.
double network_alpha_us(const Cluster& cluster, const Placement& at, CollectiveKind kind,
                        NcclAlgorithm algorithm) {
  if (at.nodes == 1) return 0;
  const NcclConstants& c = nccl_constants();
  const double usual = in_cloud(cluster) ? c.usual_cloud_us : c.usual_network_us;
  const double beyond = std::max(0.0, cluster.network_latency_us - usual);
  const double further = std::max(0.0, network_steps(at, kind, algorithm) - 1);
  return network_latency_us(cluster, at) + further * beyond;
}

/// The time of one collective and what it is made of.
struct NcclTime {
  NcclGroup group;
  TimeLaw law;
  Traffic traffic;
  Latency latency;
  Transfer transfer;
  double network_us = 0, alpha_s = 0, power = 1, fill_s = 0, seconds = 0;
};

/// With x no longer than `most_s`.
NcclTime time_of(const Cluster& cluster, const LinkRates& rates, const Placement& at,
                 const Collective& work, const NcclChoice& choice, double most_s) {
  const auto size = static_cast<double>(bytes_of(work.dtype, work.count));
  NcclTime out;
  out.group = nccl_group_of(cluster, at);
  out.law = law_of(cluster, at.nodes);
  out.traffic = traffic_on(cluster, at, work.kind, choice.algorithm, size);
  out.transfer = transfer_of(cluster, rates, at, out.group, work, choice.algorithm, out.traffic);
  out.latency = latency_of(out.group, work.kind, choice.algorithm);
  out.network_us = network_alpha_us(cluster, at, work.kind, choice.algorithm);
  out.alpha_s =
      (out.law.latency_factor * out.latency.least + out.latency.beyond + out.network_us) * 1e-6;
  const double x = std::min(most_s, out.transfer.longest());
  const bool nvls = is_nvls(choice.algorithm);
  if (nvls) out.fill_s = std::min(out.law.per_rank_us * at.ranks * 1e-6, x);
  out.power = nvls ? out.law.nvls_power : out.law.power;
  out.seconds = power_mean(out.alpha_s, x, out.power) + out.fill_s;
  return out;
}

/// What as many members as a node holds would take in one, their bytes at x or faster: 0 for a
/// group that lies in one.
double seconds_in_a_node(const Cluster& cluster, const LinkRates& rates, const Placement& at,
                         const Collective& work, double x) {
  Placement near;
  near.ranks = std::min(at.ranks, cluster.accelerators_per_node);
  if (at.nodes == 1 || near.ranks < 2) return 0;
  near.nodes = 1;
  near.per_node_max = near.per_node_min = near.ranks;
  if (cluster.scale_up == ScaleUp::kMesh) near.mesh = mesh_use(cluster.mesh_links, near.ranks);
  const NcclChoice choice = choose_nccl(nccl_group_of(cluster, near), work.kind,
                                        bytes_of(work.dtype, work.count), work.dtype);
  return time_of(cluster, rates, near, work, choice, x).seconds;
}

/// The numbers of one price, for the reader.
void write_steps(const Cluster& cluster, const Placement& at, const Collective& work,
                 const NcclChoice& choice, const NcclTime& time, double in_a_node_s,
                 const Cost& cost, std::ostream& out) {
  const bool far = at.nodes > 1;
  const Bytes bytes = bytes_of(work.dtype, work.count);
  const double seconds = std::max(time.seconds, in_a_node_s);
  out << "group: " << at.ranks << " ranks on " << at.nodes << " nodes, " << at.per_node_min
      << " to " << at.per_node_max << " a node";
  if (far) {
    out << ", " << time.group.nics_per_node << " NICs a node, slowed by the network's levels "
        << network_slowdown(cluster.topology, at) << " times";
  }
  out << "\n"
      << "NCCL: " << name_of(choice.algorithm) << "/" << name_of(choice.protocol)
      << ", its own estimate " << choice.time_us << " us of " << bytes << " bytes\n"
      << "alpha: " << time.law.latency_factor << " * " << time.latency.least << " us";
  if (time.latency.beyond > 0) out << " + " << time.latency.beyond << " us of this algorithm";
  if (far) out << " + " << time.network_us << " us of network";
  out << " = " << time.alpha_s * 1e6 << " us\n"
      << "x: the longest of\n";
  const Transfer& transfer = time.transfer;
  if (transfer.bandwidth > 0) {
    out << "  " << transfer.algorithm * 1e6 << " us: " << transfer.share << " of the "
        << transfer.bandwidth << " GB/s of the array that NCCL counts on\n";
  }
  out << "  " << transfer.scale_up * 1e6 << " us: " << time.traffic.rank_scale_up
      << " bytes out of a device";
  if (transfer.bandwidth <= 0) out << ", at " << transfer.share << " of its port's line rate";
  out << "\n";
  if (far) {
    out << "  " << transfer.network * 1e6 << " us: " << time.traffic.node_network
        << " bytes out of a node\n";
  }
  out << "(alpha^p + x^p)^(1/p) with p " << time.power;
  if (time.fill_s > 0) out << ", and " << time.fill_s * 1e6 << " us to fill the trees";
  if (in_a_node_s > time.seconds) out << ", no less than in one node";
  out << ": " << seconds * 1e6 << " us, busbw "
      << static_cast<double>(bytes) * bus_factor(work.kind, at.ranks) / seconds / 1e9 << " GB/s\n"
      << "SMs held " << cost.sms_held << "\n";
}

}  // namespace

NcclGroup nccl_group_of(const Cluster& cluster, const Placement& at) {
  return nccl_group(cluster, at.ranks, at.nodes, at.per_node_max, at.fewest_nics(), &at.mesh);
}

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
    return all_to_all(cluster, rates, placement, work, steps);
  }
  const NcclGroup group = nccl_group_of(cluster, placement);
  return nccl_cost(cluster, rates, placement, work,
                   choose_nccl(group, work.kind, bytes, work.dtype), steps);
}

Cost nccl_cost(const Cluster& cluster, const LinkRates& rates, const Placement& at,
               const Collective& work, const NcclChoice& choice, std::ostream* steps) {
  const NcclTime time =
      time_of(cluster, rates, at, work, choice, std::numeric_limits<double>::infinity());
  const double in_a_node = seconds_in_a_node(cluster, rates, at, work, time.transfer.longest());
  Cost cost = finish(cluster, rates, at, time.traffic, time.alpha_s + time.fill_s,
                     std::max(time.seconds, in_a_node));
  cost.sms_held = nccl_channels(time.group, choice, work.kind, bytes_of(work.dtype, work.count));
  cost.deviation = static_cast<float>(time.law.deviation);
  if (steps != nullptr) write_steps(cluster, at, work, choice, time, in_a_node, cost, *steps);
  return cost;
}

}  // namespace foretrain
