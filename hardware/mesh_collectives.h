// Collectives where every member reaches every other directly and NCCL is not the library: RCCL on
// Infinity Fabric, HCCL on HCCS or Unified Bus, MPI on a host.
//
// In a node of g members (of unequal nodes the slowest counts), each with a port of R GB/s or, in a
// full mesh, one link of L to each peer (so that R = (g-1) L and two members use ONE link):
//     inside = phases * bytes * (g-1)/g / (e R)
// phases: 2 all-reduce, 1 all-gather and reduce-scatter, 2 broadcast and reduce (scatter, gather).
// Between N nodes, halving and doubling or rings over the NICs that a node's members reach, of the
// node whose NICs take longest (`node_bytes`):
//     across = bytes * F / (e_n NICs),   F = 2(N-1)/N all-reduce, (n-g)/n gathers, 1 broadcast
// stretched by the network's levels (hardware/topology.h). RCCL's rings go through every member, so
// that F = 2(n-1)/n, (n-1)/n, 1. All-to-all sends bytes/n to each peer.
//     t = alpha + phases log2(N) steps + max(inside, across)    pipelined: RCCL, MPI, all-to-all
//                                        inside + across        one after the other: HCCL
// Constants: configs/mesh.json. MI300X, 8 GPUs and 2 GPUs measured 312.9 and 47.7 GB/s busbw: one
// efficiency of 0.72 fits both within 3.5 %.
// Left out: rings through the mesh for small groups, multi-path routes over third members, the
// choice of algorithm by size, which members of a partly connected mesh take part (MI250X).
#pragma once

#include <ostream>

#include "hardware/collective_cost.h"

namespace foretrain {

struct MeshLaw {
  double scale_up_efficiency = 1, network_efficiency = 1;
  double alpha_us = 0;  ///< start of a collective
  double step_us = 0;   ///< of one of the log2(N) steps between nodes, beside the network's latency
  double message_us = 0, message_deviation = 0;
  double memory_passes = 1;
  std::int32_t sms_held = 0;
  bool pipelined = true;
  bool network_rings = false;  ///< rings through all members, not halving, between nodes
  double deviation = 0;
};
const MeshLaw& mesh_law(Architecture architecture);

/// Line rate in GB/s between two members of `placement` that lie on one node.
double mesh_pair_gb_per_s(const Cluster& cluster, const LinkRates& rates,
                          const Placement& placement);

/// `bytes` of the full array, more than one member.
Cost mesh_collective_cost(const Cluster& cluster, const LinkRates& rates,
                          const Placement& placement, CollectiveKind kind, double bytes,
                          std::ostream* steps);

}  // namespace foretrain
