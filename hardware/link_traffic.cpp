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

Traffic traffic_of(const Placement& at, CollectiveKind kind, NcclAlgorithm algorithm,
                   double bytes) {
  const double n = at.ranks;
  const bool reduces_all = kind == CollectiveKind::kAllReduce;
  Traffic traffic;
  const double ring = bytes * bus_factor(kind, n);
  if (at.per_node_max > 1) traffic.rank_scale_up = ring;
  if (reduces_all && is_nvls(algorithm)) traffic.rank_scale_up = bytes;
  if (kind == CollectiveKind::kAllToAll) traffic.rank_scale_up = bytes * (at.per_node_max - 1) / n;
  if (at.nodes == 1) return traffic;
  const double outside = (n - at.per_node_max) / n;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      traffic.node_network = node_all_reduce(at, algorithm, bytes);
      traffic.node_least = std::min(traffic.node_network, 2 * bytes * (at.nodes - 1) / at.nodes);
      return traffic;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      traffic.node_least = bytes * outside;
      break;
    case CollectiveKind::kAllToAll:
      traffic.node_least = traffic.node_network = bytes * at.per_node_max * outside;
      return traffic;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
      traffic.node_least = bytes;
      break;
  }
  const bool rings = algorithm == NcclAlgorithm::kRing;
  traffic.node_network = rings ? std::max(ring, traffic.node_least) : traffic.node_least;
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

}  // namespace foretrain
