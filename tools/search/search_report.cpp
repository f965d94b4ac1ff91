#include "tools/search/search_report.h"

#include <algorithm>
#include <cstdio>

#include "sim/base/printable.h"
#include "tools/report/report.h"

namespace foretrain {
namespace {

constexpr std::size_t kFrontShown = 8;

std::string padded(const std::string& text, std::size_t width) {
  return text.size() >= width ? text : std::string(width - text.size(), ' ') + text;
}

std::string percent_changed(double fraction) {
  const std::string text = fixed(100 * fraction, 1);
  return (fraction > 0 ? "+" : "") + text + " %";
}

bool has_costs(const SearchResult& result) {
  return std::any_of(result.plans.begin(), result.plans.end(),
                     [](const FoundPlan& plan) { return plan.cost > 0; });
}

bool has_machines(const SearchOptions& options) {
  return options.clusters.size() > 1 || options.accelerators.size() > 1;
}

/// "12.3 s, MFU 45.6 %, 70.1 of 79.7 GiB".
std::string verdict(const FoundPlan& plan) {
  return seconds_text(plan.iteration_time_s) + ", MFU " + fixed(100 * plan.mfu, 1) + " %, " +
         fixed(plan.memory.peak_gib, 1) + " of " + fixed(plan.memory.capacity_gib, 1) + " GiB";
}

std::string row(const FoundPlan& plan, const SearchResult& result, const SearchOptions& options) {
  std::string out = "  " + padded(seconds_text(plan.iteration_time_s), 9);
  out += padded(fixed(100 * plan.mfu, 1) + " %", 9);
  out += padded(fixed(plan.memory.peak_gib, 1) + " GiB", 11);
  if (result.own) {
    out += padded(percent_changed(plan.iteration_time_s / result.own->iteration_time_s - 1), 10);
  }
  if (has_costs(result)) out += padded(fixed(plan.cost, 2), 10);
  if (result.draws > 0) {
    out += padded(plan.wins < 0 ? "" : fixed(100 * plan.wins, 0) + " %", 7);
  }
  if (has_machines(options)) {
    out += "  " + std::to_string(plan.accelerators) + " of " + plan.cluster;
  }
  const std::vector<std::string> sets = sets_of(plan);
  return out + "  " + (sets.empty() ? "the RUN as it is" : sets_text(sets)) + "\n";
}

std::string header(const SearchResult& result, const SearchOptions& options) {
  std::string out = "  " + padded("step", 9) + padded("MFU", 9) + padded("memory", 11);
  if (result.own) out += padded("to RUN", 10);
  if (has_costs(result)) out += padded("cost", 10);
  if (result.draws > 0) out += padded("wins", 7);
  if (has_machines(options)) out += "  accelerators";
  return out + "  changes\n";
}

std::string certificate_text(const SearchResult& result) {
  const Certificate& c = result.certificate;
  std::string out = "\nOf " + count_text(c.plans) + " plans " + count_text(c.simulated) +
                    " were simulated and fit, " + count_text(c.too_large) +
                    " do not fit, rules refuse " + count_text(c.refused) + ", ";
  if (c.excluded > 0) out += "--where excludes " + count_text(c.excluded) + ", ";
  out += count_text(c.bounded) + " cannot be better by their bounds";
  if (c.open > 0) out += ", " + count_text(c.open) + " are left";
  out += ".\n";
  if (c.complete) {
    out += result.plans.empty() ? "" : "No plan of the space is better: proved";
  } else {
    out +=
        "Stopped before the proof: no plan can be more than " + fixed(100 * c.gap, 1) + " % better";
  }
  if (c.complete && result.plans.empty())
    return out + "Looked for " + seconds_text(result.wall_s) + ".\n";
  return out + ", in " + seconds_text(result.wall_s) + ".\n";
}

/// Of the best plans those that win in one of twenty draws or more.
std::size_t not_told_apart(const SearchResult& result) {
  constexpr double kOften = 0.05;
  return static_cast<std::size_t>(
      std::count_if(result.plans.begin(), result.plans.end(),
                    [](const FoundPlan& plan) { return plan.wins >= kOften; }));
}

std::string robustness_text(const SearchResult& result) {
  if (result.draws == 0 || result.drawn_plans < 2) return "";
  std::string out = "\nWith errors drawn from their deviations the best plan is the best of " +
                    count_text(result.drawn_plans) + " in " +
                    fixed(100 * result.plans.front().wins, 0) + " % of draws";
  const std::size_t several = not_told_apart(result);
  if (several > 1) {
    out += "; " + std::to_string(several) + " win in 5 % or more and cannot be told apart";
  }
  return out + ".\n";
}

std::string front_text(const SearchResult& result, const SearchOptions& options) {
  const std::vector<std::size_t> front = pareto_front(result.plans);
  if (front.size() < 2) return "";
  std::string out = "\nLess memory for more time, of the plans that were simulated\n";
  for (std::size_t i = 0; i < std::min(front.size(), kFrontShown); ++i) {
    out += row(result.plans[front[i]], result, options);
  }
  return out;
}

Json plan_json(const FoundPlan& plan) {
  Json out{Json::Object{}};
  out.set("run", plan.run);
  Json changes{Json::Object{}};
  for (const auto& [key, value] : plan.changes) {
    std::string pointer = "/" + key;
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    changes.set(pointer, value);
  }
  out.set("changes", std::move(changes));
  out.set("cluster", Json(plan.cluster));
  out.set("accelerators", Json(plan.accelerators));
  out.set("iteration_time_s", Json(plan.iteration_time_s));
  out.set("tokens_per_s", Json(plan.tokens_per_s));
  out.set("mfu", Json(plan.mfu));
  Json memory{Json::Object{}};
  memory.set("peak_gib", Json(plan.memory.peak_gib));
  memory.set("capacity_gib", Json(plan.memory.capacity_gib));
  memory.set("fits", Json(plan.memory.fits));
  memory.set("host_gib", Json(plan.memory.host_gib));
  out.set("memory", std::move(memory));
  out.set("cost", plan.cost > 0 ? Json(plan.cost) : Json());
  out.set("energy_kwh", plan.energy_kwh > 0 ? Json(plan.energy_kwh) : Json());
  if (plan.wins >= 0) out.set("wins", plan.wins);
  return out;
}

}  // namespace

std::vector<std::string> sets_of(const FoundPlan& plan) {
  std::vector<std::string> out;
  for (const auto& [key, value] : plan.changes) {
    out.push_back(key + "=" + (value.string() != nullptr ? *value.string() : dump_json(value, -1)));
  }
  return out;
}

std::string progress_text(const SearchProgress& progress) {
  const Certificate& c = progress.so_far;
  std::string out = fixed(progress.seconds, 0) + " s: " + count_text(c.simulated) + " simulated, " +
                    count_text(c.too_large) + " too large";
  if (progress.best != nullptr) out += ", best " + verdict(*progress.best);
  return out;
}

std::string search_text(const SearchResult& result, const SearchOptions& options,
                        std::size_t shown) {
  std::string out;
  if (result.own) {
    const bool fits = result.own->memory.fits;
    out += "RUN    " + verdict(*result.own) + (fits ? "" : ": does not fit") + "\n";
  }
  if (!result.plans.empty()) {
    out += "Best   " + verdict(result.plans.front()) + "\n\n" + header(result, options);
    for (std::size_t i = 0; i < std::min(shown, result.plans.size()); ++i) {
      out += row(result.plans[i], result, options);
    }
    out += robustness_text(result) + front_text(result, options);
  } else if (result.nearest) {
    out += "No plan fits. The nearest: " + verdict(*result.nearest) + "\n" +
           header(result, options) + row(*result.nearest, result, options);
  } else {
    out += "No plan was found.\n";
  }
  if (result.plans.empty() && !result.reasons.empty()) {
    out += "\nWhat most often refuses a plan\n";
    for (const std::string& reason : result.reasons) out += "  " + printable_line(reason) + "\n";
  }
  return out + certificate_text(result);
}

Json search_json(const SearchResult& result, const SearchOptions& options) {
  Json out{Json::Object{}};
  out.set("schema", Json("foretrain/search/1"));
  out.set("objective", Json(kObjectiveNames[static_cast<std::size_t>(options.objective)]));
  out.set("best", result.plans.empty() ? Json() : plan_json(result.plans.front()));
  Json::Array plans;
  for (const FoundPlan& plan : result.plans) plans.push_back(plan_json(plan));
  out.set("plans", Json(std::move(plans)));
  Json::Array front;
  for (const std::size_t i : pareto_front(result.plans)) {
    front.push_back(plan_json(result.plans[i]));
  }
  out.set("front", Json(std::move(front)));
  out.set("own", result.own ? plan_json(*result.own) : Json());
  out.set("nearest", result.nearest ? plan_json(*result.nearest) : Json());
  Json robustness{Json::Object{}};
  robustness.set("draws", result.draws);
  robustness.set("plans", result.drawn_plans);
  robustness.set("best_wins", result.draws > 0 ? Json(result.plans.front().wins) : Json());
  robustness.set("not_told_apart", static_cast<std::int64_t>(not_told_apart(result)));
  out.set("robustness", std::move(robustness));
  const Certificate& c = result.certificate;
  Json certificate{Json::Object{}};
  certificate.set("plans", Json(c.plans));
  certificate.set("refused", Json(c.refused));
  certificate.set("excluded", Json(c.excluded));
  certificate.set("too_large", Json(c.too_large));
  certificate.set("bounded", Json(c.bounded));
  certificate.set("simulated", Json(c.simulated));
  certificate.set("open", Json(c.open));
  certificate.set("gap", Json(c.gap));
  certificate.set("complete", Json(c.complete));
  out.set("certificate", std::move(certificate));
  out.set("wall_s", Json(result.wall_s));
  return out;
}

std::string search_csv(const SearchResult& result) {
  std::string out =
      "iteration_time_s,tokens_per_s,mfu,peak_gib,cost,cluster,accelerators,changes\n";
  for (const FoundPlan& plan : result.plans) {
    std::string changes;
    for (const std::string& set : sets_of(plan)) changes += (changes.empty() ? "" : " ") + set;
    char line[256];
    std::snprintf(line, sizeof line, "%.6g,%.6g,%.4f,%.3f,%.6g,", plan.iteration_time_s,
                  plan.tokens_per_s, plan.mfu, plan.memory.peak_gib, plan.cost);
    out += line + csv_cell(plan.cluster) + "," + std::to_string(plan.accelerators) + "," +
           csv_cell(changes) + "\n";
  }
  return out;
}

}  // namespace foretrain
