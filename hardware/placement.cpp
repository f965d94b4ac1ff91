#include "hardware/placement.h"

#include <algorithm>
#include <vector>

namespace foretrain {
namespace {

constexpr std::int64_t kHops = 1024;

bool matters(const Topology& topology, std::size_t level) {
  return topology.oversubscription_through(level) > 1 || topology.levels[level].latency_us > 0;
}

/// Without a scale-up switch to relay over, a message to another rail crosses the leaves.
bool leaves_rail(const Cluster& cluster, std::span<const RankId> ranks) {
  return cluster.topology.kind == TopologyKind::kRailFatTree && ranks.size() == 2 &&
         cluster.scale_up != ScaleUp::kSwitch &&
         cluster.nic_port_of_local(cluster.local_of(ranks[0])) !=
             cluster.nic_port_of_local(cluster.local_of(ranks[1]));
}

/// Of the hops between nodes, member to next member around the ring, those that leave a domain of
/// `level`.
std::int32_t crossings(const Cluster& cluster, std::span<const RankId> ranks, std::size_t level) {
  const std::int32_t domain = cluster.topology.levels[level].nodes;
  std::int64_t hops = 0, crossing = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::int32_t a = cluster.node_of(ranks[i]);
    const std::int32_t b = cluster.node_of(ranks[(i + 1) % ranks.size()]);
    if (a == b) continue;
    ++hops;
    if (a / domain != b / domain || (level == 0 && leaves_rail(cluster, ranks))) ++crossing;
  }
  return hops == 0 ? 0 : static_cast<std::int32_t>((crossing * kHops + hops / 2) / hops);
}

/// Ordered pairs of members that share a domain of `nodes` nodes; the members are sorted.
std::int64_t pairs_together(const Cluster& cluster, std::span<const RankId> sorted,
                            std::int32_t nodes) {
  std::int64_t pairs = 0, count = 0;
  std::int32_t current = -1;
  for (const RankId rank : sorted) {
    const std::int32_t domain = cluster.node_of(rank) / nodes;
    if (domain != current) count = 0;
    current = domain;
    pairs += 2 * count++ + 1;
  }
  return pairs;
}

/// Fills in what leaves the domains of each level of a switched network.
void count_crossings(const Cluster& cluster, std::span<const RankId> ranks,
                     std::span<const RankId> sorted, Placement& placement) {
  const auto all =
      static_cast<std::int64_t>(sorted.size()) * static_cast<std::int64_t>(sorted.size());
  for (std::size_t level = 0; level < cluster.topology.levels.size(); ++level) {
    if (!matters(cluster.topology, level)) continue;
    placement.crossings.at(level) = crossings(cluster, ranks, level);
    const std::int64_t between = all - pairs_together(cluster, sorted, 1);
    const std::int64_t leaving =
        all - pairs_together(cluster, sorted, cluster.topology.levels[level].nodes);
    placement.pair_crossings.at(level) =
        static_cast<std::int32_t>((leaving * kHops + between / 2) / between);
  }
}

/// Counts the members of one scale-up domain, sorted.
void count_domain(const Cluster& cluster, std::span<const RankId> members, Placement& placement) {
  const auto count = static_cast<std::int32_t>(members.size());
  placement.per_node_min = placement.nodes == 0 ? count : std::min(placement.per_node_min, count);
  placement.per_node_max = std::max(placement.per_node_max, count);
  ++placement.nodes;
  std::int32_t ports = 0, last_port = -1, on_port = 0;
  for (const RankId rank : members) {
    const std::int32_t port = cluster.node_of(rank) * cluster.nic_ports_per_node() +
                              cluster.nic_port_of_local(cluster.local_of(rank));
    if (port != last_port) {
      ++ports;
      on_port = 0;
      last_port = port;
    }
    placement.ranks_per_nic = std::max(placement.ranks_per_nic, ++on_port);
  }
  const NodeShape shape{count, ports};
  const auto place = std::lower_bound(placement.shapes.begin(), placement.shapes.end(), shape);
  if (place == placement.shapes.end() || *place != shape) placement.shapes.insert(place, shape);
  const auto spread = [&](std::int32_t size) {
    return cluster.local_of(members.front()) / size != cluster.local_of(members.back()) / size;
  };
  placement.one_package = placement.one_package && !spread(cluster.package.accelerators);
  placement.across_switches =
      placement.across_switches || spread(cluster.accelerators_per_pcie_switch);
}

/// Of a mesh: the least that the members have of it on any node.
MeshUse mesh_of(const Cluster& cluster, std::span<const RankId> sorted) {
  MeshUse least;
  std::vector<std::int32_t> members, last;
  bool seen = false;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    members.push_back(cluster.local_of(sorted[i]));
    const bool ends =
        i + 1 == sorted.size() || cluster.node_of(sorted[i + 1]) != cluster.node_of(sorted[i]);
    if (!ends) continue;
    if (members.size() > 1 && members != last) {
      const MeshUse use = mesh_use(cluster.mesh_links, members);
      least = seen ? slower_of(least, use) : use;
      seen = true;
      last = members;
    }
    members.clear();
  }
  return least;
}

