// Prices of collectives and messages.
//
// NVIDIA devices: NCCL, below. On a torus: hardware/torus_collectives.h. Other devices:
// hardware/mesh_collectives.h and hardware/direct_messages.h.
//
// A collective: NCCL's choice of algorithm (hardware/nccl.h), then
//     t = (alpha^p + x^p)^(1/p)
//     alpha = latency_factor * the algorithm's least latency over the protocols
//     x     = max( bytes / (efficiency * A),  wire )
// where A is the algorithm's largest bandwidth and `wire` the time that the links cannot beat:
//     one node     bytes * f / link        f = 2(n-1)/n all-reduce, (n-1)/n all-gather and
//                                          reduce-scatter, 1 broadcast, reduce and NVLS all-reduce
//     many nodes   bytes * F / NICs of a node in use,  F = 2(N-1)/N, (n-g)/n or 1
// and what crosses oversubscribed levels of the network is slowed as hardware/topology.h says.
// latency_factor, power and efficiency are fitted to public logs by (architecture, one node or
// many): configs/nccl.json, residuals in docs/prices.md. The algorithm, n, N and g enter through
// alpha and A.
//
// All-to-all: start + peers * per_peer + max(bytes to own node / NVLink, bytes to others / NIC).
// Messages: start + network latency + the busiest port's bytes over its rate.
// Left out: SHARP, jitter, congestion between groups (the engine shares ports), SMs held by
// messages (0; NCCL takes about 2 a peer).
#pragma once

#include <ostream>
#include <span>

#include "hardware/nccl.h"
#include "hardware/placement.h"
#include "sim/cost/cost_model.h"

namespace foretrain {

/// Multipliers of the links' rates, for "what if".
struct LinkRates {
  double scale_up = 1, network = 1;
};

/// `steps`, where given, gets the price's derivation. A group of one member costs nothing.
Result<Cost> collective_cost(const Cluster& cluster, const LinkRates& rates,
                             const Placement& placement, const Collective& work,
                             std::ostream* steps);

/// `placements` holds one for each message.
Result<Cost> messages_cost(const Cluster& cluster, const LinkRates& rates,
                           std::span<const Placement> placements, const P2PBatch& work,
                           std::ostream* steps);

}  // namespace foretrain
