// NCCL's own choice of algorithm, protocol and channels.
//
// For each (algorithm, protocol) NCCL keeps a latency L and a bandwidth A and picks the smallest
// L + bytes / A (src/graph/tuning.cc, src/enqueue.cc of NCCL 2.28.9; constants in
// configs/nccl.json). The estimate RANKS algorithms. It is 20-60 % too fast below 256 MiB, so the
// price is not taken from it: hardware/collective_cost.h has a law fitted to measurements for that.
// Left out: CollNet (SHARP), symmetric-memory and copy-engine kernels, tuner plugins, NCCL's own
// environment variables.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "hardware/cluster.h"
#include "sim/program/work.h"

namespace foretrain {

/// In NCCL's order, which also breaks ties.
enum class NcclAlgorithm : std::uint8_t { kTree, kRing, kNvls, kNvlsTree, kPat };
enum class NcclProtocol : std::uint8_t { kLl, kLl128, kSimple };
inline constexpr int kNcclAlgorithms = 5;
inline constexpr int kNcclProtocols = 3;
std::string_view name_of(NcclAlgorithm algorithm);
std::string_view name_of(NcclProtocol protocol);

/// A result of NCCL's topology search: `channels` paths of so many GB/s each, before duplication.
struct NcclGraph {
  std::int32_t pattern =
      0;  ///< NCCL's number: 1 balanced tree, 2 split tree, 3 tree, 4 ring, 5 NVLS
  std::int32_t channels = 0;
  double intra = 0, inter = 0;  ///< GB/s of one channel within a node and between nodes
  bool operator==(const NcclGraph&) const = default;
};

/// What the choice depends on.
struct NcclGroup {
  std::int32_t ranks = 1, nodes = 1;
  std::int32_t ranks_per_node = 1;  ///< the largest number on one node
  std::int32_t nics_per_node = 1;   ///< NICs that the members of a node can use
  Architecture architecture = Architecture::kHopper;
  Cpu cpu = Cpu::kIntel;
  ScaleUp scale_up = ScaleUp::kSwitch;
  NcclGraph ring, tree, nvls;
  std::int32_t channels = 1, nvls_channels = 0;  ///< CTAs, and so SMs, at full size
  bool operator==(const NcclGroup&) const = default;
};

/// The graphs for `ranks` members on `nodes` nodes, at most `ranks_per_node` on each, which reach
/// `nics_per_node` NICs. From the table of search results where it has the shape, else by the
/// search's own rule: the channel speed and count that maximise the bandwidth which the links
/// allow.
NcclGroup nccl_group(const Cluster& cluster, std::int32_t ranks, std::int32_t nodes,
                     std::int32_t ranks_per_node, std::int32_t nics_per_node);

/// L in us and A in GB/s; A = 0 where NCCL does not offer the pair for this collective.
struct NcclTuning {
  double latency_us = 0, gb_per_s = 0;
};
NcclTuning nccl_tuning(const NcclGroup& group, CollectiveKind kind, NcclAlgorithm algorithm,
                       NcclProtocol protocol);

struct NcclChoice {
  NcclAlgorithm algorithm = NcclAlgorithm::kRing;
  NcclProtocol protocol = NcclProtocol::kSimple;
  double time_us = 0;  ///< NCCL's own estimate
  bool operator==(const NcclChoice&) const = default;
};

/// The choice for `bytes` of the full array (Collective::count). Not for all-to-all.
NcclChoice choose_nccl(const NcclGroup& group, CollectiveKind kind, Bytes bytes);

/// SMs that the collective holds: channels shrink while each would move too little.
std::int32_t nccl_channels(const NcclGroup& group, const NcclChoice& choice, Bytes bytes);

}  // namespace foretrain
