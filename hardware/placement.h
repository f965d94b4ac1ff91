// How a group of ranks lies on the machine, as far as prices can tell.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "hardware/cluster.h"
#include "hardware/torus.h"

namespace foretrain {

/// What a group has on one node (of a torus: slice).
struct NodeShape {
  std::int32_t members = 0;
  std::int32_t nics = 0;  ///< NIC ports that they reach
  std::strong_ordering operator<=>(const NodeShape&) const = default;
};

/// Translation-invariant: equal for all groups of the same pattern, wherever they start.
struct Placement {
  std::int32_t ranks = 0;
  std::int32_t nodes = 0;  ///< scale-up domains: nodes, or slices of a torus
  std::int32_t per_node_max = 0, per_node_min = 0;
  std::vector<NodeShape> shapes;   ///< the distinct ones, ascending; none for one node
  std::int32_t ranks_per_nic = 0;  ///< members that share the busiest port
  /// Of 1024 node-to-node hops in member order, those that leave a domain of each network level; 0
  /// where it cannot matter because the level is neither oversubscribed nor slow.
  std::array<std::int32_t, kMaxLevels> crossings{};
  /// Of 1024 ordered pairs on different nodes, those in different domains of each level: what an
  /// all-to-all sends across. 0 where it cannot matter.
  std::array<std::int32_t, kMaxLevels> pair_crossings{};
  bool one_package = false;      ///< the members lie in one package (two levels of scale-up)
  bool across_switches = false;  ///< they lie behind several PCIe switches of a node
  TorusAxes axes{};              ///< of the fullest slice
  MeshUse mesh{};                ///< of the node where it carries least
  std::strong_ordering operator<=>(const Placement&) const = default;

  /// NIC ports of the node that reaches the fewest; 0 for a group on one node.
  std::int32_t fewest_nics() const;
};

/// Linear in the number of members when they come in rank order. Refuses empty groups, ranks beyond
/// the cluster and members named twice.
Result<Placement> placement_of(const Cluster& cluster, std::span<const RankId> ranks);

/// Two ranks on different nodes of a switched network are taken as two of different domains of
/// every level that has more than one.
void send_far(const Cluster& cluster, Placement& placement);

/// How much longer the network takes for what crosses its levels (hardware/topology.h), >= 1: by
/// hops in member order, or for all-to-all by pairs.
double network_slowdown(const Topology& topology, const Placement& placement,
                        bool all_to_all = false);

/// One-way latency that the levels add to the cluster's own.
double network_detour_us(const Topology& topology, const Placement& placement);

}  // namespace foretrain
