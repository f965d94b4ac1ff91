#include "traces/activity_builder.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <numeric>

namespace foretrain {
namespace {

constexpr std::size_t kMostStreams = 65535;

bool names(std::string_view text, std::string_view word) {
  return text.find(word) != std::string_view::npos;
}

/// Sorted so that what encloses stands before what it encloses.
bool encloses_first(const HostSpan& a, const HostSpan& b) {
  if (a.thread != b.thread) return a.thread < b.thread;
  if (a.begin != b.begin) return a.begin < b.begin;
  return a.end > b.end;
}

}  // namespace

std::string_view name_of(HostPhase phase) {
  constexpr std::array<std::string_view, 4> kNames = {"other", "forward", "backward", "optimizer"};
  return kNames.at(static_cast<std::size_t>(phase));
}

HostPhase phase_of_annotation(std::string_view name) {
  std::string text(name);
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (names(text, "optimizer")) return HostPhase::kOptimizer;
  if (names(text, "backward") || text.ends_with("(b)") || text.ends_with("(w)")) {
    return HostPhase::kBackward;
  }
  if (names(text, "forward") || text.ends_with("(f)")) return HostPhase::kForward;
  return HostPhase::kUnknown;
}

std::vector<StepWindow> merged_steps(std::vector<NamedStep> steps) {
  std::stable_sort(steps.begin(), steps.end(),
                   [](const NamedStep& a, const NamedStep& b) { return a.begin < b.begin; });
  std::vector<StepWindow> out;
  const NamedStep* last = nullptr;
  for (const NamedStep& step : steps) {
    if (last != nullptr && step.begin < out.back().end) {
      if (step.name == last->name) out.back().end = std::max(out.back().end, step.end);
      if (step.name == last->name || step.end <= out.back().end) continue;
    }
    out.push_back({out.empty() ? step.begin : std::max(step.begin, out.back().end), step.end});
    last = &step;
  }
  return out;
}

std::uint32_t ActivityBuilder::named(const std::string& name, KernelClass of) {
  const auto [at, fresh] =
      x_numbers.names.try_emplace(name, static_cast<std::uint32_t>(x_names.size()));
  if (fresh) x_names.push_back({name, of});
  return at->second;
}

std::uint32_t ActivityBuilder::name(const std::string& name) {
  const auto known = x_numbers.names.find(name);
  return known != x_numbers.names.end() ? known->second : named(name, classify_kernel(name));
}

std::uint32_t ActivityBuilder::thread(const std::string& process, const std::string& thread) {
  const auto next = static_cast<std::uint32_t>(x_numbers.threads.size());
  return x_numbers.threads.try_emplace(process + "/" + thread, next).first->second;
}

std::uint16_t ActivityBuilder::stream(std::uint32_t device, const std::string& stream) {
  const auto next = static_cast<std::uint32_t>(std::min(x_numbers.streams.size(), kMostStreams));
  const std::string key = std::to_string(device) + "/" + stream;
  return static_cast<std::uint16_t>(x_numbers.streams.try_emplace(key, next).first->second);
}

std::int32_t ActivityBuilder::detail(LaunchDetail detail) {
  const std::string key = detail.op + '\n' + detail.dims + '\n' + detail.types + '\n' +
                          detail.strides + '\n' + detail.concrete;
  const auto next = static_cast<std::int32_t>(x_details.size());
  const auto [at, fresh] = x_numbers.details.try_emplace(key, next);
  if (fresh) x_details.push_back(std::move(detail));
  return at->second;
}

/// What the spans that are open say, the innermost first.
ActivityBuilder::Host ActivityBuilder::host_of(const ActivityLaunch& launch,
                                               const std::vector<const HostSpan*>& open) {
  constexpr std::size_t kMostLevels = 256;
  Host host;
  for (std::size_t level = 0; level < std::min(open.size(), kMostLevels); ++level) {
    const HostSpan& span = *open[open.size() - 1 - level];
    if (span.thread != launch.thread || span.end < launch.at) continue;
    if (host.phase == HostPhase::kUnknown) host.phase = span.phase;
    if (span.role == HostRole::kOperator && host.detail < 0) {
      host.detail = span.detail;
      host.call = span.call;
    }
    if (span.role == HostRole::kCollective && host.collective == Family::kOther) {
      host.collective = span.collective;
    }
  }
  return host;
}

std::vector<ActivityBuilder::Host> ActivityBuilder::hosts_of_launches() {
  std::sort(spans.begin(), spans.end(), encloses_first);
  std::vector<std::uint32_t> order(launches.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [this](std::uint32_t a, std::uint32_t b) {
    const ActivityLaunch& x = launches[a];
    const ActivityLaunch& y = launches[b];
    return x.thread != y.thread ? x.thread < y.thread : x.at < y.at;
  });
  std::unordered_set<std::uint32_t> told;  // threads whose annotations tell what is forward
  for (const HostSpan& span : spans) {
    if (span.phase == HostPhase::kForward) told.insert(span.thread);
  }
  std::vector<Host> out(launches.size());
  std::vector<const HostSpan*> open;
  std::size_t next = 0;
  for (const std::uint32_t index : order) {
    const ActivityLaunch& launch = launches[index];
    for (; next < spans.size(); ++next) {
      const HostSpan& span = spans[next];
      const bool later = span.thread == launch.thread && span.begin > launch.at;
      if (span.thread > launch.thread || later) break;
      while (!open.empty() &&
             (open.back()->thread != span.thread || open.back()->end <= span.begin)) {
        open.pop_back();
      }
      open.push_back(&span);
    }
    Host& host = out[index] = host_of(launch, open);
    if (host.phase != HostPhase::kUnknown || x_autograd.empty()) continue;
    if (x_autograd.count(launch.thread) > 0 && x_drives.count(launch.thread) == 0) {
      host.phase = HostPhase::kBackward;
    } else if (told.count(launch.thread) == 0) {
      host.phase = HostPhase::kForward;
    }
  }
  return out;
}

void ActivityBuilder::find_launches() {
  std::sort(launches.begin(), launches.end(), [](const ActivityLaunch& a, const ActivityLaunch& b) {
    return a.correlation < b.correlation;
  });
  const std::vector<Host> hosts = hosts_of_launches();
  for (RawEvent& raw : events) {
    Family collective = raw.collective;
    const auto at = std::lower_bound(launches.begin(), launches.end(), raw.correlation,
                                     [](const ActivityLaunch& launch, std::uint64_t wanted) {
                                       return launch.correlation < wanted;
                                     });
    if (raw.correlation != 0 && at != launches.end() && at->correlation == raw.correlation) {
      const Host& host = hosts[static_cast<std::size_t>(at - launches.begin())];
      raw.event.launched = at->at;
      raw.event.phase = host.phase;
      raw.event.detail = host.detail;
      raw.event.call = host.call;
      if (collective == Family::kOther) collective = host.collective;
    }
    const KernelName known = x_names[raw.event.name];
    if (known.of.family == Family::kOptimizer) raw.event.phase = HostPhase::kOptimizer;
    const bool tells = collective != Family::kOther && collective != Family::kNcclOther;
    if (known.of.family != Family::kNcclOther || !tells) continue;
    const std::string name = known.name + " (" + std::string(name_of(collective)) + ")";
    raw.event.name = named(name, {collective, {}});
  }
}

std::vector<ActivityTrace> ActivityBuilder::by_device() {
  std::map<std::uint32_t, std::size_t> kernels;
  for (const RawEvent& raw : events) {
    const bool kernel = class_of(x_names[raw.event.name].of.family) != FamilyClass::kCopy;
    kernels[raw.device] += kernel ? 1 : 0;
  }
  // A GPU with copies alone is a peer that another GPU reaches, unless there is no other.
  const bool any = std::any_of(kernels.begin(), kernels.end(),
                               [](const auto& entry) { return entry.second > 0; });
  if (any) std::erase_if(kernels, [](const auto& entry) { return entry.second == 0; });
  const std::vector<StepWindow> steps = merged_steps(std::move(facts.steps));
  std::vector<ActivityTrace> out;
  std::unordered_map<std::uint32_t, std::size_t> place;
  for (const auto& entry : kernels) {
    place[entry.first] = out.size();
    ActivityTrace& trace = out.emplace_back();
    trace.source = facts.source;
    const auto device = facts.devices.find(entry.first);
    if (device != facts.devices.end()) trace.device = device->second;
    if (trace.device.empty() && facts.devices.size() == 1)
      trace.device = facts.devices.begin()->second;
    trace.rank = facts.rank;
    trace.world_size = facts.world_size;
    trace.steps = steps;
    trace.notes = out.size() == 1 ? facts.notes : std::vector<std::string>();
  }
  for (const RawEvent& raw : events) {
    const auto at = place.find(raw.device);
    if (at != place.end()) out[at->second].events.push_back(raw.event);
  }
  for (ActivityTrace& trace : out) {
    std::stable_sort(trace.events.begin(), trace.events.end(),
                     [](const GpuEvent& a, const GpuEvent& b) { return a.begin < b.begin; });
    trace.names = x_names;
    trace.details = x_details;
  }
  return out;
}

std::vector<ActivityTrace> ActivityBuilder::take() {
  if (facts.world_size <= 0 && facts.largest_group > 1) {
    facts.world_size = facts.largest_group;
    facts.notes.push_back("the world's size is taken to be that of the largest group, " +
                          std::to_string(facts.largest_group));
  }
  find_launches();
  launches = {};
  spans = {};
  if (facts.steps.empty()) facts.steps = std::move(facts.gpu_steps);
  std::vector<ActivityTrace> out = by_device();
  events = {};
  return out;
}

}  // namespace foretrain
