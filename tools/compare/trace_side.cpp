// Where the time of a step goes in what a profiler saw.
#include <algorithm>
#include <limits>
#include <unordered_map>

#include "tools/compare/attribution.h"
#include "tools/compare/side.h"
#include "tools/report/report.h"

namespace foretrain {
namespace {

constexpr std::size_t kTraceFamilies = static_cast<std::size_t>(Family::kCount);
constexpr std::size_t kHostPhases = static_cast<std::size_t>(HostPhase::kCount);
constexpr std::size_t kGroups = kTraceFamilies * kHostPhases;
constexpr std::int64_t kShortGapNs = 10'000;
constexpr double kNanosecond = 1e-9;

std::int64_t last_end(const ActivityTrace& trace) {
  std::int64_t end = std::numeric_limits<std::int64_t>::min();
  for (const GpuEvent& event : trace.events) end = std::max(end, event.end);
  return end;
}

/// A step of the GPU ends when all is done that was launched within its annotation, and begins
/// where the one before has ended, or its annotation begins.
std::vector<Window> gpu_windows(const ActivityTrace& trace) {
  std::vector<Window> out;
  std::vector<std::int64_t> ends;
  for (const StepWindow& step : trace.steps) ends.push_back(step.end);
  for (const GpuEvent& event : trace.events) {
    const std::int64_t at = event.launched >= 0 ? event.launched : event.begin;
    const auto after = std::upper_bound(
        trace.steps.begin(), trace.steps.end(), at,
        [](std::int64_t time, const StepWindow& step) { return time < step.begin; });
    if (after == trace.steps.begin()) continue;
    const auto index = static_cast<std::size_t>(after - trace.steps.begin()) - 1;
    if (at < trace.steps[index].end) ends[index] = std::max(ends[index], event.end);
  }
  std::int64_t before = std::numeric_limits<std::int64_t>::min();
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const std::int64_t begin = std::max(before, trace.steps[i].begin);
    before = std::max(before, ends[i]);
    out.push_back({begin, before});
  }
  return out;
}

/// The windows of the steps, and how many steps they are.
std::vector<Window> windows_of(const ActivityTrace& trace, const SideOptions& options,
                               std::int64_t& steps) {
  if (trace.steps.empty()) {
    steps += std::max<std::int64_t>(1, options.steps);
    return {{trace.events.front().begin, last_end(trace)}};
  }
  steps += static_cast<std::int64_t>(trace.steps.size());
  if (options.gpu_steps) return gpu_windows(trace);
  std::vector<Window> out;
  for (const StepWindow& step : trace.steps) out.push_back({step.begin, step.end});
  return out;
}

std::int64_t time_within(const GpuEvent& event, const std::vector<Window>& windows) {
  std::int64_t sum = 0;
  auto at = std::upper_bound(windows.begin(), windows.end(), event.begin,
                             [](std::int64_t time, const Window& w) { return time < w.end; });
  for (; at != windows.end() && at->begin < event.end; ++at) {
    sum +=
        std::max<std::int64_t>(0, std::min(event.end, at->end) - std::max(event.begin, at->begin));
  }
  return sum;
}

/// What the traces of all ranks add up to.
struct Sums {
  std::vector<double> busy = std::vector<double>(kGroups);
  std::vector<std::int64_t> exposed = std::vector<std::int64_t>(kGroups);
  std::vector<std::int64_t> count = std::vector<std::int64_t>(kGroups);
  std::vector<double> least = std::vector<double>(kGroups, -1);             ///< of one rank
  std::vector<std::int64_t> each = std::vector<std::int64_t>(kGroups, -1);  ///< count of a rank
  std::vector<char> unlike = std::vector<char>(kGroups);  ///< ranks have different counts
  std::int64_t length = 0, idle = 0, short_idle = 0, steps = 0;
  std::unordered_map<std::string, KernelTime> kernels;
};

/// Refuses what is no step, and would not fit into sums of nanoseconds and a drawing's picoseconds.
Status check_windows(const ActivityTrace& trace, const std::vector<Window>& windows) {
  constexpr std::int64_t kLongestNs = 1'000'000'000'000'000;
  for (const Window& window : windows) {
    if (window.end - window.begin <= kLongestNs) continue;
    return input_error(trace.source + ": a step of " +
                       seconds_text(static_cast<double>(window.end - window.begin) * kNanosecond) +
                       ", more than 11 days; found a time out of proportion");
  }
  return ok_status();
}

Status add_trace(const ActivityTrace& trace, const SideOptions& options, Sums& sums,
                 StepTimes& out) {
  const std::vector<Window> windows = windows_of(trace, options, sums.steps);
  FT_TRY(check_windows(trace, windows));
  std::vector<Busy> busy;
  busy.reserve(trace.events.size());
  std::vector<double> by_name(trace.names.size());
  std::vector<std::int64_t> counts(trace.names.size());
  std::vector<std::int64_t> of_rank(kGroups);
  for (const GpuEvent& event : trace.events) {
    const Family family = trace.names[event.name].of.family;
    const std::size_t group =
        static_cast<std::size_t>(family) * kHostPhases + static_cast<std::size_t>(event.phase);
    busy.push_back({event.begin, event.end, static_cast<std::uint32_t>(group), class_of(family)});
    const std::int64_t inside = time_within(event, windows);
    if (inside == 0) continue;
    by_name[event.name] += static_cast<double>(inside);
    counts[event.name] += 1;
    of_rank[group] += 1;
  }
  const Attribution found = attribute(busy, windows, kGroups, kShortGapNs);
  for (std::size_t group = 0; group < kGroups; ++group) {
    sums.busy[group] += found.busy[group];
    sums.exposed[group] += found.exposed[group];
    sums.count[group] += of_rank[group];
    if (sums.each[group] < 0) sums.each[group] = of_rank[group];
    if (sums.each[group] != of_rank[group]) sums.unlike[group] = 1;
    double& least = sums.least[group];
    least = least < 0 ? found.busy[group] : std::min(least, found.busy[group]);
  }
  constexpr std::int64_t kMostNs = std::int64_t{1} << 62;
  if (found.length > kMostNs - sums.length) {
    return input_error(trace.source + ": the steps of all ranks take more than 146 years");
  }
  sums.length += found.length;
  sums.idle += found.idle;
  sums.short_idle += found.short_idle;
  for (std::size_t i = 0; i < by_name.size(); ++i) {
    if (counts[i] == 0) continue;
    const KernelName& name = trace.names[i];
    KernelTime& kernel = sums.kernels[name.name];
    kernel.name = name.name;
    kernel.family = name_of(name.of.family);
    kernel.seconds += by_name[i] * kNanosecond;
    kernel.count += static_cast<double>(counts[i]);
    if (!name.of.kind.empty()) {
      out.kinds[kernel.family][std::string(name.of.kind)] += by_name[i] * kNanosecond;
    }
  }
  return ok_status();
}

void set_trace_times(Sums& sums, std::size_t ranks, StepTimes& out) {
  const auto steps = static_cast<double>(sums.steps);
  const auto seconds = [steps](auto ns) { return static_cast<double>(ns) * kNanosecond / steps; };
  double kernels = 0;
  double unknown = 0;
  for (std::size_t group = 0; group < kGroups; ++group) {
    if (sums.count[group] == 0) continue;
    const auto family = static_cast<Family>(group / kHostPhases);
    const auto phase = static_cast<HostPhase>(group % kHostPhases);
    FamilyTime& time = out.families[{std::string(name_of(family)), std::string(name_of(phase))}];
    time.seconds = seconds(sums.busy[group]);
    time.exposed_s = seconds(sums.exposed[group]);
    time.count = static_cast<double>(sums.count[group]) / steps;
    // All members of a collective end together: who comes last waits for nobody.
    const bool communicates = class_of(family) == FamilyClass::kCommunication;
    if (ranks > 1 && communicates && sums.unlike[group] == 0) {
      time.waiting_s = time.seconds - static_cast<double>(ranks) * seconds(sums.least[group]);
      time.waiting_s = std::max(0.0, time.waiting_s);
    }
    if (class_of(family) == FamilyClass::kCopy) continue;
    kernels += time.seconds;
    if (family == Family::kOther) unknown += time.seconds;
  }
  out.step_s = seconds(sums.length);
  out.idle_s = seconds(sums.idle);
  out.launch_gaps_s = seconds(sums.short_idle);
  out.unclassified_share = kernels > 0 ? unknown / kernels : 0;
  for (auto& entry : sums.kernels) {
    entry.second.seconds /= steps;
    entry.second.count /= steps;
    out.kernels.push_back(std::move(entry.second));
  }
  for (auto& family : out.kinds) {
    for (auto& kind : family.second) kind.second /= steps;
  }
}

SpanInfo info_of(const KernelName& name, HostPhase phase) {
  SpanInfo out;
  out.name = name.name;
  out.work = name_of(name.of.family);
  const FamilyClass of = class_of(name.of.family);
  if (of == FamilyClass::kCommunication) out.category = Category::kData;
  if (of == FamilyClass::kCopy) out.category = Category::kMemory;
  if (phase == HostPhase::kBackward) out.phase = Phase::kBackward;
  if (phase == HostPhase::kOptimizer) out.phase = Phase::kOptimizer;
  return out;
}

/// Draws the first steps of ranks: of each a track, of each stream a row.
class Drawing {
 public:
  void add(const ActivityTrace& trace, const Window& window) {
    const auto index = static_cast<std::int32_t>(timeline.tracks.size());
    Track track;
    track.rank = RankId(static_cast<std::int32_t>(trace.rank < 0 ? index : trace.rank));
    track.name = "rank " + std::to_string(track.rank.value) + ", measured";
    std::unordered_map<std::uint16_t, std::int32_t> streams;
    std::vector<Span> spans;
    for (const GpuEvent& event : trace.events) {
      const std::int64_t begin = std::max(event.begin, window.begin);
      const std::int64_t end = std::min(event.end, window.end);
      if (end <= begin) continue;
      Span span;
      span.track = index;
      span.stream = StreamId(streams.try_emplace(event.stream, std::ssize(streams)).first->second);
      span.info = info(trace.names[event.name], event.phase);
      span.begin = span.start = Time{(begin - window.begin) * kPsInNs};
      span.end = Time{(end - window.begin) * kPsInNs};
      timeline.end = max(timeline.end, span.end);
      spans.push_back(span);
    }
    for (std::size_t s = 0; s < streams.size(); ++s) {
      track.streams.push_back("stream " + std::to_string(s));
    }
    std::stable_sort(spans.begin(), spans.end(),
                     [](const Span& a, const Span& b) { return a.stream < b.stream; });
    timeline.spans.insert(timeline.spans.end(), spans.begin(), spans.end());
    timeline.tracks.push_back(std::move(track));
  }

