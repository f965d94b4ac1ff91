// NCCL's latency L and bandwidth A of each (algorithm, protocol): src/graph/tuning.cc of NCCL
// 2.28.9; the numbers below stand in configs/nccl.json, `tuning`. With C channels of w GB/s (w:
// within the node up to two nodes and for CollNet, else between nodes), n ranks on N nodes, g a
// node, B = C w and s = 2(n-1) all-reduce, n-1 gathers:
//   Ring     A = B n / s, LL half of B, LL128 0.92 B, both under ceilings
//            L = base + (s - x) hop + x net,  x = 2(N-1) or N-1
//   Tree     A = 0.92 B / 2 under ceilings     L = base + 2 ((g-1) hop + log2(N) net)
//   NVLS     A = heads min(intra eff (heads-1)/heads 2, inter) n / s        L = hop (+ net)
//   NVLSTree the same with a ceiling a head    L = base + hop + 2 log2(N) net
//   PAT      A = 0.75 B                        L = base + log2(N) net / 3.5 + 2.8 n
//   CollNetDirect  A = B / (r - (r-1)/2) / 2 with r = g/C, 0.85 of it from Hopper on; gathers
//                  A = g min(intra, 0.9 inter) L = base + 2 (min(1, g-1) hop + 0.4 (g-1)) + net
//   CollNetChain   A = B / 2                   L = base + 2 (g-1) hop + net
#include <algorithm>
#include <bit>
#include <cmath>

#include "hardware/nccl_constants.h"

