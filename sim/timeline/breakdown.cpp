#include "sim/timeline/breakdown.h"

#include <algorithm>
#include <charconv>
#include <vector>

namespace foretrain {
namespace {

/// From `at` on a stream does what `part` says: kHost stands for nothing.
struct Change {
  Time at;
  Part part = Part::kHost;
};

/// What one stream does, change by change.
class StreamParts {
 public:
  StreamParts() = default;
  explicit StreamParts(const std::vector<PartSpan>& spans) {
    x_changes.reserve(2 * spans.size() + 1);
    for (const PartSpan& span : spans) {
      if (span.part == Part::kData) continue;
      add(Part::kBubble, span.begin, span.start);
      add(span.part, span.start, span.end);
    }
  }
  /// In order; what an earlier one has stays with it.
  void add(Part part, Time from, Time to) {
    if (!x_changes.empty()) from = max(from, x_changes.back().at);
    if (to <= from) return;
    if (!x_changes.empty() && x_changes.back().at == from) x_changes.pop_back();
    x_changes.push_back({from, part});
    x_changes.push_back({to, Part::kHost});
  }
  /// The part of `now`, which never goes back.
  Part part_at(Time now) {
    while (x_next < x_changes.size() && x_changes[x_next].at <= now) ++x_next;
    return x_next == 0 ? Part::kHost : x_changes[x_next - 1].part;
  }
  /// When the part changes after the `now` that was last asked for.
  Time change() const { return x_next < x_changes.size() ? x_changes[x_next].at : kNever; }

 private:
  std::vector<Change> x_changes;
  std::size_t x_next = 0;
};

}  // namespace

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

Breakdown break_down(const std::vector<std::vector<PartSpan>>& spans, Time end) {
  std::vector<StreamParts> streams;
  std::vector<std::pair<Time, Time>> delays;
  Time last;
  Time loaded;  // what workers prepare beside the step counts where nothing else is left
  for (const std::vector<PartSpan>& of_stream : spans) {
    streams.emplace_back(of_stream);
    for (const PartSpan& span : of_stream) {
      Time& latest = span.part == Part::kData ? loaded : last;
      latest = max(latest, span.end);
      if (span.part == Part::kData || span.data.ps == 0) continue;
      delays.emplace_back(max(Time(), span.begin - span.data), span.begin);
    }
  }
  std::sort(delays.begin(), delays.end());
  StreamParts& data = streams.emplace_back();
  for (const auto& [from, to] : delays) data.add(Part::kData, from, to);
  StreamParts& rest = streams.emplace_back();
  rest.add(Part::kData, last, loaded);
  rest.add(Part::kBubble, max(last, loaded), end);
  Breakdown out{};
  Time now;
  while (now < end) {
    Part part = Part::kHost;
    Time next = end;
    for (StreamParts& stream : streams) {
      part = std::min(part, stream.part_at(now));
      next = min(next, stream.change());
    }
    out[static_cast<std::size_t>(part)] += next - now;
    now = next;
  }
  return out;
}

Breakdown break_down(const Timeline& timeline, std::int32_t track) {
  std::vector<std::vector<PartSpan>> streams;
  for (const Span& span : timeline.spans) {
    if (span.track != track) continue;
    const SpanInfo& info = timeline.infos[static_cast<std::size_t>(span.info)];
    if (span.stream.index() >= streams.size()) streams.resize(span.stream.index() + 1);
    streams[span.stream.index()].push_back(
        {part_of(info), data_delay(info), span.begin, span.start, span.end});
  }
  return break_down(streams, timeline.end);
}

}  // namespace foretrain
