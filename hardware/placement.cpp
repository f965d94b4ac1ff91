#include "hardware/placement.h"

#include <algorithm>
#include <vector>

namespace foretrain {
namespace {

constexpr std::int64_t kHops = 1024;

/// Share of the hops between nodes, member to next member around the ring, that change leaf.
std::int32_t leaf_crossings(const Cluster& cluster, std::span<const RankId> ranks) {
  std::int64_t hops = 0, crossing = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::int32_t a = cluster.node_of(ranks[i]);
    const std::int32_t b = cluster.node_of(ranks[(i + 1) % ranks.size()]);
    if (a == b) continue;
    ++hops;
    if (cluster.leaf_of_node(a) != cluster.leaf_of_node(b)) ++crossing;
  }
  return hops == 0 ? 0 : static_cast<std::int32_t>((crossing * kHops + hops / 2) / hops);
}

/// Counts one node's members, sorted.
void count_node(const Cluster& cluster, std::span<const RankId> members, Placement& placement) {
  const auto count = static_cast<std::int32_t>(members.size());
  placement.per_node_min = placement.nodes == 0 ? count : std::min(placement.per_node_min, count);
  placement.per_node_max = std::max(placement.per_node_max, count);
  ++placement.nodes;
  std::int32_t ports = 0, last_port = -1, on_port = 0;
  for (const RankId rank : members) {
    const std::int32_t port = cluster.nic_port_of_local(cluster.local_of(rank));
    if (port != last_port) {
      ++ports;
      on_port = 0;
      last_port = port;
    }
    placement.ranks_per_nic = std::max(placement.ranks_per_nic, ++on_port);
  }
  placement.nics_per_node = std::max(placement.nics_per_node, ports);
}

}  // namespace

Result<Placement> placement_of(const Cluster& cluster, std::span<const RankId> ranks) {
  if (ranks.empty()) return input_error("cluster " + cluster.name + ": a group without members");
  std::vector<RankId> sorted_ranks;
  std::span<const RankId> sorted = ranks;
  if (!std::is_sorted(ranks.begin(), ranks.end())) {
    sorted_ranks.assign(ranks.begin(), ranks.end());
    std::sort(sorted_ranks.begin(), sorted_ranks.end());
    sorted = sorted_ranks;
  }
  if (sorted.front().value < 0 || sorted.back().value >= cluster.accelerators) {
    return input_error("cluster " + cluster.name + " has " + std::to_string(cluster.accelerators) +
                       " accelerators; found rank " + std::to_string(sorted.back().value) +
                       "; raise /cluster/accelerators or use fewer ranks");
  }
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return input_error("cluster " + cluster.name + ": a group names a rank twice");
  }
  Placement placement;
  placement.ranks = static_cast<std::int32_t>(sorted.size());
  std::size_t begin = 0;
  for (std::size_t i = 1; i <= sorted.size(); ++i) {
    if (i < sorted.size() && cluster.node_of(sorted[i]) == cluster.node_of(sorted[begin])) continue;
    count_node(cluster, sorted.subspan(begin, i - begin), placement);
    begin = i;
  }
  if (placement.nodes > 1 && cluster.oversubscription > 1) {
    placement.leaf_crossings = leaf_crossings(cluster, ranks);
  }
  if (placement.nodes == 1) placement.nics_per_node = placement.ranks_per_nic = 0;
  return placement;
}

}  // namespace foretrain
