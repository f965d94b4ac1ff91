// Device memory that NCCL's communicators take: a formula of connections, not a measurement.
#pragma once

#include <span>

#include "hardware/cluster.h"
#include "hardware/placement.h"

namespace foretrain {

/// configs/memory.json, `nccl`.
struct CommunicatorBuffers {
  Bytes connection = 0;  ///< one channel to one neighbour: LL, LL128 and Simple together
  Bytes nvls_head = 0;   ///< NVLS, of one channel and one head
  Bytes pool = 0;        ///< of messages with all ranks of other nodes, both ways
};

/// One member's buffers of a communicator over the placed group. Every channel has a ring, which
/// receives from one neighbour, and a tree, which within a node is a chain: a parent and a child.
/// Between nodes what is sent has a buffer too, and a node's trees have a parent and two children;
/// a member holds its share of these. NVLS, where the scale-up switches have it, adds
/// channels x heads x `nvls_head`. 0 for one member, and where there is no NCCL (tori).
/// Against what is known of one node of A100 (24 channels): 2 members 441 MiB, observed 544; more
/// 662, observed 688. Other libraries than NCCL are taken as it. Left out: algorithms that a
/// communicator never uses, which NCCL since 2.22 connects only when they are first used; user
/// buffers; what the library holds itself.
Bytes communicator_bytes(const Cluster& cluster, const Placement& at,
                         const CommunicatorBuffers& buffers);

/// One rank's buffers for messages: the pool where any of `peers` is on another node, and two
/// channels of connections for each of those on its own. 0 on tori.
Bytes message_bytes(const Cluster& cluster, RankId rank, std::span<const RankId> peers,
                    const CommunicatorBuffers& buffers);

}  // namespace foretrain
