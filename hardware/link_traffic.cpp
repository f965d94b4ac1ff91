#include "hardware/link_traffic.h"

#include <algorithm>
#include <cmath>

namespace foretrain {
namespace {

double node_all_reduce(const Placement& at, NcclAlgorithm algorithm, double bytes) {
  const double nodes = at.nodes, ranks = at.ranks;
  switch (algorithm) {
    case NcclAlgorithm::kTree:
    case NcclAlgorithm::kNvlsTree:
      return at.nodes == 2 ? bytes : 2 * bytes;
    case NcclAlgorithm::kNvls:
    case NcclAlgorithm::kCollNetDirect:
    case NcclAlgorithm::kCollNetChain:
      return bytes;
    case NcclAlgorithm::kRing:
      return 2 * (ranks - 1) / ranks * bytes;
    case NcclAlgorithm::kPat:
      break;
  }
  return 2 * (nodes - 1) / nodes * bytes;
}

}  // namespace

void add_node(const NodeShape& shape, double bytes, Traffic& traffic) {
  traffic.node_network = std::max(traffic.node_network, bytes);
  traffic.nic_network = std::max(traffic.nic_network, bytes / shape.nics);
  traffic.rank_network = std::max(traffic.rank_network, bytes / shape.members);
}

double bus_factor(CollectiveKind kind, double ranks) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 2 * (ranks - 1) / ranks;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
      return (ranks - 1) / ranks;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
      return 1;
  }
  return 1;
}

double node_bytes(const Placement& at, std::int32_t members, CollectiveKind kind, double bytes) {
  if (at.nodes == 1) return 0;
  const double n = at.ranks, nodes = at.nodes;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return bytes * 2 * (nodes - 1) / nodes;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      return bytes * (n - members) / n;
    case CollectiveKind::kAllToAll:
      return bytes * members * (n - members) / n;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
      return bytes;
  }
  return bytes;
}

Traffic traffic_of(const Placement& at, CollectiveKind kind, NcclAlgorithm algorithm,
                   double bytes) {
  const double n = at.ranks;
  const bool reduces_all = kind == CollectiveKind::kAllReduce;
  const bool exchanges = kind == CollectiveKind::kAllToAll;
  Traffic traffic;
  const double ring = bytes * bus_factor(kind, n);
  if (at.per_node_max > 1) traffic.rank_scale_up = ring;
  if (reduces_all && is_nvls(algorithm)) traffic.rank_scale_up = bytes;
  if (exchanges) traffic.rank_scale_up = bytes * (at.per_node_max - 1) / n;
  for (const NodeShape& shape : at.shapes) {
    double sent = node_bytes(at, shape.members, kind, bytes);
    if (reduces_all) {
      sent = node_all_reduce(at, algorithm, bytes);
    } else if (!exchanges && algorithm == NcclAlgorithm::kRing) {
      sent = std::max(ring, sent);
    }
    add_node(shape, sent, traffic);
  }
  return traffic;
}

Traffic direct_traffic_of(const Placement& at, CollectiveKind kind, double bytes) {
  Traffic traffic;
  for (const NodeShape& shape : at.shapes) {
    add_node(shape, node_bytes(at, shape.members, kind, bytes), traffic);
  }
  return traffic;
}

double scale_up_rate(const Cluster& cluster, const LinkRates& rates) {
  const DeviceSpec& device = cluster.device;
  const double line =
      cluster.scale_up == ScaleUp::kPcie ? device.pcie_gb_per_s : device.scale_up_gb_per_s;
  return line * rates.scale_up;
}

double network_latency_us(const Cluster& cluster, const Placement& at) {
  if (at.nodes < 2) return 0;
  return cluster.network_latency_us + network_detour_us(cluster.topology, at);
}

std::int32_t share_of(double bytes, double rate_gb_per_s, double seconds, std::int32_t sharers) {
  if (bytes <= 0 || rate_gb_per_s <= 0 || seconds <= 0) return 0;
  const double share = bytes / (rate_gb_per_s * 1e9) / seconds * kWhole;
  return static_cast<std::int32_t>(
      std::min(std::ceil(share), std::floor(double{kWhole} / std::max(1, sharers))));
}

void add_host_link(const Cluster& cluster, double out, double in, Cost& cost) {
  const double line = cluster.device.pcie_gb_per_s;
  const double seconds = cost.duration.seconds();
  cost.port_share.at(static_cast<std::size_t>(Port::kHostOut)) = share_of(out, line, seconds, 1);
  cost.port_share.at(static_cast<std::size_t>(Port::kHostIn)) = share_of(in, line, seconds, 1);
}

}  // namespace foretrain
