// Collectives on a torus of accelerators: the ICI of TPUs, and NICs between slices.
//
// On axis a the group has n_a members, s_a apart; with L GB/s a link and direction,
//     r_a = L (2 if the members close to a ring, else 1) / s_a
// (both directions of a ring carry data at once; an open chain moves what the cut after its first
// member lets through; between members s_a apart the groups that interleave share each link).
// The array is split over the axes so that all finish together:
//     t = hops + phases * bytes * max( (n-1)/n / sum of r_a,   max over a of (n_a - 1)/n / r_a )
// phases: 2 all-reduce, broadcast and reduce, 1 all-gather and reduce-scatter. For rings on k equal
// axes an all-reduce is 2 (n-1)/n bytes / (k 2 L); without wrap twice that.
// The second term: the axis reduced last still carries its part.
// All-to-all: the cut across each axis, (n/n_a) r_a, passes a quarter of all bytes one way:
//     t = hops + max( bytes (n-1)/n / sum of r_a,   max over a of n_a bytes / (4 r_a) )
// Hops: hop latency times the members of each axis, halved on rings, times s_a.
// Between S slices the shards cross the data-centre network after the reduction inside and before
// the gathering: F bytes over the NICs of the hosts that a slice's members sit on.
// Constants: configs/torus.json. Left out: bidirectional contention of two groups on one axis at
// the same moment (ports are shared as a whole), routes around, twisted tori, SparseCore offload.
#pragma once

#include <ostream>

#include "hardware/collective_cost.h"

namespace foretrain {

struct TorusLaw {
  double efficiency = 1, network_efficiency = 1;
  double start_us = 0, network_start_us = 0, message_us = 0, message_deviation = 0;
  double memory_passes = 1, deviation = 0;
};
const TorusLaw& torus_law();

/// Line rate in GB/s of one link, one direction.
double torus_link_gb_per_s(const Cluster& cluster, const LinkRates& rates);

/// `bytes` of the full array, more than one member.
Cost torus_collective_cost(const Cluster& cluster, const LinkRates& rates,
                           const Placement& placement, CollectiveKind kind, double bytes,
                           std::ostream* steps);

}  // namespace foretrain
