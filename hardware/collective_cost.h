// Prices of collectives and messages: device time, from the arrival of the last member to the end.
//
// NVIDIA devices: NCCL, below. On a torus: hardware/torus_collectives.h. Other devices:
// hardware/mesh_collectives.h and hardware/direct_messages.h.
//
// A collective: NCCL's choice of algorithm (hardware/nccl.h), then
//     t = (alpha^p + x^p)^(1/p) + fill
//     alpha = latency_factor * L0 + (L - L0)  (+ network latency)
//     x     = max( bytes / (efficiency * A),  port,  NICs )
//     fill  = min( per_rank * n, x ) for NVLS across nodes
// L: the algorithm's least latency over the protocols, A: its largest bandwidth, both NCCL's own;
// L0: the least of any algorithm. Small messages, which the factor is measured with, run at L0 (so
// do those of NVLS, which hands them to others: L = L0 there); the many steps of a ring that large
// ones take count once, as where NCCL chooses by them. Fill: chunks through the trees of n ranks;
// they shrink with the message, so that it takes no longer than the transfer.
// port: what a rank sends over its line rate; an all-reduce by NVLS, which is limited by nothing
// else, reaches nvls_efficiency of it. NICs: what the algorithm sends out of a node
// (hardware/link_traffic.h) over 0.97 of the line rate of the NICs that its members reach, of the
// node where that takes longest. What crosses oversubscribed levels of the network is slowed as
// hardware/topology.h says.
// Across nodes no less than what as many members as a node holds would take in one, at x or faster:
// the same steps over nearer links.
// The power mean with p < 1 stands for the slow middle: LL and LL128 move half and 0.92 of the
// bytes that Simple does, chunks shrink with the message and fill the pipeline worse.
// latency_factor, p and the efficiencies are fitted to public logs by (architecture, one node, many
// nodes by fabric): configs/nccl.json; n, N and g enter through L, A and the traffic. The floor is
// that of nccl-tests, launched from C++ on a busy stream: PyTorch's own launch, 8 to 25 us in logs
// of small messages, is host time and not in the price.
//
// All-to-all: the same mean of start + peers * per_peer and
//     max(bytes to own node / (share of NVLink), bytes to others / (share of NICs)).
// Messages: start + network latency + the busiest port's bytes over its rate; on a mesh (and there
// an all-to-all too) no faster than the links of the pairs, hardware/link_mesh.h.
// Left out: jitter, congestion between groups (the engine shares ports).
#pragma once

#include <ostream>
#include <span>

#include "hardware/link_traffic.h"
#include "sim/base/result.h"

namespace foretrain {

/// What NCCL would see of a placed group. Where nodes hold unequal numbers of members the NICs are
/// the fewest that any reaches: NCCL uses as many channels as every node can.
NcclGroup nccl_group_of(const Cluster& cluster, const Placement& placement);

/// `steps`, where given, gets the price's derivation. A group of one member costs nothing.
Result<Cost> collective_cost(const Cluster& cluster, const LinkRates& rates,
                             const Placement& placement, const Collective& work,
                             std::ostream* steps);

/// The price with a given choice, as where NCCL_ALGO forces one. Not for all-to-all; two members or
/// more.
Cost nccl_cost(const Cluster& cluster, const LinkRates& rates, const Placement& placement,
               const Collective& work, const NcclChoice& choice, std::ostream* steps);

/// `placements` holds one for each message.
Result<Cost> messages_cost(const Cluster& cluster, const LinkRates& rates,
                           std::span<const Placement> placements, const P2PBatch& work,
                           std::ostream* steps);

}  // namespace foretrain
