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

/// Bytes that a rank (scale-up), a node and its NICs (network) must send.
struct Traffic {
  double rank_scale_up = 0;  ///< bytes out of one rank over its scale-up port
  double node_network = 0;   ///< bytes out of one node, the most of any
  double nic_network = 0;    ///< bytes through one NIC port, the most of any
  double rank_network = 0;   ///< bytes of one rank through its NIC port, the most of any
};

/// busbw = bytes / time * this: 2(n-1)/n all-reduce, (n-1)/n gathers and all-to-all, else 1.
double bus_factor(CollectiveKind kind, double ranks);

/// Bytes that must cross between a node of `members` and the others, B of the array, n ranks on N
/// nodes: 2(N-1)/N B all-reduce, (n-members)/n B gathers, B broadcast and reduce,
/// members (n-members)/n B all-to-all. Gathers bring the most to the emptiest node.
double node_bytes(const Placement& at, std::int32_t members, CollectiveKind kind, double bytes);

/// With B the bytes of the array, n ranks on N nodes, g on the fullest. A rank sends B * bus factor
/// inside its node, B for an all-reduce by NVLS. A node sends, all-reduce: Ring 2(n-1)/n B; trees
/// B on two nodes and 2 B on more (half the nodes are inner ones of each of two trees); SHARP B.
/// Gathers by rings (n-1)/n B; all else `node_bytes`.
Traffic traffic_of(const Placement& at, CollectiveKind kind, NcclAlgorithm algorithm, double bytes);

/// Counts a node of that shape which sends so many bytes to others.
void add_node(const NodeShape& shape, double bytes, Traffic& traffic);

/// The same between members that reach each other directly: `node_bytes` over the network.
Traffic direct_traffic_of(const Placement& at, CollectiveKind kind, double bytes);

/// Line rate of one rank's scale-up port, GB/s.
double scale_up_rate(const Cluster& cluster, const LinkRates& rates);

/// One-way latency of the network between members; 0 within a node.
double network_latency_us(const Cluster& cluster, const Placement& at);

/// Share of kWhole of a port of that rate which `bytes` take over `seconds`, averaged; with several
/// sharers of the port at most an equal part.
std::int32_t share_of(double bytes, double rate_gb_per_s, double seconds, std::int32_t sharers);

/// What one rank sends and receives over its link to the host: what NICs, which hang on its lanes,
/// carry of it, and where accelerators reach each other over PCIe what goes to peers.
void add_host_link(const Cluster& cluster, double out, double in, Cost& cost);

}  // namespace foretrain
