// What `compare` prints and what it writes as JSON.
#include <algorithm>
#include <cmath>

#include "sim/base/printable.h"
#include "tools/compare/comparison.h"
#include "tools/report/report.h"

namespace foretrain {
namespace {

constexpr std::size_t kName = 24, kNumber = 12;
constexpr std::size_t kKernelsShown = 8, kKernelsWritten = 50;

std::string to_width(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}
std::string to_right(const std::string& text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}
std::string shown_time(double seconds) { return seconds == 0 ? "-" : seconds_text(seconds); }

double seconds_of(const std::optional<FamilyTime>& time) { return time ? time->seconds : 0; }
double exposed_of(const std::optional<FamilyTime>& time) { return time ? time->exposed_s : 0; }

/// Null where there is no such side.
Json if_there(bool there, double value) { return there ? Json(value) : Json(); }

void set_row_times(const FamilyRow& row, bool both, Json& out) {
  out.set("a_s", seconds_of(row.a));
  out.set("b_s", if_there(both, seconds_of(row.b)));
  out.set("difference_s", if_there(both, seconds_of(row.b) - seconds_of(row.a)));
  out.set("a_exposed_s", exposed_of(row.a));
  out.set("b_exposed_s", if_there(both, exposed_of(row.b)));
}

Json row_json(const FamilyRow& row, bool both) {
  Json out{Json::Object{}};
  out.set("family", row.family);
  set_row_times(row, both, out);
  out.set("a_waiting_s", row.a ? row.a->waiting_s : 0.0);
  out.set("b_waiting_s", if_there(both, row.b ? row.b->waiting_s : 0.0));
  out.set("a_count", row.a ? row.a->count : 0.0);
  out.set("b_count", if_there(both, row.b ? row.b->count : 0.0));
  return out;
}

Json kinds_json(const StepTimes& time) {
  Json out{Json::Object{}};
  for (const auto& [family, kinds] : time.kinds) {
    Json one{Json::Object{}};
    for (const auto& [kind, seconds] : kinds) one.set(kind, seconds);
    out.set(family, std::move(one));
  }
  return out;
}

std::vector<KernelTime> longest_kernels(const StepTimes& time, std::size_t most) {
  std::vector<KernelTime> out = time.kernels;
  std::sort(out.begin(), out.end(), [](const KernelTime& x, const KernelTime& y) {
    return x.seconds != y.seconds ? x.seconds > y.seconds : x.name < y.name;
  });
  if (out.size() > most) out.resize(most);
  return out;
}

Json side_json(const Side& side) {
  const StepTimes& time = side.time;
  Json out{Json::Object{}};
  out.set("source", side.source);
  out.set("kind", name_of(side.kind));
  out.set("step_s", time.step_s);
  out.set("ranks", side.ranks);
  out.set("device", side.device.empty() ? Json() : Json(side.device));
  out.set("steps", side.steps);
  out.set("ranks_read", side.ranks_read);
  out.set("idle_s", time.idle_s);
  out.set("launch_gaps_s", time.launch_gaps_s);
  out.set("unclassified_share", time.unclassified_share);
  out.set("kinds", kinds_json(time));
  Json::Array kernels;
  for (const KernelTime& kernel : longest_kernels(time, kKernelsWritten)) {
    Json one{Json::Object{}};
    one.set("name", kernel.name);
    one.set("family", kernel.family);
    one.set("seconds", kernel.seconds);
    one.set("count", kernel.count);
    kernels.push_back(std::move(one));
  }
  out.set("kernels", std::move(kernels));
  Json::Array notes;
  for (const std::string& note : side.notes) notes.emplace_back(note);
  out.set("notes", std::move(notes));
  return out;
}

std::string side_text(const char* letter, const Side& side) {
  std::string out = std::string(letter) + "  " + printable_line(side.source) + " (" +
                    std::string(name_of(side.kind)) + ")\n   step " +
                    seconds_text(side.time.step_s) + ", " + count_text(side.ranks) +
                    (side.ranks == 1 ? " rank" : " ranks");
  out += " of " + (side.device.empty() ? std::string("a device that it does not name")
                                       : printable_line(side.device));
  if (side.measured()) {
    out += "; mean of " + count_text(side.steps) + (side.steps == 1 ? " step" : " steps") + " on " +
           count_text(side.ranks_read) + (side.ranks_read == 1 ? " rank" : " ranks");
  }
  return out + "\n";
}

/// A line of the table: the time whole, the difference, and what nothing hides.
std::string table_line(const std::string& name, const FamilyRow& row, bool both, double step) {
  std::string out = "  " + to_width(name, kName) + to_right(shown_time(seconds_of(row.a)), kNumber);
  if (both) {
    const double more = seconds_of(row.b) - seconds_of(row.a);
    const std::string sign = more > 0 ? "+" : "";
    out += to_right(shown_time(seconds_of(row.b)), kNumber) +
           to_right(more == 0 ? "-" : sign + seconds_text(more), kNumber + 1);
  }
  out += to_right(shown_time(exposed_of(row.a)), kNumber);
  if (both) return out + to_right(shown_time(exposed_of(row.b)), kNumber) + "\n";
  return out + to_right(fixed(step > 0 ? 100 * exposed_of(row.a) / step : 0, 1) + " %", kNumber) +
         "\n";
}

std::string table_head(const std::string& what, bool both) {
  std::string out = "\n  " + to_width(what, kName) + to_right(both ? "A" : "time", kNumber);
  if (both) out += to_right("B", kNumber) + to_right("B - A", kNumber + 1);
  out += to_right(both ? "A exposed" : "exposed", kNumber);
  return out + to_right(both ? "B exposed" : "of the step", kNumber) + "\n";
}

/// What belongs to no family: idle, and of it the launch gaps.
FamilyRow row_of(const Comparison& c, double StepTimes::*what) {
  FamilyRow row;
  row.a = FamilyTime{c.a.time.*what, c.a.time.*what, 0, 0};
  if (c.b) row.b = FamilyTime{c.b->time.*what, c.b->time.*what, 0, 0};
  return row;
}

/// The phases, and of each the families that take a hundredth of the step and more.
std::string phase_lines(const Comparison& c, bool both, double step) {
  constexpr double kShownShare = 0.01;
  std::string out = table_head("phase", both);
  for (const PhaseRow& phase : c.phases) {
    out += table_line(phase.phase, phase.all, both, step);
    for (const FamilyRow& row : phase.families) {
      const double longer = std::max(exposed_of(row.a), exposed_of(row.b));
      if (longer >= kShownShare * step) out += table_line("  " + row.family, row, both, step);
    }
  }
  return out;
}

}  // namespace

Json comparison_json(const Comparison& c) {
  const bool both = c.b.has_value();
  Json out{Json::Object{}};
  out.set("schema", "foretrain/comparison/1");
  out.set("a", side_json(c.a));
  out.set("b", both ? side_json(*c.b) : Json());
  Json::Array families;
  for (const FamilyRow& row : c.families) families.push_back(row_json(row, both));
  out.set("families", std::move(families));
  Json::Array phases;
  for (const PhaseRow& phase : c.phases) {
    Json one{Json::Object{}};
    one.set("phase", phase.phase);
    set_row_times(phase.all, both, one);
    Json::Array inner;
    for (const FamilyRow& row : phase.families) inner.push_back(row_json(row, both));
    one.set("families", std::move(inner));
    phases.push_back(std::move(one));
  }
  out.set("phases", std::move(phases));
  out.set("idle_s", c.a.time.idle_s);
  out.set("unclassified_share",
          std::max(c.a.time.unclassified_share, both ? c.b->time.unclassified_share : 0.0));
  Json::Array findings;
  for (const std::string& finding : c.findings) findings.emplace_back(finding);
  out.set("findings", std::move(findings));
  Json::Array notes;
  for (const std::string& note : c.notes) notes.emplace_back(note);
  out.set("notes", std::move(notes));
  return out;
}

std::string comparison_text(const Comparison& c) {
  const bool both = c.b.has_value();
  const double step = c.a.time.step_s;
  std::string out = side_text("A", c.a) + (both ? side_text("B", *c.b) : "");
  out += table_head("family", both);
  for (const FamilyRow& row : c.families) out += table_line(row.family, row, both, step);
  out += table_line("idle", row_of(c, &StepTimes::idle_s), both, step);
  out += table_line("  in launch gaps", row_of(c, &StepTimes::launch_gaps_s), both, step);
  out += table_line("step", row_of(c, &StepTimes::step_s), both, step);
  if (!c.phases.empty()) out += phase_lines(c, both, step);
  if (!both && c.a.measured()) {
    out += "\n  longest kernels\n";
    for (const KernelTime& kernel : longest_kernels(c.a.time, kKernelsShown)) {
      constexpr std::size_t kShown = 60;
      out += "  " + to_right(seconds_text(kernel.seconds), kNumber) +
             to_right(fixed(kernel.count, 0), 7) + "  " + kernel.family + "  " +
             printable_line(kernel.name.substr(0, kShown)) + "\n";
    }
  }
  if (!c.findings.empty()) out += "\n";
  for (const std::string& finding : c.findings) out += "  - " + printable_line(finding) + "\n";
  for (const std::string& note : c.notes) out += "Note: " + note + "\n";
  for (const std::string& note : c.a.notes) out += "Note: A: " + note + "\n";
  if (!both) return out;
  for (const std::string& note : c.b->notes) out += "Note: B: " + note + "\n";
  return out;
}

}  // namespace foretrain
