// Clusters of several kinds of nodes: pools of equal nodes that one network joins.
//
// Ranks of the first pool come first, then those of the second, and so on. Within a pool all is as
// in a cluster of its own. A group of ranks of several pools lies as in one cluster of equal nodes,
// those of its pool with the slowest network for each accelerator: a node of another pool with more
// accelerators stands for as many nodes as it fills, one with fewer for one. Left out: links within
// nodes of the other pools in such a group, and switches that join pools and are slower than both.
#pragma once

#include <span>
#include <vector>

#include "hardware/cluster.h"

namespace foretrain {

class Pools {
 public:
  /// Of a cluster of pools, which must outlive it.
  explicit Pools(const Cluster& cluster);

  std::size_t pool_of(RankId rank) const;
  const Cluster& pool(std::size_t pool) const { return x_cluster.pools[pool]; }

  /// Clusters of equal nodes: each pool, then, of what reaches beyond it, the whole job on nodes of
  /// that pool.
  std::size_t views() const { return 2 * x_cluster.pools.size(); }
  const Cluster& view(std::size_t view) const;
  /// The one in which these ranks lie, one at least.
  std::size_t view_of(std::span<const RankId> ranks) const;
  /// Their numbers there.
  std::vector<RankId> placed(std::span<const RankId> ranks, std::size_t view) const;

  /// A number that no port of the pools before reaches.
  std::int32_t first_port(std::size_t pool) const { return x_first_port[pool]; }

 private:
  /// The whole job on nodes of a pool.
  struct Whole {
    Cluster cluster;
    std::vector<std::int32_t> first;  ///< rank of each pool
  };
  Whole whole_on(const Cluster& nodes) const;

  const Cluster& x_cluster;
  std::vector<std::int32_t> x_first, x_first_port;  ///< ranks and ports, by pool
  std::vector<Whole> x_wholes;                      ///< by pool
};

}  // namespace foretrain
