#include "sim/timeline/breakdown.h"

#include <algorithm>
#include <charconv>
#include <vector>

namespace foretrain {
namespace {

struct Edge {
  Time at;
  Part part = Part::kHost;
  int change = 0;
};

/// How long the host prepares data before it issues what follows; zero for anything else. The text
/// is that of a HostDelay (sim/program/text.cpp): "host-delay 5000 ps".
Time data_delay(const SpanInfo& info) {
  constexpr std::string_view kDelay = "host-delay ";
  if (info.phase != Phase::kInput || !info.work.starts_with(kDelay)) return Time();
  Time time;
  const char* end = info.work.data() + info.work.size();
  std::from_chars(info.work.data() + kDelay.size(), end, time.ps);
  return time;
}

}  // namespace

std::string_view name_of(Part part) {
  constexpr std::array<std::string_view, static_cast<std::size_t>(Part::kCount)> kNames = {
      "gemm",
      "attention",
      "memory_bound",
      "recompute",
      "optimizer",
      "copy",
      "exposed_tensor",
      "exposed_data",
      "exposed_pipeline",
      "exposed_expert",
      "exposed_context",
      "storage",
      "host_update",
      "pipeline_bubble",
      "data",
      "host"};
  return kNames.at(static_cast<std::size_t>(part));
}

Part part_of(const SpanInfo& info) {
  switch (info.category) {
    case Category::kTensor:
      return Part::kExposedTensor;
    case Category::kData:
      return Part::kExposedData;
    case Category::kPipeline:
      return Part::kExposedPipeline;
    case Category::kExpert:
      return Part::kExposedExpert;
    case Category::kContext:
      return Part::kExposedContext;
    case Category::kMemory:
      return info.work.find(name_of(Memory::kStorage)) == std::string::npos ? Part::kCopy
                                                                            : Part::kStorage;
    case Category::kHost:
    case Category::kCount:
      if (info.phase == Phase::kInput && info.work.starts_with("pause")) return Part::kData;
      return info.work.ends_with("on the host") ? Part::kHostUpdate : Part::kHost;
    case Category::kCompute:
      break;
  }
  if (info.phase == Phase::kRecompute) return Part::kRecompute;
  if (info.phase == Phase::kOptimizer) return Part::kOptimizer;
  if (info.work.starts_with("gemm") || info.work.starts_with("convolution")) return Part::kGemm;
  if (info.work.starts_with("attention") || info.work.starts_with("score-softmax") ||
      info.work.starts_with("scan")) {
    return Part::kAttention;
  }
  return Part::kMemoryBound;
}

Breakdown break_down(const Timeline& timeline, std::int32_t track) {
  std::vector<Edge> edges;
  const auto add = [&edges](Part part, Time from, Time to) {
    if (to <= from) return;
    edges.push_back({from, part, 1});
    edges.push_back({to, part, -1});
  };
  Time last;
  Time loaded;  // what workers prepare beside the step counts where nothing else is left
  for (const Span& span : timeline.spans) {
    if (span.track != track) continue;
    const SpanInfo& info = timeline.infos[static_cast<std::size_t>(span.info)];
    if (part_of(info) == Part::kData) {
      loaded = max(loaded, span.end);
      continue;
    }
    add(Part::kData, max(Time(), span.begin - data_delay(info)), span.begin);
    add(Part::kBubble, span.begin, span.start);
    add(part_of(info), span.start, span.end);
    last = max(last, span.end);
  }
  add(Part::kData, last, loaded);
  last = max(last, loaded);
  add(Part::kBubble, last, timeline.end);
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
  Breakdown out{};
  std::array<int, static_cast<std::size_t>(Part::kCount)> active{};
  Time now;
  std::size_t i = 0;
  while (now < timeline.end) {
    for (; i < edges.size() && edges[i].at <= now; ++i) {
      active[static_cast<std::size_t>(edges[i].part)] += edges[i].change;
    }
    const Time next = i < edges.size() ? min(edges[i].at, timeline.end) : timeline.end;
    std::size_t part = 0;
    while (part < static_cast<std::size_t>(Part::kHost) && active[part] == 0) ++part;
    out[part] += next - now;
    now = next;
  }
  return out;
}

}  // namespace foretrain
