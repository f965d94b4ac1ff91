#include "hardware/nccl.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "hardware/nccl_constants.h"

namespace foretrain {
namespace {

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
  constexpr std::array<std::string_view, kNcclAlgorithms> kNames = {
      "Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"};
  return kNames.at(index_of(algorithm));
}

std::string_view name_of(NcclProtocol protocol) {
  constexpr std::array<std::string_view, kNcclProtocols> kNames = {"LL", "LL128", "Simple"};
  return kNames.at(index_of(protocol));
}

NcclChoice choose_nccl(const NcclGroup& group, CollectiveKind kind, Bytes bytes, DType dtype) {
  const bool adds = kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter ||
                    kind == CollectiveKind::kReduce;
  const bool last_resort =
      adds && dtype == DType::kFp8 && group.ranks > nccl_constants().enqueue.fp8_ring_ranks;
  NcclChoice best;
  double least = -1;
  for (int a = 0; a < kNcclAlgorithms; ++a) {
    for (int p = 0; p < kNcclProtocols; ++p) {
      const auto algorithm = static_cast<NcclAlgorithm>(a);
      const auto protocol = static_cast<NcclProtocol>(p);
      if (nccl_tuning(group, kind, algorithm, protocol).gb_per_s <= 0) continue;
      const double us = estimate_us(group, kind, algorithm, protocol, static_cast<double>(bytes));
      const bool ring = algorithm == NcclAlgorithm::kRing;
      const double rank = last_resort && ring ? nccl_constants().enqueue.fp8_ring_factor * us : us;
      if (least >= 0 && rank >= least) continue;
      least = rank;
      best = NcclChoice{algorithm, protocol, us};
    }
  }
  return best;
}

bool is_nvls(NcclAlgorithm algorithm) {
  return algorithm == NcclAlgorithm::kNvls || algorithm == NcclAlgorithm::kNvlsTree;
}

std::int32_t nccl_channels(const NcclGroup& group, const NcclChoice& choice, CollectiveKind kind,
                           Bytes bytes) {
  if (is_nvls(choice.algorithm)) return std::max(1, group.nvls_channels);
  const auto size = static_cast<double>(bytes);
  const NcclEnqueue& rules = nccl_constants().enqueue;
  double threads = rules.threads.at(index_of(choice.protocol));
  double per_thread = rules.thread_bytes.at(index_of(choice.protocol));
  const bool ring = choice.algorithm == NcclAlgorithm::kRing;
  if (choice.protocol == NcclProtocol::kLl && ring) per_thread *= group.ranks;
  const bool narrow = group.ring.channels * group.ring.intra <= rules.narrow;
  if (choice.protocol == NcclProtocol::kSimple && narrow) threads = rules.narrow_threads;
  const double traffic = size * (kind == CollectiveKind::kAllReduce ? 2 : 1);
  const double wanted =
      std::min(std::ceil(size / (threads * per_thread)), std::ceil(traffic / rules.channel_bytes));
  return static_cast<std::int32_t>(std::clamp(wanted, 1.0, static_cast<double>(group.channels)));
}

std::int32_t nccl_p2p_channels(const NcclGroup& group, std::int32_t peers, Bytes bytes_each) {
  const NcclPointToPoint& rules = nccl_constants().point_to_point;
  const auto all = static_cast<std::int32_t>(
      std::bit_ceil(static_cast<std::uint32_t>(std::clamp(group.channels, 1, rules.channels))));
  const bool far = group.nodes > 1, linked = group.scale_up == ScaleUp::kSwitch;
  const std::int32_t most = far || !linked ? std::min(all, rules.channels_without_switch) : all;
  const bool slow = far || group.scale_up == ScaleUp::kPcie;
  const auto chunk = static_cast<double>(slow ? rules.other_chunk : rules.nvlink_chunk);
  const auto chunks = [chunk](double count) { return static_cast<Bytes>(chunk * count); };
  const Bytes smallest = chunks(far ? rules.least_many_nodes : rules.least_one_node);
  const Bytes largest = chunks(far ? rules.most_many_nodes : rules.most_one_node);
  std::int32_t each = most;
  while (each > 1 && static_cast<std::int64_t>(each) * group.ranks > all) each /= 2;
  each = static_cast<std::int32_t>(std::clamp<Bytes>((bytes_each - 1) / smallest + 1, 1, each));
  while (bytes_each / each > largest && each <= most / 2) each *= 2;
  return static_cast<std::int32_t>(
      std::min<std::int64_t>(all, static_cast<std::int64_t>(each) * std::max(1, peers)));
}

}  // namespace foretrain
