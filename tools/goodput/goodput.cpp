#include "tools/goodput/goodput.h"

#include <algorithm>
#include <cmath>

#include "sim/base/stop.h"
#include "sim/base/threads.h"
#include "sim/campaign/interval.h"
#include "tools/goodput/campaign_plan.h"
#include "tools/report/report.h"

namespace foretrain {
namespace {

/// Campaigns from which the best interval and what helps are told: of the same failures each time.
constexpr std::int64_t kAdviceCampaigns = 200;

/// Mean time between failures, s; of a trace over the time that it spans.
std::optional<double> mttf_of(const CampaignPlan& plan) {
  double per_s = failures_per_day(plan.failures) / kSecondsPerDay;
  if (!plan.failures.trace.empty()) {
    const double span = std::max(plan.failures.trace.back().at_s, seconds_of(work_of(plan.work)));
    per_s += static_cast<double>(plan.failures.trace.size()) / span;
  }
  if (per_s <= 0) return {};
  return 1 / per_s;
}

/// From a failure until the job works again, without waiting for nodes.
double recovery_of(const CampaignPlan& plan, double step_s) {
  const RecoveryPlan& r = plan.recovery;
  return r.detect_s + r.diagnose_s + r.start_s + plan.saving.load_s[1] +
         static_cast<double>(r.warm_up_steps) * step_s;
}

/// Refuses campaigns that do not get on: failures come faster than recovery and an interval pass.
/// Where policies go on without a checkpoint, a failure costs the pause and a step.
Status check_end(const Run& run, const Goodput& g) {
  const double per_s = failures_per_day(g.plan.failures) / kSecondsPerDay;
  if (per_s <= 0) return ok_status();
  const bool goes_on = g.plan.fleet.policy > PolicyKind::kShrink;
  const double interval_s =
      goes_on ? g.step_time_s
              : static_cast<double>(std::max<std::int64_t>(1, g.plan.saving.every_steps)) *
                    g.step_time_s;
  const double recovery_s = goes_on ? g.plan.recovery.detect_s + g.plan.fleet.pause_s
                                    : recovery_of(g.plan, g.step_time_s);
  const double stall_s = goes_on ? 0 : g.plan.saving.stall_s;
  const double wall = expected_wall(per_s, recovery_s, interval_s, stall_s);
  if (std::isfinite(wall) && wall < g.plan.longest) return ok_status();
  return input_error(run.source + ": /campaign: it would not end: a failure comes every " +
                     seconds_text(1 / per_s) + ", a recovery takes " + seconds_text(recovery_s) +
                     " and an interval with its checkpoint " + seconds_text(interval_s + stall_s) +
                     "; expected fewer failures, a faster recovery or a shorter interval");
}

Error no_end(const Run& run, const Goodput& g) {
  return input_error(run.source + ": /campaign: it does not end: after " +
                     fixed(g.plan.longest, 0) +
                     " times the time of its work it is not done; expected fewer failures, a "
                     "faster recovery, or what replaces nodes");
}

double days_of(const CampaignPlan& plan, const Goodput& g, std::size_t threads) {
  const std::int64_t count = std::min(g.campaigns, kAdviceCampaigns);
  const CampaignStatistics all = simulate_campaigns(plan, g.seed, count, threads);
  return all.ended ? all.days.mean : std::numeric_limits<double>::infinity();
}

/// The least of a + b t + c / t through the points, by least squares of relative errors; the form
/// that overhead has where failures are rare (Young 1974).
double best_of(const std::vector<std::pair<double, double>>& points) {
  // Normal equations of three unknowns, solved by elimination.
  double m[3][4] = {};
  for (const auto& [t, days] : points) {
    const double row[4] = {1 / days, t / days, 1 / t / days, 1};
    for (int i = 0; i < 3; ++i) {
      for (int j = 0; j < 4; ++j) m[i][j] += row[i] * row[j];
    }
  }
  for (int i = 0; i < 3; ++i) {
    for (int k = 0; k < 3; ++k) {
      if (k == i || m[i][i] == 0) continue;
      const double factor = m[k][i] / m[i][i];
      for (int j = i; j < 4; ++j) m[k][j] -= factor * m[i][j];
    }
  }
  const double b = m[1][3] / m[1][1];
  const double c = m[2][3] / m[2][2];
  const double low = points.front().first;
  const double high = points.back().first;
  if (!(b > 0)) return high;
  if (!(c > 0)) return low;
  return std::clamp(std::sqrt(c / b), low, high);
}

/// Steps between checkpoints with which the campaign is shortest; 0: none are wanted.
std::int64_t best_interval(const Goodput& g, std::size_t threads) {
  if (!g.mttf_s) return 0;
  const SavingPlan& saving = g.plan.saving;
  double written = 0;
  for (const double ready : saving.ready_s) {
    if (std::isfinite(ready) && saving.waits_for_writer) written = std::max(written, ready);
  }
  const double middle =
      std::max({young_interval(saving.stall_s, *g.mttf_s), written, g.step_time_s});
  std::vector<std::pair<double, double>> points;
  CampaignPlan plan = g.plan;
  for (const double factor : {0.25, 0.4, 0.63, 1.0, 1.6, 2.5, 4.0}) {
    const auto steps = std::clamp<std::int64_t>(std::llround(factor * middle / g.step_time_s), 1,
                                                std::max<std::int64_t>(1, g.steps - 1));
    const auto t = static_cast<double>(steps);
    if (!points.empty() && points.back().first >= t) continue;
    plan.saving.every_steps = steps;
    const double days = days_of(plan, g, threads);
    if (std::isfinite(days)) points.emplace_back(t, days);
  }
  if (points.empty()) return 1;
  if (points.size() < 4) {
    const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
    return std::llround(std::min_element(points.begin(), points.end(), less)->first);
  }
  return std::max<std::int64_t>(1, std::llround(best_of(points)));
}

void halve(double& value) { value /= 2; }

void halve_rates(CampaignPlan& plan) {
  for (FailureProcess& one : plan.failures.processes) halve(one.per_day);
}

/// What each thing that costs time would give if it were half as bad, the most first.
std::vector<Lever> levers(const Goodput& g, std::size_t threads) {
  struct Case {
    const char* name;
    std::function<void(CampaignPlan&)> change;
  };
  const Case cases[] = {
      {"failures", halve_rates},
      {"detection", [](auto& p) { halve(p.recovery.detect_s); }},
      {"diagnosis", [](auto& p) { halve(p.recovery.diagnose_s); }},
      {"start", [](auto& p) { halve(p.recovery.start_s); }},
      {"pause", [](auto& p) { halve(p.fleet.pause_s); }},
      {"warm-up", [](auto& p) { p.recovery.warm_up_steps /= 2; }},
      {"replacement",
       [](auto& p) {
         if (p.recovery.queue_s) halve(*p.recovery.queue_s);
         for (auto& one : p.failures.processes) halve(one.repair_s);
       }},
      {"checkpoint stall", [](auto& p) { halve(p.saving.stall_s); }},
      {"checkpoint load",
       [](auto& p) {
         for (double& s : p.saving.load_s) halve(s);
         halve(p.saving.reshard_s);
       }},
      {"slow-downs",
       [](auto& p) {
         for (auto& one : p.failures.slow) halve(one.per_day);
       }},
      {"evaluation", [](auto& p) { halve(p.work.evaluation_s); }},
  };
  const double days = days_of(g.plan, g, threads);
  std::vector<Lever> out;
  for (const Case& one : cases) {
    CampaignPlan plan = g.plan;
    one.change(plan);
    const double gain = days - days_of(plan, g, threads);
    if (gain != 0) out.push_back({one.name, gain});
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Lever& a, const Lever& b) { return a.days > b.days; });
  return out;
}

/// Spares with which the campaign takes the fewest GPU-hours, its spares counted: of 0, 1, 2, 4,
/// ...
std::int64_t best_spares(const Goodput& g, std::size_t threads) {
  CampaignPlan plan = g.plan;
  std::int64_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (std::int64_t spares = 0; spares <= std::max<std::int64_t>(64, 2 * g.plan.fleet.spares);
       spares = spares == 0 ? 1 : 2 * spares) {
    plan.fleet.spares = spares;
    const double days = days_of(plan, g, threads);
    const double nodes = static_cast<double>(plan.fleet.nodes + spares) * days;
    if (nodes >= least) continue;
    least = nodes;
    best = spares;
  }
  return best;
}

}  // namespace

