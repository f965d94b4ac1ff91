#include "hardware/pools/pools.h"

#include <algorithm>
#include <tuple>

#include "sim/base/check.h"

namespace foretrain {
namespace {

/// Nodes of `node` accelerators that one of the pool's stands for.
std::int32_t filled_nodes(const Cluster& pool, std::int32_t node) {
  return (pool.accelerators_per_node + node - 1) / node;
}

/// Whether an accelerator of `a` has less of the network than one of `b`; of equals those behind
/// fewer ports, then those that wait longer.
bool is_slower(const Cluster& a, const Cluster& b) {
  const auto order = [](const Cluster& one) {
    return std::tuple(one.node_network_gb_per_s() / one.accelerators_per_node,
                      one.nic_ports_per_node(), -one.network_latency_us);
  };
  return order(a) < order(b);
}

}  // namespace

Pools::Pools(const Cluster& cluster) : x_cluster(cluster) {
  FT_CHECK(!cluster.pools.empty(), "pools of a cluster that has none");
  std::int32_t first = 0, first_port = 0;
  for (const Cluster& pool : cluster.pools) {
    x_first.push_back(first);
    x_first_port.push_back(first_port);
    first += pool.accelerators;
    first_port += pool.nodes() * pool.accelerators_per_node;
  }
  for (const Cluster& pool : cluster.pools) x_wholes.push_back(whole_on(pool));
}

Pools::Whole Pools::whole_on(const Cluster& nodes) const {
  Whole out{nodes, {}};
  std::int32_t first = 0;
  for (const Cluster& pool : x_cluster.pools) {
    out.first.push_back(first);
    const std::int32_t node = nodes.accelerators_per_node;
    first += pool.nodes() * filled_nodes(pool, node) * node;
  }
  out.cluster.accelerators = first;
  return out;
}

const Cluster& Pools::view(std::size_t view) const {
  const std::size_t pools = x_cluster.pools.size();
  return view < pools ? x_cluster.pools[view] : x_wholes[view - pools].cluster;
}

std::size_t Pools::pool_of(RankId rank) const {
  const auto after = std::upper_bound(x_first.begin(), x_first.end(), rank.value);
  return static_cast<std::size_t>(after - x_first.begin()) - 1;
}

std::size_t Pools::view_of(std::span<const RankId> ranks) const {
  const std::size_t first = pool_of(ranks.front());
  std::size_t slowest = first;
  bool one = true;
  for (const RankId rank : ranks) {
    const std::size_t k = pool_of(rank);
    one = one && k == first;
    if (k != slowest && is_slower(pool(k), pool(slowest))) slowest = k;
  }
  return one ? first : x_cluster.pools.size() + slowest;
}

std::vector<RankId> Pools::placed(std::span<const RankId> ranks, std::size_t view) const {
  std::vector<RankId> out;
  out.reserve(ranks.size());
  const std::size_t pools = x_cluster.pools.size();
  for (const RankId rank : ranks) {
    const std::size_t k = pool_of(rank);
    const RankId own(rank.value - x_first[k]);
    if (view < pools) {
      out.push_back(own);
      continue;
    }
    const Whole& whole = x_wholes[view - pools];
    const std::int32_t node = whole.cluster.accelerators_per_node;
    out.emplace_back(whole.first[k] + pool(k).node_of(own) * filled_nodes(pool(k), node) * node +
                     pool(k).local_of(own));
  }
  return out;
}

}  // namespace foretrain