  Timeline timeline;

 private:
  static constexpr std::int64_t kPsInNs = 1000;

  std::int32_t info(const KernelName& name, HostPhase phase) {
    const std::string key = name.name + "\n" + std::string(name_of(phase));
    const auto [at, fresh] = x_infos.try_emplace(key, std::ssize(timeline.infos));
    if (fresh) timeline.infos.push_back(info_of(name, phase));
    return at->second;
  }

  std::unordered_map<std::string, std::int32_t> x_infos;
};

Timeline drawn(const std::vector<ActivityTrace>& traces, const SideOptions& options) {
  constexpr std::size_t kMostRanks = 16;
  Drawing drawing;
  for (std::size_t t = 0; t < std::min(traces.size(), kMostRanks); ++t) {
    std::int64_t steps = 0;
    drawing.add(traces[t], windows_of(traces[t], options, steps).front());
  }
  return std::move(drawing.timeline);
}

/// What a reader should know of how the steps were found.
void note_steps(const std::vector<ActivityTrace>& traces, const SideOptions& options, Side& out) {
  const ActivityTrace& first = traces.front();
  if (first.steps.empty()) {
    out.notes.push_back(
        "no annotations of steps: the whole span of the GPU's work is taken as " +
        (out.steps == 1 ? std::string("one step") : std::to_string(out.steps) + " steps") +
        (options.steps > 0 ? "" : "; --steps N divides it"));
    return;
  }
  const double late = static_cast<double>(last_end(first) - first.steps.back().end) * kNanosecond;
  if (!options.gpu_steps && late > 0.01 * out.time.step_s) {
    out.notes.push_back("the GPU works " + seconds_text(late) +
                        " beyond the last step's annotation, which is left out; --gpu-steps ends "
                        "a step when the GPU has done what it launched");
  }
}

}  // namespace