TorusAxes axes_of(const Cluster& cluster, std::span<const RankId> members) {
  std::vector<std::int32_t> inside;
  inside.reserve(members.size());
  for (const RankId rank : members) inside.push_back(rank.value % cluster.domain_size());
  return torus_axes(cluster.topology, inside);
}

}  // namespace

std::int32_t Placement::fewest_nics() const {
  std::int32_t fewest = 0;
  for (const NodeShape& shape : shapes) {
    fewest = fewest == 0 ? shape.nics : std::min(fewest, shape.nics);
  }
  return fewest;
}

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
  placement.one_package = cluster.package.accelerators > 1;
  std::span<const RankId> fullest;
  std::size_t begin = 0;
  for (std::size_t i = 1; i <= sorted.size(); ++i) {
    if (i < sorted.size() && cluster.domain_of(sorted[i]) == cluster.domain_of(sorted[begin])) {
      continue;
    }
    const std::span<const RankId> members = sorted.subspan(begin, i - begin);
    count_domain(cluster, members, placement);
    if (members.size() > fullest.size()) fullest = members;
    begin = i;
  }
  if (cluster.scale_up == ScaleUp::kMesh) placement.mesh = mesh_of(cluster, sorted);
  if (cluster.topology.slice_size() > 0) {
    placement.axes = axes_of(cluster, fullest);
  } else if (placement.nodes > 1) {
    count_crossings(cluster, ranks, sorted, placement);
  }
  if (placement.nodes == 1) {
    placement.shapes.clear();
    placement.ranks_per_nic = 0;
  }
  return placement;
}

void send_far(const Cluster& cluster, Placement& placement) {
  if (placement.nodes < 2) return;
  const std::int32_t nodes = cluster.node_of(RankId(cluster.accelerators - 1)) + 1;
  for (std::size_t level = 0; level < cluster.topology.levels.size(); ++level) {
    if (!matters(cluster.topology, level) || cluster.topology.levels[level].nodes >= nodes)
      continue;
    placement.crossings.at(level) = placement.pair_crossings.at(level) = kHops;
  }
}

double network_slowdown(const Topology& topology, const Placement& placement, bool all_to_all) {
  const auto& crossings = all_to_all ? placement.pair_crossings : placement.crossings;
  double slowdown = 1;
  for (std::size_t level = 0; level < topology.levels.size(); ++level) {
    const double share = crossings.at(level) / double{kHops};
    slowdown = std::max(slowdown, share * topology.oversubscription_through(level));
  }
  return slowdown;
}

double network_detour_us(const Topology& topology, const Placement& placement) {
  double us = 0;
  for (std::size_t level = 0; level < topology.levels.size(); ++level) {
    if (placement.crossings.at(level) > 0) us += topology.levels[level].latency_us;
  }
  return us;
}

}  // namespace foretrain
