// How a group of ranks lies on the machine, as far as prices can tell.
#pragma once

#include <compare>
#include <cstdint>
#include <span>

#include "hardware/cluster.h"

namespace foretrain {

/// Translation-invariant: equal for all groups of the same pattern, wherever they start.
struct Placement {
  std::int32_t ranks = 0;
  std::int32_t nodes = 0;
  std::int32_t per_node_max = 0, per_node_min = 0;
  std::int32_t nics_per_node = 0;   ///< NIC ports that the members of the fullest node reach
  std::int32_t ranks_per_nic = 0;   ///< members that share the busiest port
  std::int32_t leaf_crossings = 0;  ///< of 1024 node-to-node hops in member order; 0 where the
                                    ///< leaves are not oversubscribed and it cannot matter
  std::strong_ordering operator<=>(const Placement&) const = default;
};

/// Linear in the number of members when they come in rank order. Refuses empty groups, ranks beyond
/// the cluster and members named twice.
Result<Placement> placement_of(const Cluster& cluster, std::span<const RankId> ranks);

}  // namespace foretrain
