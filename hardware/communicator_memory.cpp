#include "hardware/communicator_memory.h"

#include <algorithm>

#include "hardware/collective_cost.h"

namespace foretrain {

Bytes communicator_bytes(const Cluster& cluster, const Placement& at,
                         const CommunicatorBuffers& buffers) {
  if (at.ranks < 2 || cluster.scale_up == ScaleUp::kTorus) return 0;
  const NcclGroup group = nccl_group_of(cluster, at);
  const std::int64_t members = std::max(1, at.per_node_max);
  const std::int64_t tree = at.per_node_max > 2 ? 2 : at.per_node_max == 2 ? 1 : 0;
  const std::int64_t ring = at.per_node_max > 1 ? 1 : 0;
  std::int64_t connections = group.channels * (ring + tree);
  if (at.nodes > 1) {
    // A ring enters a node and leaves it; a tree has up to three neighbours, both ways.
    const std::int64_t edges = 2 + (at.nodes > 2 ? 6 : 2);
    connections += (group.channels * edges + members - 1) / members;
  }
  const Bytes nvls = std::int64_t{group.nvls_channels} * group.nvls.channels * buffers.nvls_head;
  return connections * buffers.connection + nvls;
}

Bytes message_bytes(const Cluster& cluster, RankId rank, std::span<const RankId> peers,
                    const CommunicatorBuffers& buffers) {
  if (cluster.scale_up == ScaleUp::kTorus) return 0;
  const auto near = std::count_if(peers.begin(), peers.end(), [&](RankId peer) {
    return cluster.node_of(peer) == cluster.node_of(rank);
  });
  const bool far = near < static_cast<std::ptrdiff_t>(peers.size());
  constexpr std::int64_t kChannelsOfAPeer = 2;
  return near * kChannelsOfAPeer * buffers.connection + (far ? buffers.pool : 0);
}

}  // namespace foretrain