Result<Side> side_of(std::vector<ActivityTrace> traces, SideKind kind, const SideOptions& options) {
  Side out;
  out.kind = kind;
  out.source = traces.front().source;
  Sums sums;
  for (const ActivityTrace& trace : traces) {
    if (options.steps > 0 && !trace.steps.empty()) {
      return input_error("--steps: " + trace.source + " has annotations of " +
                         std::to_string(trace.steps.size()) + " steps; leave it out");
    }
    if (options.gpu_steps && trace.steps.empty()) {
      return input_error("--gpu-steps: " + trace.source + " has no annotations of steps");
    }
    FT_TRY(add_trace(trace, options, sums, out.time));
    out.ranks = std::max(out.ranks, trace.world_size);
    if (out.device.empty()) out.device = trace.device;
    if (!trace.device.empty() && trace.device != out.device) {
      out.notes.push_back(trace.source + " is of " + trace.device + ", others of " + out.device);
    }
    out.notes.insert(out.notes.end(), trace.notes.begin(), trace.notes.end());
  }
  if (sums.length <= 0) {
    return input_error(out.source + ": the steps have no length, or nothing ran on the GPU");
  }
  out.ranks_read = std::ssize(traces);
  out.steps = sums.steps / out.ranks_read;
  set_trace_times(sums, traces.size(), out.time);
  if (out.ranks == 0) {
    out.ranks = out.ranks_read;
    out.notes.push_back("the trace does not say how many ranks there are: taken as " +
                        std::to_string(out.ranks) + ", as many as were read");
  }
  note_steps(traces, options, out);
  if (options.timeline) out.timeline = drawn(traces, options);
  if (options.shapes) out.traces = std::move(traces);
  return out;
}

}  // namespace foretrain
