// Messages between accelerators whose links are not NVIDIA's: a full mesh, a torus, a host.
#pragma once

#include <ostream>
#include <span>

#include "hardware/collective_cost.h"

namespace foretrain {

/// start + network latency + the longest of
///     a channel's bytes over its route: in a mesh the pair's one link; on a torus a link over the
///                                       hops it passes, which neighbours' equal shifts share
///     a port's bytes over all its links, or over its NIC
/// `placements` holds one for each message.
/// Left out: routes over third members, several routes on a torus.
Cost direct_messages_cost(const Cluster& cluster, const LinkRates& rates,
                          std::span<const Placement> placements, const P2PBatch& work,
                          std::ostream* steps);

}  // namespace foretrain
