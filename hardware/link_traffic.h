// What a collective sends over the links, and what the links carry.
#pragma once

#include "hardware/nccl.h"
#include "hardware/placement.h"
#include "sim/cost/cost_model.h"

namespace foretrain {

/// Multipliers of the links' rates, for "what if".
struct LinkRates {
  double scale_up = 1, network = 1;
};

/// Bytes that a rank (scale-up) and a node (network) must send.
struct Traffic {
  double rank_scale_up = 0;  ///< bytes out of one rank over its scale-up port
  double node_network = 0;   ///< bytes out of one node that the algorithm sends
  double node_least = 0;     ///< the least that any algorithm can send
};

/// busbw = bytes / time * this: 2(n-1)/n all-reduce, (n-1)/n gathers and all-to-all, else 1.
double bus_factor(CollectiveKind kind, double ranks);

/// With B the bytes of the array, n ranks on N nodes, g on the fullest. A rank sends B * bus factor
/// inside its node, B for an all-reduce by NVLS. A node sends, all-reduce: Ring 2(n-1)/n B; trees
/// B on two nodes and 2 B on more (half the nodes are inner ones of each of two trees); SHARP B.
/// Gathers (n-g)/n B, Ring (n-1)/n B; broadcast and reduce B; all-to-all g (n-g)/n B.
Traffic traffic_of(const Placement& at, CollectiveKind kind, NcclAlgorithm algorithm, double bytes);

/// Line rate of one rank's scale-up port, GB/s.
double scale_up_rate(const Cluster& cluster, const LinkRates& rates);

/// One-way latency of the network between members; 0 within a node.
double network_latency_us(const Cluster& cluster, const Placement& at);

/// Share of kWhole of a port of that rate which `bytes` take over `seconds`, averaged; with several
/// sharers of the port at most an equal part.
std::int32_t share_of(double bytes, double rate_gb_per_s, double seconds, std::int32_t sharers);

}  // namespace foretrain
