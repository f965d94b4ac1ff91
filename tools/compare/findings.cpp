// What the numbers of a comparison say, in sentences.
#include <algorithm>
#include <cmath>

#include "tools/compare/comparison.h"
#include "tools/report/report.h"

namespace foretrain {
namespace {

constexpr double kWorthTelling = 0.01;  // of the step
constexpr std::size_t kMostTold = 4;

std::string share_text(double part, double whole) {
  return fixed(whole > 0 ? 100 * part / whole : 0, 1) + " %";
}

double exposed_s_of(const std::optional<FamilyTime>& time) { return time ? time->exposed_s : 0; }
double busy_s(const std::optional<FamilyTime>& time) { return time ? time->seconds : 0; }
double count_of(const std::optional<FamilyTime>& time) { return time ? time->count : 0; }

bool communicates(const std::string& family) {
  return family.starts_with("nccl_") || family.starts_with("exposed_") || family == "deepep" ||
         family == "other_communication";
}

/// Families that a compiler fuses into each other.
bool fuses(const std::string& family) {
  for (const char* one : {"norm", "elementwise", "triton", "reduction", "softmax_loss", "quantize",
                          "embedding", "routing", "sort"}) {
    if (family == one) return true;
  }
  return false;
}

/// Why the time of a family may differ.
std::string reason_of(const FamilyRow& row) {
  const double a = busy_s(row.a);
  const double b = busy_s(row.b);
  if (a == 0 || b == 0) {
    const std::string only = a == 0 ? "B" : "A";
    if (fuses(row.family)) {
      return "only " + only +
             " has kernels of that name: what one side fuses stands under another "
             "family of the other";
    }
    return "only " + only + " has any";
  }
  if (communicates(row.family) && std::fabs(a - b) < 0.1 * std::max(a, b)) {
    return "both take about as long (" + seconds_text(a) + ", " + seconds_text(b) +
           "): less of it runs beside computation in " +
           (exposed_s_of(row.a) > exposed_s_of(row.b) ? "A" : "B");
  }
  const double waiting_a = row.a->waiting_s;
  const double waiting_b = row.b->waiting_s;
  if (communicates(row.family) && std::max(waiting_a, waiting_b) > 0.2 * std::fabs(a - b)) {
    const auto of = [](double waiting, double whole) {
      return (waiting > 0 ? seconds_text(waiting) : std::string("not known")) + " of its " +
             seconds_text(whole);
    };
    return "waiting for partners is " + of(waiting_a, a) + " in A, " + of(waiting_b, b) +
           " in B, hidden parts included";
  }
  const double each =
      count_of(row.a) > 0 && count_of(row.b) > 0 ? count_of(row.b) / count_of(row.a) : 0;
  if (each == 0) return "";
  std::string counts =
      fixed(count_of(row.a), 0) + " operations a step in A, " + fixed(count_of(row.b), 0) + " in B";
  if (each > 1.25 || each < 0.8) return counts;
  return counts + ": each takes " + fixed(b / count_of(row.b) / (a / count_of(row.a)), 2) +
         " times as long in B";
}

void tell_families(const Comparison& c, std::vector<std::string>& out) {
  std::vector<const FamilyRow*> rows;
  for (const FamilyRow& row : c.families) rows.push_back(&row);
  const auto differs = [](const FamilyRow& row) {
    return std::fabs(exposed_s_of(row.b) - exposed_s_of(row.a));
  };
  std::stable_sort(rows.begin(), rows.end(), [&differs](const FamilyRow* x, const FamilyRow* y) {
    return differs(*x) > differs(*y);
  });
  const double step = std::max(c.a.time.step_s, c.b->time.step_s);
  for (std::size_t i = 0; i < std::min(rows.size(), kMostTold); ++i) {
    const FamilyRow& row = *rows[i];
    if (differs(row) < kWorthTelling * step) break;
    const double more = exposed_s_of(row.b) - exposed_s_of(row.a);
    const std::string why = reason_of(row);
    out.push_back(row.family + " takes " + seconds_text(std::fabs(more)) +
                  (more > 0 ? " more" : " less") + " of the step in B (" +
                  seconds_text(exposed_s_of(row.a)) + ", " + seconds_text(exposed_s_of(row.b)) +
                  ")" + (why.empty() ? "" : "; " + why));
  }
}

/// Kernels that one side fuses, in one sum.
void tell_fused(const Comparison& c, std::vector<std::string>& out) {
  double a = 0;
  double b = 0;
  bool only = false;
  for (const FamilyRow& row : c.families) {
    if (!fuses(row.family)) continue;
    a += exposed_s_of(row.a);
    b += exposed_s_of(row.b);
    only = only || busy_s(row.a) == 0 || busy_s(row.b) == 0;
  }
  if (!only || a == 0 || b == 0) return;
  out.push_back("kernels bound by memory (norms, losses, element by element, fused ones) take " +
                seconds_text(a) + " in A and " + seconds_text(b) +
                " in B together, however they are named");
}

void tell_idle(const Comparison& c, std::vector<std::string>& out) {
  const StepTimes& a = c.a.time;
  const StepTimes& b = c.b->time;
  const double more = b.idle_s - a.idle_s;
  if (std::fabs(more) < kWorthTelling * std::max(a.step_s, b.step_s)) return;
  std::string why;
  const StepTimes& longer = more > 0 ? b : a;
  if (longer.launch_gaps_s > 0.5 * std::fabs(more)) {
    why = "; " + seconds_text(longer.launch_gaps_s) +
          " of it are gaps below 10 us between kernels: launches, which graphs or fewer kernels "
          "would take away";
  } else if (longer.idle_s > 0) {
    why =
        "; most of it are gaps of 10 us and more: the GPU waits for the host, for data or for "
        "other ranks";
  }
  out.push_back("the GPU idles " + seconds_text(std::fabs(more)) + (more > 0 ? " more" : " less") +
                " in B (" + seconds_text(a.idle_s) + ", " + seconds_text(b.idle_s) + ")" + why);
}

void tell_alone(const Comparison& c, std::vector<std::string>& out) {
  const StepTimes& time = c.a.time;
  double hidden = 0;
  double shown = 0;
  double waiting = 0;
  for (const FamilyRow& row : c.families) {
    if (!communicates(row.family)) continue;
    shown += exposed_s_of(row.a);
    hidden += busy_s(row.a) - exposed_s_of(row.a);
    waiting += row.a->waiting_s;
  }
  if (shown + hidden > 0) {
    out.push_back("communication runs " + seconds_text(shown + hidden) + " a step; nothing hides " +
                  seconds_text(shown) + " of it, " + share_text(shown, time.step_s) +
                  " of the step");
  }
  if (waiting > 0) {
    out.push_back(seconds_text(waiting) + " of it is waiting for partners, the rest transfer");
  }
  if (time.idle_s > kWorthTelling * time.step_s) {
    out.push_back("the GPU idles " + seconds_text(time.idle_s) + ", " +
                  share_text(time.idle_s, time.step_s) + " of the step; " +
                  seconds_text(time.launch_gaps_s) + " of it in gaps below 10 us");
  }
}

}  // namespace

std::vector<std::string> findings_of(const Comparison& c) {
  std::vector<std::string> out;
  if (c.b) {
    const double more = c.b->time.step_s / c.a.time.step_s - 1;
    out.push_back("a step takes " + seconds_text(c.a.time.step_s) + " in A and " +
                  seconds_text(c.b->time.step_s) + " in B, " + fixed(100 * std::fabs(more), 1) +
                  (more < 0 ? " % less" : " % more"));
    tell_families(c, out);
    tell_fused(c, out);
    tell_idle(c, out);
  } else {
    tell_alone(c, out);
  }
  const double unknown =
      std::max(c.a.time.unclassified_share, c.b ? c.b->time.unclassified_share : 0.0);
  if (unknown > kWorthTelling) {
    out.push_back(fixed(100 * unknown, 1) +
                  " % of the kernels' time has names that are not known; it is in \"other\"");
  }
  return out;
}

}  // namespace foretrain
