// Accelerators of a node whose pairs have unequal numbers of links: the hybrid cube mesh of eight
// V100 (DGX-1V, P3), where a pair has 2, 1 or none.
//
// The way of a pair, as NCCL has it (2.28.9, src/graph/paths.cc): all links between the two; else
// through one other member that both have links to, of those the one whose narrower hop has most
// (PATH_NVB: the receiver's buffer lies on it, src/transport/p2p.cc, P2P_INTERMEDIATE); else
// through the host's memory, as peers across sockets do not write to each other (PATH_PXB).
// Rings of a group, as its search has them (src/graph/search.cc): as many as go over the members'
// own links at once, each with a link of every hop for itself; where there is none, as many as go
// with relayed hops; where there is none of those, one through the host.
// On a DGX-1V that finds 1, 2, 4, 2 (relayed), 2, 4 and 6 rings for its first 2 to 8 members:
// vTrain's tables of V100 measured 22.6, 45, 85, 37, 46, 87 and 135 GB/s.
// Left out: links of accelerators that are no members but that others use at the same time, what a
// relayed message takes of the port of the one it passes, trees that rings do not follow.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/result.h"

namespace foretrain {

/// Links between each two accelerators of a node, row by row; symmetric, 0 on the diagonal.
using LinkMatrix = std::vector<std::vector<std::int32_t>>;

/// Reads `mesh_links`, a row for each of `accelerators` or more (a smaller node has the first of
/// them) of at most `most` links each. Anything but a symmetric matrix of such is an error.
Result<LinkMatrix> read_links(const Json& json, const std::string& source,
                              const std::string& pointer, std::int32_t accelerators,
                              std::int32_t most);
Json to_json(const LinkMatrix& links);

/// What members of one node have of its mesh.
struct MeshUse {
  std::int32_t rings = 0;       ///< at once, each one way around; 0: through the host
  bool relayed = false;         ///< with hops over others
  std::int32_t pair_links = 0;  ///< of two members' way in the whole node; 0: through the host
  /// Of an exchange, a message from every member to every other: 1024 times the messages a link
  /// that the busiest links carry, and the messages of a member that go through the host.
  std::int32_t exchanged = 0, through_host = 0;
  std::strong_ordering operator<=>(const MeshUse&) const = default;
};
inline constexpr std::int32_t kExchangeUnit = 1024;

/// `members` are local indices, distinct; fewer than two use nothing.
MeshUse mesh_use(const LinkMatrix& links, std::span<const std::int32_t> members);
/// Of the first `members` of the node.
MeshUse mesh_use(const LinkMatrix& links, std::int32_t members);

/// Of groups on several nodes: the fewer rings, the fuller links.
MeshUse slower_of(const MeshUse& a, const MeshUse& b);

}  // namespace foretrain