namespace foretrain {
namespace {

const NcclTuningRules& tuning_rules() { return nccl_constants().tuning; }

std::size_t node_column(std::int32_t nodes) { return nodes == 1 ? 0U : nodes == 2 ? 1U : 2U; }

std::int32_t log2_floor(std::int32_t n) {
  return static_cast<std::int32_t>(std::bit_width(static_cast<std::uint32_t>(n))) - 1;
}

bool gathers(CollectiveKind kind) {
  return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter;
}

double steps_of(const NcclGroup& g, CollectiveKind kind) {
  if (kind == CollectiveKind::kAllReduce) return 2.0 * (g.ranks - 1);
  return gathers(kind) ? g.ranks - 1.0 : g.ranks;
}

bool offered(const NcclGroup& g, CollectiveKind kind, NcclAlgorithm a, NcclProtocol p) {
  if (p == NcclProtocol::kLl128 && g.scale_up == ScaleUp::kPcie && g.ranks_per_node > 1) {
    return false;
  }
  switch (a) {
    case NcclAlgorithm::kRing:
      return true;
    case NcclAlgorithm::kTree:
      return kind == CollectiveKind::kAllReduce;
    case NcclAlgorithm::kCollNetDirect:
    case NcclAlgorithm::kCollNetChain:
      return p == NcclProtocol::kSimple && g.sharp && g.nodes > 1 && g.collnet.channels > 0 &&
             g.ranks_per_node <= tuning_rules().collnet_ranks &&
             (kind == CollectiveKind::kAllReduce ||
              (gathers(kind) && a == NcclAlgorithm::kCollNetDirect));
    case NcclAlgorithm::kNvls:
      return p == NcclProtocol::kSimple && (g.nodes == 1 || g.sharp) && g.nvls.channels >= 2 &&
             (kind == CollectiveKind::kAllReduce ||
              (gathers(kind) && g.nodes == 1 &&
               g.ranks_per_node <= tuning_rules().nvls_gather_ranks));
    case NcclAlgorithm::kNvlsTree:
      return p == NcclProtocol::kSimple && kind == CollectiveKind::kAllReduce && g.nodes > 1 &&
             g.nvls.channels >= 2;
    case NcclAlgorithm::kPat:
      return p == NcclProtocol::kSimple && gathers(kind) && g.ranks_per_node == 1 && g.nodes > 1;
  }
  return false;
}

double ll_ceiling(const NcclGroup& g) {
  const NcclConstants& c = nccl_constants();
  const std::size_t row = g.nodes == 1 ? nccl_row(g.architecture) : g.cpu == Cpu::kAmd ? 1U : 0U;
  return c.ll.at(row).at(node_column(g.nodes));
}

double ring_bandwidth(const NcclGroup& g, CollectiveKind kind, NcclProtocol p) {
  const NcclConstants& c = nccl_constants();
  double bus = g.ring.channels * (g.nodes <= 2 ? g.ring.intra : g.ring.inter);
  if (p == NcclProtocol::kLl) bus = std::min(ll_ceiling(g), tuning_rules().ring_ll * bus);
  if (p == NcclProtocol::kLl128) {
    const double cap = c.ring_ll128.at(nccl_row(g.architecture)).at(node_column(g.nodes));
    bus = std::min(tuning_rules().ll128 * bus, g.ring.channels * cap);
  }
  return bus * g.ranks / steps_of(g, kind);
}

double tree_bandwidth(const NcclGroup& g, NcclProtocol p) {
  const NcclConstants& c = nccl_constants();
  const std::size_t row = nccl_row(g.architecture), column = node_column(g.nodes);
  double bus = g.tree.channels * (g.nodes <= 2 ? g.tree.intra : g.tree.inter);
  bus = std::min(tuning_rules().tree * bus, g.tree.channels * c.tree_simple.at(row).at(column));
  if (p == NcclProtocol::kLl) bus = std::min(bus / tuning_rules().tree_ll_divisor, ll_ceiling(g));
  if (p == NcclProtocol::kLl128) {
    bus = std::min(bus * (g.nodes == 1 ? tuning_rules().tree_ll128_one_node
                                       : tuning_rules().tree_ll128_many_nodes),
                   g.tree.channels * c.tree_ll128.at(row).at(column));
  }
  if (g.tree.pattern == kNcclTreePattern) bus *= tuning_rules().plain_tree;
  return bus * 0.5;
}

double nvls_bandwidth(const NcclGroup& g, CollectiveKind kind, bool tree) {
  const NcclConstants& c = nccl_constants();
  const std::size_t row = nccl_row(g.architecture), column = node_column(g.nodes);
  const double heads = g.nvls.channels;
  const double local = g.ranks_per_node;
  double speed = g.nvls.intra * c.nvls_efficiency.at(row) * (heads - 1) / heads;
  speed *= gathers(kind) ? (local - 1) / local : 2;
  speed = std::min(speed, g.nvls.inter * (tree && g.nodes <= 2 ? 2 : 1));
  if (tree) speed = std::min(speed, c.nvls_tree.at(row).at(column));
  return gathers(kind) ? heads * speed : heads * speed * g.ranks / (2.0 * (g.ranks - 1));
}

double collnet_direct_bandwidth(const NcclGroup& g, CollectiveKind kind) {
  if (gathers(kind)) {
    return g.ranks_per_node *
           std::min(g.collnet.intra, tuning_rules().collnet_gather * g.collnet.inter);
  }
  const double ratio = static_cast<double>(g.ranks_per_node) / g.collnet.channels;
  double bus = g.collnet.channels * g.collnet.intra / (ratio - (ratio - 1) / 2);
  if (nccl_row(g.architecture) >= nccl_row(Architecture::kHopper))
    bus *= tuning_rules().collnet_newer;
  return bus * 0.5;
}

double bandwidth(const NcclGroup& g, CollectiveKind kind, NcclAlgorithm a, NcclProtocol p) {
  switch (a) {
    case NcclAlgorithm::kRing:
      return ring_bandwidth(g, kind, p);
    case NcclAlgorithm::kTree:
      return tree_bandwidth(g, p);
    case NcclAlgorithm::kCollNetDirect:
      return collnet_direct_bandwidth(g, kind);
    case NcclAlgorithm::kCollNetChain:
      return g.collnet.channels * g.collnet.intra * 0.5;
    case NcclAlgorithm::kNvls:
      return nvls_bandwidth(g, kind, false);
    case NcclAlgorithm::kNvlsTree:
      return nvls_bandwidth(g, kind, true);
    case NcclAlgorithm::kPat:
      return g.tree.channels * (g.nodes <= 2 ? g.tree.intra : g.tree.inter) * tuning_rules().pat;
  }
  return 0;
}

/// Broadcast and reduce are pipelined around the ring: one hop where all channels are equal.
double ring_steps_us(const NcclGroup& g, CollectiveKind kind, NcclProtocol p, double inside,
                     double across) {
  const NcclConstants& c = nccl_constants();
  const double steps = steps_of(g, kind);
  if (kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce) {
    const double hop = g.nodes > 1 ? across : inside;
    return g.equal_channels ? hop : steps * hop;
  }
  const double rounds = kind == CollectiveKind::kAllReduce ? 2 : 1;
  const double crossings = g.nodes == 1 ? 0 : rounds * (g.nodes - 1);
  const double overhead = g.nodes == 1 ? 0
                                       : c.net_overhead_us.at(static_cast<std::size_t>(g.cpu)) *
                                             (p == NcclProtocol::kSimple ? 3 : 1);
  return (steps - crossings) * std::max(inside, overhead) + crossings * across;
}

double latency(const NcclGroup& g, CollectiveKind kind, NcclAlgorithm a, NcclProtocol p) {
  const NcclConstants& c = nccl_constants();
  const bool pcie = g.scale_up == ScaleUp::kPcie || g.ranks_per_node == 1;
  const double inside = (pcie ? c.pcie_us : c.nvlink_us).at(index_of(a)).at(index_of(p));
  const std::size_t across_as = a == NcclAlgorithm::kRing && g.ranks_per_node == 1
                                    ? index_of(NcclAlgorithm::kTree)
                                    : index_of(a);
  const double across = c.network_us.at(across_as).at(index_of(p));
  const double base = c.base_us.at(index_of(a)).at(index_of(p));
  const double depth = log2_floor(g.nodes);
  switch (a) {
    case NcclAlgorithm::kRing:
      return base + ring_steps_us(g, kind, p, inside, across);
    case NcclAlgorithm::kTree: {
      const double per_node = static_cast<double>(g.ranks) / g.nodes - 1;
      return base + 2 * (per_node * inside + depth * across);
    }
    case NcclAlgorithm::kCollNetDirect:
      return base +
             2 * (std::min(1, g.ranks_per_node - 1) * inside +
                  tuning_rules().collnet_rank_us * (g.ranks_per_node - 1)) +
             across;
    case NcclAlgorithm::kCollNetChain:
      return base + 2 * (g.ranks_per_node - 1) * inside + across;
    case NcclAlgorithm::kNvls:
      return inside + (g.nodes > 1 ? across : 0);
    case NcclAlgorithm::kNvlsTree:
      return base + inside + 2 * depth * across;
    case NcclAlgorithm::kPat:
      return base + depth * across / tuning_rules().pat_depth_divisor +
             tuning_rules().pat_rank_us * g.ranks;
  }
  return base;
}

}  // namespace

NcclTuning nccl_tuning(const NcclGroup& group, CollectiveKind kind, NcclAlgorithm algorithm,
                       NcclProtocol protocol) {
  if (group.ranks < 2 || !offered(group, kind, algorithm, protocol)) return {};
  return {latency(group, kind, algorithm, protocol), bandwidth(group, kind, algorithm, protocol)};
}

}  // namespace foretrain