std::vector<std::string> component_names(const FailureModel& failures) {
  std::vector<std::string> out;
  for (const FailureProcess& process : failures.processes) out.push_back(process.component);
  for (const std::string& name : failures.traced_components) out.push_back(name);
  return out;
}

CampaignStatistics simulate_campaigns(const CampaignPlan& plan, std::uint64_t seed,
                                      std::int64_t campaigns, std::size_t threads) {
  std::vector<CampaignOutcome> outcomes(static_cast<std::size_t>(campaigns));
  constexpr std::size_t kAtOnce = 16;
  in_parallel((outcomes.size() + kAtOnce - 1) / kAtOnce,
              [&](std::size_t block) {
                const std::size_t end = std::min(outcomes.size(), (block + 1) * kAtOnce);
                for (std::size_t i = block * kAtOnce; i < end && !stop_asked(); ++i) {
                  outcomes[i] = simulate_campaign(plan, seed, i);
                }
              },
              threads);
  if (!stop_asked()) return statistics_of(outcomes);
  CampaignStatistics none;
  none.ended = false;
  return none;
}

Result<Goodput> goodput_of(const Run& run, const GoodputOptions& options) {
  if (!run.cluster.pools.empty()) {
    return unsupported(run.source + ": /cluster/pools: failures are of nodes of one kind");
  }
  FT_ASSIGN(std::optional<CampaignRequest> request, campaign_of(run));
  if (request) request->waits_for_repair = options.same_repair;
  if (!request) {
    return input_error(run.source +
                       R"(: /campaign: is missing, expected {"tokens": N, "reliability": PRESET})");
  }
  Goodput out;
  out.seed = static_cast<std::uint64_t>(options.seed.value_or(request->sampling.seed));
  out.campaigns = options.campaigns.value_or(request->sampling.campaigns);
  FT_TRY(plan_campaign(run, *request, out));
  out.mttf_s = mttf_of(out.plan);
  FT_TRY(check_end(run, out));
  SavingPlan& saving = out.plan.saving;
  const bool open = saving.every_steps == 0;
  if (open || options.advice) {
    const std::int64_t best = best_interval(out, options.threads);
    if (best > 0) out.checkpoint.best_s = static_cast<double>(best) * out.step_time_s;
    if (open) saving.every_steps = best < out.steps ? best : 0;
  }
  out.checkpoint.interval_s = static_cast<double>(saving.every_steps) * out.step_time_s;
  if (out.mttf_s) {
    out.checkpoint.young_s = young_interval(saving.stall_s, *out.mttf_s);
    out.checkpoint.daly_s = daly_interval(saving.stall_s, *out.mttf_s);
  }
  FT_TRY(check_end(run, out));
  out.statistics = simulate_campaigns(out.plan, out.seed, out.campaigns, options.threads);
  if (stop_asked()) return input_error("stopped before its end");
  if (!out.statistics.ended) return no_end(run, out);
  out.bill = bill_of(run, request->price, out.statistics.days.mean, request->spares);
  out.bill.steps = out.steps;
  if (options.advice) {
    out.sensitivity = levers(out, options.threads);
    if (out.plan.fleet.policy != PolicyKind::kWait && out.mttf_s) {
      out.best_spares = best_spares(out, options.threads);
    }
  }
  return out;
}

}  // namespace foretrain
