#include "tools/compare/comparison.h"

#include <algorithm>
#include <array>
#include <set>

#include "hardware/presets.h"
#include "tools/report/report.h"

namespace foretrain {
namespace {

constexpr const char* kAnyCommunication = "exposed_communication";

bool idle_part(const std::string& part) {
  for (const Part idle : {Part::kBubble, Part::kData, Part::kHost, Part::kHostUpdate}) {
    if (part == name_of(idle)) return true;
  }
  return false;
}

Family family_called(const std::string& name) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(Family::kCount); ++i) {
    if (name == name_of(static_cast<Family>(i))) return static_cast<Family>(i);
  }
  return Family::kOther;
}

/// The part of `simulate`'s breakdown that a family of a trace, launched in that phase, belongs to.
std::string part_of_family(const std::string& name, const std::string& phase) {
  const Family family = family_called(name);
  switch (class_of(family)) {
    case FamilyClass::kCommunication:
      return kAnyCommunication;
    case FamilyClass::kCopy:
      return family == Family::kStorage ? "storage" : "copy";
    case FamilyClass::kCompute:
    case FamilyClass::kCount:
      break;
  }
  if (phase == name_of(HostPhase::kOptimizer)) return std::string(name_of(Part::kOptimizer));
  const bool own =
      family == Family::kGemm || family == Family::kAttention || family == Family::kOptimizer;
  return own ? name : "memory_bound";
}

/// The times of a side by parts of a breakdown; communication in one where `together`.
void put_into_parts(StepTimes& time, bool together) {
  std::map<std::pair<std::string, std::string>, FamilyTime> parts;
  if (time.parts.empty()) {
    for (const auto& [key, one] : time.families) {
      FamilyTime& part = parts[{part_of_family(key.first, key.second), ""}];
      const bool hidden = class_of(family_called(key.first)) == FamilyClass::kCommunication;
      part += {hidden ? one.exposed_s : one.seconds, one.exposed_s, 0, one.count};
    }
  } else {
    time.idle_s = 0;
    time.launch_gaps_s = 0;
    for (const auto& [part, seconds] : time.parts) {
      if (idle_part(part)) {
        time.idle_s += seconds;
      } else if (seconds > 0) {
        const bool exposed = together && part.starts_with("exposed_");
        parts[{exposed ? kAnyCommunication : part, ""}] += {seconds, seconds, 0, 0};
      }
    }
  }
  time.families = std::move(parts);
}

/// What a profiler does not tell apart.
void fold_phases(StepTimes& time) {
  const std::pair<const char*, const char*> folds[] = {
      {"recompute", "backward"}, {"gradients", "backward"}, {"input", "other"}};
  std::map<std::pair<std::string, std::string>, FamilyTime> out;
  for (const auto& [key, one] : time.families) {
    std::string phase = key.second;
    for (const auto& [from, to] : folds) phase = phase == from ? to : phase;
    out[{key.first, phase}] += one;
  }
  time.families = std::move(out);
}

void add_time(std::optional<FamilyTime>& to, const FamilyTime& time) {
  if (!to) to = FamilyTime{};
  *to += time;
}

double longer(const FamilyRow& row) {
  return std::max(row.a ? row.a->seconds : 0, row.b ? row.b->seconds : 0);
}

/// Sums by whatever `name_of_key` says of (family, phase).
template <typename Name>
std::vector<FamilyRow> rows_of(const Comparison& c, Name name_of_key) {
  std::map<std::string, FamilyRow> rows;
  const auto take = [&](const StepTimes& time, std::optional<FamilyTime> FamilyRow::*side) {
    for (const auto& [key, one] : time.families) {
      const std::string name = name_of_key(key);
      if (name.empty()) continue;
      FamilyRow& row = rows[name];
      row.family = name;
      add_time(row.*side, one);
    }
  };
  take(c.a.time, &FamilyRow::a);
  if (c.b) take(c.b->time, &FamilyRow::b);
  std::vector<FamilyRow> out;
  for (auto& entry : rows) out.push_back(std::move(entry.second));
  std::stable_sort(out.begin(), out.end(),
                   [](const FamilyRow& x, const FamilyRow& y) { return longer(x) > longer(y); });
  return out;
}

