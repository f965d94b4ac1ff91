// NCCL's own choice of algorithm, protocol and channels.
//
// For each (algorithm, protocol) NCCL keeps a latency L and a bandwidth A and picks the smallest
// L + bytes / A (src/graph/tuning.cc, src/enqueue.cc of NCCL 2.28.9; constants in
// configs/nccl.json; formulas in hardware/nccl_tuning.cpp). The estimate RANKS algorithms. It is
// 20-60 % too fast below 256 MiB, so the price is not taken from it: hardware/collective_cost.h has
// a law fitted to measurements for that. CollNet (SHARP) follows the same source, but no search
// result with it was at hand to compare.
// Left out: symmetric-memory and copy-engine kernels, tuner plugins, NCCL's own environment
// variables, and that NVLS cannot add every type.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "hardware/cluster.h"
#include "sim/program/work.h"

namespace foretrain {

/// In NCCL's order, which also breaks ties.
enum class NcclAlgorithm : std::uint8_t {
  kTree,
  kRing,
  kCollNetDirect,  ///< all members of a node talk to the switches' reduction (SHARP)
  kCollNetChain,   ///< a chain within the node, then SHARP
  kNvls,           ///< NVSwitch multicast and reduction; across nodes with SHARP only
  kNvlsTree,
  kPat,
};
enum class NcclProtocol : std::uint8_t { kLl, kLl128, kSimple };

inline std::size_t index_of(NcclAlgorithm a) { return static_cast<std::size_t>(a); }
inline std::size_t index_of(NcclProtocol p) { return static_cast<std::size_t>(p); }
inline constexpr int kNcclAlgorithms = 7;
inline constexpr int kNcclProtocols = 3;
std::string_view name_of(NcclAlgorithm algorithm);
std::string_view name_of(NcclProtocol protocol);

/// NCCL_TOPO_PATTERN_TREE: neither split nor balanced.
inline constexpr std::int32_t kNcclTreePattern = 3;

/// A result of NCCL's topology search: `channels` paths of so many GB/s each, before duplication.
struct NcclGraph {
  std::int32_t pattern =
      0;  ///< NCCL's number: 1 balanced tree, 2 split tree, 3 tree, 4 ring, 5 NVLS, 6 CollNet
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
  ScaleUp scale_up = ScaleUp::kSwitch;  ///< kPcie also for members of a mesh without links
  MeshUse mesh{};
  bool sharp = false;           ///< the network's switches reduce
  bool equal_channels = false;  ///< every ring visits the ranks in the same order
  NcclGraph ring, tree, nvls, collnet;
  std::int32_t channels = 1, nvls_channels = 0;  ///< CTAs, and so SMs, at full size
  bool operator==(const NcclGroup&) const = default;
};

/// The graphs for `ranks` members on `nodes` nodes, at most `ranks_per_node` on each, which reach
/// `nics_per_node` NICs. From the table of search results where it has the shape, else by the
/// search's own rule: the channel speed and count that maximise the bandwidth which the links
/// allow. `mesh`: what the members have of one; without it they are the first of their nodes.
NcclGroup nccl_group(const Cluster& cluster, std::int32_t ranks, std::int32_t nodes,
                     std::int32_t ranks_per_node, std::int32_t nics_per_node,
                     const MeshUse* mesh = nullptr);

/// The same without the table, for the shapes it lacks.
NcclGroup nccl_group_by_rule(const Cluster& cluster, std::int32_t ranks, std::int32_t nodes,
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

/// The choice for `bytes` of the full array (Collective::count). Not for all-to-all. Sums in 8 bits
/// lose precision along a ring: above 8 ranks NCCL takes it only where nothing else adds.
NcclChoice choose_nccl(const NcclGroup& group, CollectiveKind kind, Bytes bytes,
                       DType dtype = DType::kBf16);

/// SMs that the collective holds. All channels, less while each would move under threads * T bytes
/// (T = 64 Simple, 8 LL and LL128, 8 n Ring/LL) or 16 KiB of traffic; NVLS always all of its own.
std::int32_t nccl_channels(const NcclGroup& group, const NcclChoice& choice, CollectiveKind kind,
                           Bytes bytes);

/// SMs that point-to-point transfers hold: some channels for each of `peers` peers that are served
/// at once, at most the communicator's (its channels rounded up to a power of two). For each peer
/// as many as leave every rank of the communicator its own, no fewer bytes a channel than 1/8 chunk
/// (1/2 across nodes), doubled while a channel would carry more than 32 chunks (1 across nodes); at
/// most 2 without NVSwitch or once any peer is on another node. Chunk: 512 KiB over NVLink, 128 KiB
/// over PCIe and across nodes. A channel serves up to 8 transfers. Source: NCCL 2.28.9,
/// src/graph/paths.cc, src/enqueue.cc.
std::int32_t nccl_p2p_channels(const NcclGroup& group, std::int32_t peers, Bytes bytes_each);

/// Whether the algorithm reduces in NVSwitch.
bool is_nvls(NcclAlgorithm algorithm);

}  // namespace foretrain
