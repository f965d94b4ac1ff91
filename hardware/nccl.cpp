#include "hardware/nccl.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "hardware/nccl_constants.h"

namespace foretrain {
namespace {

constexpr double kRingLlShare = 0.5;  // half of each LL line is flags
constexpr double kLl128Share = 0.92;  // of the bus, src/graph/tuning.cc
constexpr double kTreeShare = 0.92;
constexpr double kTreeLlDivisor = 3.8;
constexpr double kPlainTree = 0.85;
constexpr double kPatShare = 0.75;
constexpr std::int32_t kPatternTree = 3;
constexpr std::int32_t kNvlsGatherRanks = 32;

std::size_t index_of(NcclAlgorithm a) { return static_cast<std::size_t>(a); }
std::size_t index_of(NcclProtocol p) { return static_cast<std::size_t>(p); }

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
  if (p == NcclProtocol::kLl128 && g.scale_up == ScaleUp::kPcie) return false;
  switch (a) {
    case NcclAlgorithm::kRing:
      return true;
    case NcclAlgorithm::kTree:
      return kind == CollectiveKind::kAllReduce;
    case NcclAlgorithm::kNvls:
      return p == NcclProtocol::kSimple && g.nodes == 1 && g.nvls.channels >= 2 &&
             (kind == CollectiveKind::kAllReduce ||
              (gathers(kind) && g.ranks_per_node <= kNvlsGatherRanks));
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
  if (p == NcclProtocol::kLl) bus = std::min(ll_ceiling(g), kRingLlShare * bus);
  if (p == NcclProtocol::kLl128) {
    const double cap = c.ring_ll128.at(nccl_row(g.architecture)).at(node_column(g.nodes));
    bus = std::min(kLl128Share * bus, g.ring.channels * cap);
  }
  return bus * g.ranks / steps_of(g, kind);
}

double tree_bandwidth(const NcclGroup& g, NcclProtocol p) {
  const NcclConstants& c = nccl_constants();
  const std::size_t row = nccl_row(g.architecture), column = node_column(g.nodes);
  double bus = g.tree.channels * (g.nodes <= 2 ? g.tree.intra : g.tree.inter);
  bus = std::min(kTreeShare * bus, g.tree.channels * c.tree_simple.at(row).at(column));
  if (p == NcclProtocol::kLl) bus = std::min(bus / kTreeLlDivisor, ll_ceiling(g));
  if (p == NcclProtocol::kLl128) {
    bus = std::min(bus * (g.nodes == 1 ? 7.0 / 9.0 : 120.0 / 128.0),
                   g.tree.channels * c.tree_ll128.at(row).at(column));
  }
  if (g.tree.pattern == kPatternTree) bus *= kPlainTree;
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

double bandwidth(const NcclGroup& g, CollectiveKind kind, NcclAlgorithm a, NcclProtocol p) {
  switch (a) {
    case NcclAlgorithm::kRing:
      return ring_bandwidth(g, kind, p);
    case NcclAlgorithm::kTree:
      return tree_bandwidth(g, p);
    case NcclAlgorithm::kNvls:
      return nvls_bandwidth(g, kind, false);
    case NcclAlgorithm::kNvlsTree:
      return nvls_bandwidth(g, kind, true);
    case NcclAlgorithm::kPat:
      return g.tree.channels * (g.nodes <= 2 ? g.tree.intra : g.tree.inter) * kPatShare;
  }
  return 0;
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
    case NcclAlgorithm::kRing: {
      const double steps = steps_of(g, kind);
      const double rounds = kind == CollectiveKind::kAllReduce ? 2 : 1;
      const double crossings = g.nodes == 1 ? 0 : rounds * (g.nodes - 1);
      const double overhead = g.nodes == 1 ? 0
                                           : c.net_overhead_us.at(static_cast<std::size_t>(g.cpu)) *
                                                 (p == NcclProtocol::kSimple ? 3 : 1);
      return base + (steps - crossings) * std::max(inside, overhead) + crossings * across;
    }
    case NcclAlgorithm::kTree: {
      const double per_node = static_cast<double>(g.ranks) / g.nodes - 1;
      return base + 2 * (per_node * inside + depth * across);
    }
    case NcclAlgorithm::kNvls:
      return inside;
    case NcclAlgorithm::kNvlsTree:
      return base + inside + 2 * depth * across;
    case NcclAlgorithm::kPat:
      return base + depth * across / 3.5 + 2.8 * g.ranks;
  }
  return base;
}

double estimate_us(const NcclGroup& g, CollectiveKind kind, NcclAlgorithm a, NcclProtocol p,
                   double bytes) {
  const NcclConstants& c = nccl_constants();
  NcclTuning tuning = nccl_tuning(g, kind, a, p);
  if (a == NcclAlgorithm::kTree && bytes >= 64) {
    const auto step = static_cast<std::size_t>(std::ilogb(bytes / 64));
    const std::vector<double>& table = c.tree_correction.at(index_of(p));
    if (step < table.size()) tuning.gb_per_s *= table[step];
  }
  if (a == NcclAlgorithm::kRing && p == NcclProtocol::kSimple && g.nodes > 1 &&
      kind == CollectiveKind::kAllReduce &&
      bytes / (g.channels * static_cast<double>(g.ranks)) >= 64) {
    tuning.latency_us *= g.architecture == Architecture::kVolta ? c.plateau_volta : c.plateau_newer;
  }
  return tuning.latency_us + bytes / (1000 * tuning.gb_per_s);
}

}  // namespace

std::string_view name_of(NcclAlgorithm algorithm) {
  constexpr std::array<std::string_view, kNcclAlgorithms> kNames = {"Tree", "Ring", "NVLS",
                                                                    "NVLSTree", "PAT"};
  return kNames.at(index_of(algorithm));
}

std::string_view name_of(NcclProtocol protocol) {
  constexpr std::array<std::string_view, kNcclProtocols> kNames = {"LL", "LL128", "Simple"};
  return kNames.at(index_of(protocol));
}

NcclTuning nccl_tuning(const NcclGroup& group, CollectiveKind kind, NcclAlgorithm algorithm,
                       NcclProtocol protocol) {
  if (group.ranks < 2 || !offered(group, kind, algorithm, protocol)) return {};
  return {latency(group, kind, algorithm, protocol), bandwidth(group, kind, algorithm, protocol)};
}

NcclChoice choose_nccl(const NcclGroup& group, CollectiveKind kind, Bytes bytes) {
  NcclChoice best;
  best.time_us = -1;
  for (int a = 0; a < kNcclAlgorithms; ++a) {
    for (int p = 0; p < kNcclProtocols; ++p) {
      const auto algorithm = static_cast<NcclAlgorithm>(a);
      const auto protocol = static_cast<NcclProtocol>(p);
      if (group.ranks < 2 || !offered(group, kind, algorithm, protocol)) continue;
      const double us = estimate_us(group, kind, algorithm, protocol, static_cast<double>(bytes));
      if (best.time_us < 0 || us < best.time_us) best = NcclChoice{algorithm, protocol, us};
    }
  }
  return best;
}

std::int32_t nccl_channels(const NcclGroup& group, const NcclChoice& choice, Bytes bytes) {
  const bool nvls =
      choice.algorithm == NcclAlgorithm::kNvls || choice.algorithm == NcclAlgorithm::kNvlsTree;
  if (nvls) return std::max(1, group.nvls_channels);
  double threads = 512, per_thread = 64;
  if (choice.protocol == NcclProtocol::kLl128) threads = 640, per_thread = 8;
  if (choice.protocol == NcclProtocol::kLl) {
    per_thread = choice.algorithm == NcclAlgorithm::kRing ? 8.0 * group.ranks : 8.0;
  }
  const double wanted = std::ceil(static_cast<double>(bytes) / (threads * per_thread));
  return static_cast<std::int32_t>(std::clamp(wanted, 1.0, static_cast<double>(group.channels)));
}

}  // namespace foretrain