using FamilyAndPhase = std::pair<std::string, std::string>;

std::vector<PhaseRow> phases_of(const Comparison& c) {
  constexpr std::array<const char*, 7> kOrder = {"input",     "forward",   "backward", "recompute",
                                                 "gradients", "optimizer", "other"};
  const std::vector<FamilyRow> all =
      rows_of(c, [](const FamilyAndPhase& key) { return key.second; });
  std::vector<PhaseRow> out;
  for (const char* phase : kOrder) {
    for (const FamilyRow& row : all) {
      if (row.family != phase) continue;
      out.push_back({phase, row, rows_of(c, [phase](const FamilyAndPhase& key) {
                       return key.second == phase ? key.first : std::string();
                     })});
    }
  }
  return out;
}

/// The preset of a device that is named by it, or as its driver names it; the name itself if none.
std::string preset_of(const std::string& device) {
  const NamedGpu known = gpu_called(device);
  return known.device.empty() ? device : known.device;
}

/// What does not go together.
void check_alike(const Side& a, const Side& b, std::vector<std::string>& notes) {
  if (a.ranks != b.ranks && a.ranks > 0 && b.ranks > 0) {
    notes.push_back("A has " + count_text(a.ranks) + " ranks, B " + count_text(b.ranks) +
                    ": their steps are of different worlds");
  }
  if (!a.device.empty() && !b.device.empty() && preset_of(a.device) != preset_of(b.device)) {
    notes.push_back("A is of " + a.device + ", B of " + b.device +
                    ": their kernels are of different devices");
  }
  for (const Side* side : {&a, &b}) {
    if (side->device.empty()) {
      notes.push_back(side->source + " does not say of which device it is: not checked");
    }
  }
}

}  // namespace

Comparison compare_sides(Side a, std::optional<Side> b) {
  Comparison out;
  out.a = std::move(a);
  out.b = std::move(b);
  if (out.b) {
    const bool measured = out.a.measured() || out.b->measured();
    const bool by_parts = out.a.kind == SideKind::kResult || out.b->kind == SideKind::kResult;
    for (Side* side : {&out.a, &*out.b}) {
      if (by_parts) put_into_parts(side->time, measured);
      if (measured && !by_parts) fold_phases(side->time);
    }
    if (by_parts && measured) {
      out.notes.emplace_back(
          "a result knows parts of a breakdown: kernels are put into these, and of communication "
          "what nothing hides is compared");
    }
    check_alike(out.a, *out.b, out.notes);
  }
  out.families = rows_of(out, [](const FamilyAndPhase& key) { return key.first; });
  out.phases = phases_of(out);
  out.findings = findings_of(out);
  return out;
}

Timeline merged_timeline(const Comparison& comparison) {
  Timeline out;
  const auto take = [&out](const Side& side, const std::string& name) {
    if (!side.timeline) return;
    const Timeline& in = *side.timeline;
    const auto tracks = static_cast<std::int32_t>(out.tracks.size());
    const auto infos = static_cast<std::int32_t>(out.infos.size());
    const auto spans = static_cast<std::int32_t>(out.spans.size());
    for (Track track : in.tracks) {
      track.name = name + ": " + track.name;
      out.tracks.push_back(std::move(track));
    }
    out.infos.insert(out.infos.end(), in.infos.begin(), in.infos.end());
    for (Span span : in.spans) {
      span.track += tracks;
      span.info += infos;
      out.spans.push_back(span);
    }
    for (const Flow& flow : in.flows) out.flows.push_back({flow.from + spans, flow.to + spans});
    for (MemorySample sample : in.memory) {
      sample.track += tracks;
      out.memory.push_back(sample);
    }
    for (IssueSpan span : in.host) {
      span.track += tracks;
      span.info += infos;
      out.host.push_back(span);
    }
    out.end = max(out.end, in.end);
  };
  take(comparison.a, "A");
  if (comparison.b) take(*comparison.b, "B");
  out.name = comparison.a.source + (comparison.b ? " and " + comparison.b->source : "");
  return out;
}

}  // namespace foretrain
