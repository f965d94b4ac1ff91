// Where the time of a step goes in a timeline of ours, predicted or executed.
#include <algorithm>
#include <array>
#include <unordered_map>

#include "tools/compare/attribution.h"
#include "tools/compare/side.h"

namespace foretrain {
namespace {

constexpr std::size_t kSpanFamilies = static_cast<std::size_t>(Family::kCount);
constexpr std::size_t kSpanPhases = static_cast<std::size_t>(Phase::kCount);
constexpr std::int64_t kShortGapPs = 10'000'000;  // 10 us

struct WorkRow {
  std::string_view begins;  ///< the text of the work (sim/program/text.cpp) begins so
  Family family;
  std::string_view kind = {};
};

/// The first that fits tells; what none fits is element by element.
constexpr WorkRow kWorkRows[] = {
    {"gemm", Family::kGemm},
    {"convolution", Family::kGemm, "convolution"},
    {"attention", Family::kAttention},
    {"score-softmax", Family::kAttention},
    {"scan", Family::kAttention},
    {"layer-norm", Family::kNorm},
    {"rms-norm", Family::kNorm},
    {"norm-", Family::kNorm},
    {"batch-norm", Family::kNorm},
    {"gated-norm", Family::kNorm},
    {"unit-rows", Family::kNorm},
    {"loss-", Family::kSoftmaxLoss},
    {"embedding", Family::kEmbedding},
    {"positions-", Family::kEmbedding},
    {"route", Family::kRouting},
    {"expert-counts", Family::kRouting},
    {"permute", Family::kRouting},
    {"unpermute", Family::kRouting},
    {"quantize", Family::kQuantize},
    {"largest", Family::kQuantize},
    {"adam", Family::kOptimizer},
    {"all-reduce", Family::kAllReduce},
    {"all-gather", Family::kAllGather},
    {"reduce-scatter", Family::kReduceScatter},
    {"all-to-all", Family::kSendRecv},  // NCCL makes them of messages
    {"p2p", Family::kSendRecv},
    {"broadcast", Family::kBroadcast},
    {"reduce ", Family::kReduce},
    {"copy host->device", Family::kHostToDevice},
    {"copy device->host", Family::kDeviceToHost},
    {"copy device->device", Family::kDeviceToDevice},
    {"copy ", Family::kStorage},
};

Family family_of_text(const std::string& work, std::string_view& kind) {
  for (const WorkRow& row : kWorkRows) {
    if (!work.starts_with(row.begins)) continue;
    kind = row.kind;
    return row.family;
  }
  return Family::kElementwise;
}

}  // namespace

std::optional<KernelClass> classify_operation(const SpanInfo& info) {
  const Part part = part_of(info);
  if (part == Part::kHost || part == Part::kHostUpdate || part == Part::kData) return std::nullopt;
  KernelClass out;
  out.family = family_of_text(info.work, out.kind);
  const bool products = out.family == Family::kGemm || out.family == Family::kAttention;
  const bool compute = class_of(out.family) == FamilyClass::kCompute;
  if (info.category == Category::kCompute) {
    if (info.phase == Phase::kOptimizer && compute && !products) out.family = Family::kOptimizer;
    if (info.work.find(" groups") != std::string::npos) out.kind = "grouped";
  } else if (info.work.find(" once a node of ") != std::string::npos) {
    out = {Family::kDeepEp, {}};
  } else if (info.category != Category::kMemory && compute) {
    out = {Family::kOtherCommunication, {}};  // what no text of ours says
  }
  return out;
}

FamilyTime& FamilyTime::operator+=(const FamilyTime& other) {
  seconds += other.seconds;
  exposed_s += other.exposed_s;
  waiting_s += other.waiting_s;
  count += other.count;
  return *this;
}

StepTimes times_of(const Timeline& timeline, std::int32_t track) {
  std::vector<std::optional<KernelClass>> classes;
  for (const SpanInfo& info : timeline.infos) classes.push_back(classify_operation(info));
  std::vector<Busy> busy;
  std::vector<FamilyTime> times(kSpanFamilies * kSpanPhases);
  std::unordered_map<std::string, KernelTime> kernels;
  StepTimes out;
  for (const Span& span : timeline.spans) {
    const auto index = static_cast<std::size_t>(span.info);
    if (span.track != track || !classes[index]) continue;
    const SpanInfo& info = timeline.infos[index];
    const KernelClass& of = *classes[index];
    const std::size_t group =
        static_cast<std::size_t>(of.family) * kSpanPhases + static_cast<std::size_t>(info.phase);
    busy.push_back(
        {span.begin.ps, span.end.ps, static_cast<std::uint32_t>(group), class_of(of.family)});
    const double seconds = (span.end - span.begin).seconds();
    times[group].count += 1;
    times[group].waiting_s += (span.start - span.begin).seconds();
    if (!of.kind.empty())
      out.kinds[std::string(name_of(of.family))][std::string(of.kind)] += seconds;
    const std::string family(name_of(of.family));
    KernelTime& kernel = kernels.try_emplace(info.name + "\n" + family).first->second;
    kernel.name = info.name;
    kernel.family = family;
    kernel.seconds += seconds;
    kernel.count += 1;
  }
  std::stable_sort(busy.begin(), busy.end(),
                   [](const Busy& a, const Busy& b) { return a.begin < b.begin; });
  const Attribution found = attribute(busy, {{0, timeline.end.ps}}, times.size(), kShortGapPs);
  for (std::size_t group = 0; group < times.size(); ++group) {
    if (times[group].count == 0) continue;
    times[group].seconds = found.busy[group] * 1e-12;
    times[group].exposed_s = Time{found.exposed[group]}.seconds();
    out.families[{std::string(name_of(static_cast<Family>(group / kSpanPhases))),
                  std::string(name_of(static_cast<Phase>(group % kSpanPhases)))}] = times[group];
  }
  out.step_s = timeline.end.seconds();
  out.idle_s = Time{found.idle}.seconds();
  out.launch_gaps_s = Time{found.short_idle}.seconds();
  for (auto& entry : kernels) out.kernels.push_back(std::move(entry.second));
  const Breakdown parts = break_down(timeline, track);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    out.parts[std::string(name_of(static_cast<Part>(part)))] = parts[part].seconds();
  }
  return out;
}

Result<Side> side_of(Timeline timeline, const std::string& source, const SideOptions& options) {
  Side out;
  out.source = source;
  out.kind = SideKind::kTimeline;
  std::vector<double> busy(timeline.tracks.size());
  for (const Span& span : timeline.spans) {
    const SpanInfo& info = timeline.infos[static_cast<std::size_t>(span.info)];
    if (info.category != Category::kCompute) continue;
    busy[static_cast<std::size_t>(span.track)] += (span.end - span.start).seconds();
  }
  if (busy.empty() || timeline.end.ps <= 0) {
    return input_error(source + ": this timeline has no ranks, or no time");
  }
  const auto most =
      static_cast<std::int32_t>(std::max_element(busy.begin(), busy.end()) - busy.begin());
  for (const Track& track : timeline.tracks) out.ranks += track.ranks_alike;
  out.time = times_of(timeline, most);
  out.notes.push_back("the times are of " + timeline.tracks[static_cast<std::size_t>(most)].name +
                      ", the busiest rank of the timeline");
  if (options.timeline) out.timeline = std::move(timeline);
  return out;
}

}  // namespace foretrain
