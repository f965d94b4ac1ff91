// configs/nccl.json, read once.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "hardware/nccl.h"

namespace foretrain {

/// Rows of per-architecture ceilings: one node, two nodes, more.
using NcclCeiling = std::array<std::array<double, 3>, 4>;

struct NcclGraphRow {
  Architecture architecture = Architecture::kHopper;
  ScaleUp scale_up = ScaleUp::kSwitch;
  double scale_up_gb_per_s = 0;
  std::int32_t ranks_per_node = 0;
  bool many_nodes = false;
  std::int32_t nics_per_node = 0;
  double nic_gb_per_s = 0;
  NcclGraph ring, tree, nvls;
  std::int32_t channels = 0, nvls_channels = 0;
  bool equal_channels = false;
};

/// The time law of hardware/collective_cost.h. `nvls_efficiency` is a share of a device's line rate
/// on one node and of NCCL's bandwidth on many.
struct TimeLaw {
  double latency_factor = 1, power = 1, per_rank_us = 0, efficiency = 1, nvls_efficiency = 1,
         nvls_power = 1, deviation = 0;
};

/// Shares of the bus and latencies that src/graph/tuning.cc writes out; hardware/nccl_tuning.cpp
/// has the formulas.
struct NcclTuningRules {
  double ring_ll = 1, ll128 = 1, tree = 1, tree_ll_divisor = 1;
  double tree_ll128_one_node = 1, tree_ll128_many_nodes = 1;
  double plain_tree = 1;
  double pat = 1, pat_depth_divisor = 1, pat_rank_us = 0;
  double collnet_newer = 1, collnet_gather = 1, collnet_rank_us = 0;
  std::int32_t nvls_gather_ranks = 0, collnet_ranks = 0;
};

/// What bounds the topology search.
struct NcclSearch {
  std::array<std::vector<double>, 4> intra, inter;  ///< speeds of a channel, GB/s, descending
  std::int32_t rings = 0, channels = 0, heads = 0;  ///< at most
  double doubled_from = 0, doubled_from_newer = 0;  ///< GB/s of a channel
  std::int32_t doubled_up_to = 0;                   ///< channels, of newer architectures
  std::int32_t nvls_hopper = 0, nvls_one_node = 0, nvls_many_nodes = 0;
  double pcie_share = 1;
  std::int32_t equal_rings = 0;  ///< members of a node
  double speed_step = 1;
};

/// Channels of a launch, by protocol and for messages.
struct NcclEnqueue {
  double narrow = 0, narrow_threads = 0;  ///< GB/s of all rings
  std::array<double, kNcclProtocols> threads{}, thread_bytes{};
  double channel_bytes = 0;
  std::int32_t fp8_ring_ranks = 0;
  double fp8_ring_factor = 1;
};
struct NcclPointToPoint {
  std::int32_t channels = 0, channels_without_switch = 0;
  Bytes nvlink_chunk = 0, other_chunk = 0;
  double least_one_node = 0, least_many_nodes = 0, most_one_node = 0, most_many_nodes = 0;
};

struct NcclConstants {
  NcclTuningRules tuning;
  NcclSearch search;
  NcclEnqueue enqueue;
  NcclPointToPoint point_to_point;
  using PerProtocol = std::array<double, kNcclProtocols>;
  std::array<PerProtocol, kNcclAlgorithms> base_us{};
  std::array<PerProtocol, kNcclAlgorithms> nvlink_us{}, pcie_us{}, network_us{};
  NcclCeiling tree_simple{}, ring_ll128{}, tree_ll128{}, nvls_tree{}, ll{};
  std::array<double, 4> nvls_efficiency{};
  std::array<std::vector<double>, kNcclProtocols> tree_correction;
  std::array<double, 3> net_overhead_us{};
  double plateau_newer = 1, plateau_volta = 1;
  std::vector<NcclGraphRow> graphs;

  /// By row of the tables; `many_nodes_cloud` is for EFA and Ethernet.
  std::array<TimeLaw, 4> one_node{}, many_nodes{}, many_nodes_cloud{};
  double usual_network_us = 0, usual_cloud_us = 0;  ///< latencies of the laws' networks
  double network_line_share = 1;
  std::int32_t nvls_tree_heads = 8;
  std::array<double, 4> message_scale_up{};
  double message_network = 1, message_pcie = 1;
  double message_scale_up_us = 0, message_network_us = 0, message_deviation = 0;
  std::array<double, 4> all_to_all_scale_up{}, all_to_all_power{};
  double fan_out_scale_up = 1, all_to_all_network = 1, all_to_all_us = 0, all_to_all_peer_us = 0;
  double all_to_all_deviation = 0;
  double memory_traffic = 3;
  /// Of groups within a mesh; `ring` and `relayed_ring` are a ring's part of it in the mean.
  struct MeshBusbw {
    std::int32_t ranks = 0, rings = 0;
    bool relayed = false;
    double gb_per_s = 0;
  };
  std::vector<MeshBusbw> mesh_busbw;
  double mesh_ring = 0, mesh_relayed_ring = 0;
  double mesh_host = 0;                            ///< GB/s through the host
  std::vector<double> few_ranks, few_ranks_share;  ///< of A, few members of a node on NVSwitch
};

const NcclConstants& nccl_constants();

/// Row of the per-architecture tables (Ada counts as Ampere, as in NCCL).
std::size_t nccl_row(Architecture architecture);

}  // namespace foretrain
