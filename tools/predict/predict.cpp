#include "tools/predict/predict.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "models/lower.h"
#include "models/plan/expert_plan.h"
#include "sim/base/threads.h"
#include "sim/engine/account.h"
#include "sim/engine/recorder.h"
#include "sim/engine/step_ends.h"
#include "sim/program/repeat.h"
#include "sim/program/verify.h"
#include "tools/predict/interval.h"
#include "tools/report/report.h"

namespace foretrain {
namespace {

/// Steps that are replayed to know one. Where ranks begin one as they have ended the one before,
/// the first, which all begin together, is forgotten by the third.
std::int32_t steps_of(const Plan& plan) { return plan.validates_later() ? 3 : 1; }

/// Busy time of an actor's compute stream by its prices: who has most is critical.
double compute_seconds(const Workload& workload, const Prepared& prepared, std::size_t actor) {
  const Program& program = workload.programs[prepared.quotient.actors[actor].program.index()];
  const PreparedPrices& prices =
      prepared.prices[static_cast<std::size_t>(prepared.prices_of[actor])];
  std::vector<double> of_segment(program.segments.size());
  for (std::size_t s = 0; s < program.segments.size(); ++s) {
    for (const Op& op : program.segments[s].ops) {
      if (op.stream.value != 0) continue;
      of_segment[s] += prices.costs[op.work.index()].duration.seconds();
    }
  }
  double sum = 0;
  for (const Call& call : program.calls) sum += of_segment[call.segment.index()];
  return sum;
}

std::size_t critical_actor(const Workload& workload, const Prepared& prepared) {
  // All actors with one Program and one set of prices are equally busy.
  std::vector<double> known(prepared.prices.size(), -1);
  std::size_t best = 0;
  double most = -1;
  for (std::size_t a = 0; a < prepared.quotient.actors.size(); ++a) {
    double& busy = known[static_cast<std::size_t>(prepared.prices_of[a])];
    if (busy < 0) busy = compute_seconds(workload, prepared, a);
    if (busy <= most) continue;
    most = busy;
    best = a;
  }
  return best;
}

/// Refuses steps that Time, an integer number of picoseconds, may not hold: were every operation of
/// every stage to run after the other, they must take less than a million seconds.
Status check_length(const Run& run, const Workload& workload, const Prepared& prepared) {
  constexpr double kLongest = 1e6;
  std::vector<std::uint8_t> known(prepared.prices.size());
  for (std::size_t a = 0; a < prepared.quotient.actors.size(); ++a) {
    const auto prices_of = static_cast<std::size_t>(prepared.prices_of[a]);
    if (known[prices_of]++ > 0) continue;
    known[prices_of] = 1;
    const PreparedPrices& prices = prepared.prices[prices_of];
    const Program& program = workload.programs[prepared.quotient.actors[a].program.index()];
    std::vector<double> of_segment(program.segments.size());
    for (std::size_t s = 0; s < program.segments.size(); ++s) {
      for (const Op& op : program.segments[s].ops) {
        const Cost& cost = prices.costs[op.work.index()];
        of_segment[s] += cost.duration.seconds() + launch_of(op, cost).seconds();
      }
    }
    double sum = 0;
    for (const Call& call : program.calls) sum += of_segment[call.segment.index()];
    if (sum * static_cast<double>(run.plan.pipeline) < kLongest) continue;
    return input_error(run.source + ": a step would take up to " +
                       seconds_text(sum * static_cast<double>(run.plan.pipeline)) +
                       ", more than 11 days; found a size or a rate out of proportion");
  }
  return ok_status();
}

/// FLOPs that a mean rank's tensor cores execute in a step. Where every rank is taken as the one
/// with most tokens for its experts, `load` times the mean, their products are those of so many.
double executed_flops(const Program& program, double load) {
  std::vector<double> of_segment(program.segments.size());
  for (std::size_t s = 0; s < program.segments.size(); ++s) {
    for (const Op& op : program.segments[s].ops) {
      const double of_rank = op.name.starts_with("moe.experts.") ? load : 1;
      of_segment[s] += flops_of(program.works[op.work.index()]) / of_rank;
    }
  }
  double sum = 0;
  for (const Call& call : program.calls) sum += of_segment[call.segment.index()];
  return sum;
}

double peak_tflops(const Run& run) {
  return foretrain::peak_tflops(run.cluster.device, run.plan.precision.matrix);
}

/// The same plan with data that is there sooner.
Workload with_faster_data(const Run& run, double faster) {
  Plan plan = run.plan;
  for (Time* time : {&plan.data_time, &plan.loader_time}) {
    time->ps = static_cast<std::int64_t>(std::llround(static_cast<double>(time->ps) / faster));
  }
  return repeated(lower(run.model, plan), steps_of(plan));
}

bool uses_storage(const Offload& offload) {
  return offload.optimizer == Memory::kStorage || offload.parameters == Memory::kStorage ||
         (offload.activation_layers > 0 && offload.activations == Memory::kStorage);
}

/// Gains from one resource at a time at 11/10 of its rate; from that of data where it is waited
/// for.
Result<std::vector<Sensitivity>> sensitivities(const Run& run, const Workload& workload, Time base,
                                               bool waits_for_data) {
  constexpr double kFaster = 1.1;
  struct Case {
    const char* name;
    double PriceOptions::*rate;
  };
  constexpr Case kCases[] = {{"arithmetic", &PriceOptions::compute_rate},
                             {"device memory", &PriceOptions::memory_rate},
                             {"links in the node", &PriceOptions::scale_up_rate},
                             {"network", &PriceOptions::network_rate},
                             {"host memory, its links", &PriceOptions::host_rate}};
  const bool offloads = run.plan.offload.states() || run.plan.offload.activation_layers > 0;
  struct What {
    std::string name;
    PriceOptions options;
    const Workload* workload;
    const Run* run;
  };
  const PriceOptions usual = price_options(run);
  std::vector<What> all;
  for (const Case& one : kCases) {
    if (one.rate == &PriceOptions::host_rate && !offloads) continue;
    all.push_back({one.name, usual, &workload, &run});
    all.back().options.*one.rate = kFaster;
  }
  all.push_back({"host launches", usual, &workload, &run});
  Time& dispatch = all.back().options.dispatch_per_kernel;
  dispatch =
      Time{static_cast<std::int64_t>(std::llround(static_cast<double>(dispatch.ps) / kFaster))};
  Run with_storage;
  if (uses_storage(run.plan.offload)) {
    with_storage = run;
    with_storage.cluster.storage_gb_per_s *= kFaster;
    with_storage.cluster.storage_write_gb_per_s *= kFaster;
    all.push_back({"storage", usual, &workload, &with_storage});
  }
  Workload with_data;
  if (waits_for_data) {
    with_data = with_faster_data(run, kFaster);
    all.push_back({"data loading", usual, &with_data, &run});
  }
  const auto step_of = [&run](const What& what) -> Result<Time> {
    const std::unique_ptr<CostModel> model = cost_model_of(*what.run, what.options);
    FT_ASSIGN(const Prepared prepared, prepare(*what.workload, *model, false));
    return step_time(*what.workload, prepared, steps_of(run.plan));
  };
  std::vector<std::optional<Result<Time>>> steps(all.size());
  in_parallel(all.size(), [&](std::size_t i) { steps[i] = step_of(all[i]); });
  std::vector<Sensitivity> out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    FT_ASSIGN(const Time faster, *steps[i]);
    out.push_back({all[i].name, (base - faster).seconds()});
  }
  return out;
}

/// Of the prices' deviations the 95th percentile: within a family of work errors go together,
/// between families they do not. The share of a family is its part of the critical rank's time;
/// waiting follows the rest. The interval has that at least.
void set_interval(const Run& run, const Account& account, Prediction& out) {
  double busy_share = 0;
  double variance = 0;
  for (std::size_t part = 0; part < account.busy_s.size(); ++part) {
    const double exposed = out.breakdown[part].seconds();
    if (account.busy_s[part] <= 0) continue;
    busy_share += exposed;
    variance += std::pow(exposed * account.error_s[part] / account.busy_s[part], 2);
  }
  const double relative = busy_share > 0 ? std::sqrt(variance) / busy_share : 0;
  constexpr double kSpread = 1.645;  // 95th percentile of a normal distribution
  StepInterval& interval = out.interval;
  interval.prices = kSpread * relative;
  const Interval around = interval_around(out.iteration_time_s, interval.prices,
                                          time_deviation(run.model, run.cluster));
  interval.low_s = around.low;
  interval.high_s = around.high;
  if (account.all_s <= 0) return;
  for (std::size_t i = 0; i < out.provenance.size(); ++i) {
    out.provenance[i] = account.provenance_s[i] / account.all_s;
  }
}

/// Hands every span to two sinks.
class Tee : public SpanSink {
 public:
  Tee(SpanSink& a, SpanSink& b) : x_a(a), x_b(b) {}
  void span(const OpTimes& times) override {
    x_a.span(times);
    x_b.span(times);
  }

 private:
  SpanSink& x_a;
  SpanSink& x_b;
};

/// Passes spans on and reports progress every million.
class Counter : public SpanSink {
 public:
  Counter(SpanSink& next, std::int64_t total,
          const std::function<void(std::int64_t, std::int64_t)>& report)
      : x_next(next), x_total(total), x_report(report) {}
  void span(const OpTimes& times) override {
    x_next.span(times);
    if ((++x_done & 0xfffff) == 0) x_report(x_done, x_total);
  }

 private:
  SpanSink& x_next;
  std::int64_t x_total, x_done = 0;
  const std::function<void(std::int64_t, std::int64_t)>& x_report;
};

std::int64_t operations_in_all(const Workload& workload, const Prepared& prepared) {
  std::vector<std::int64_t> of_program;
  for (const Program& program : workload.programs) of_program.push_back(count_ops(program));
  std::int64_t sum = 0;
  for (const Actor& actor : prepared.quotient.actors) sum += of_program[actor.program.index()];
  return sum;
}

Status choose_actors(const Prepared& prepared, const PredictOptions& options,
                     std::vector<std::uint8_t>& wanted) {
  wanted.assign(prepared.quotient.actors.size(), 0);
  if (!options.timeline) return ok_status();
  if (options.trace_ranks.empty()) {
    std::fill(wanted.begin(), wanted.end(), 1);
    return ok_status();
  }
  const auto ranks = static_cast<std::int64_t>(prepared.quotient.actor_of.size());
  for (const std::int64_t rank : options.trace_ranks) {
    if (rank < 0 || rank >= ranks) {
      return input_error("--trace-ranks: no rank " + std::to_string(rank) + "; there are " +
                         std::to_string(ranks));
    }
    wanted[static_cast<std::size_t>(prepared.quotient.actor_of[static_cast<std::size_t>(rank)])] =
        1;
  }
  return ok_status();
}

void fill_rates(const Run& run, const Workload& workload, Prediction& out) {
  const double seconds = out.iteration_time_s;
  const double tokens =
      static_cast<double>(run.plan.global_batch) * static_cast<double>(run.plan.sequence_length);
  const auto accelerators = static_cast<double>(run.cluster.accelerators);
  const FlopConventions flops =
      model_flops(run.model, run.plan.global_batch * run.plan.sequence_length,
                  run.plan.sequence_length, run.plan.target(), run.plan.documents);
  // A third is one forward pass; those whose output comes back have no head.
  const double head = 2 * tokens * static_cast<double>(run.model.vocabulary * run.model.hidden);
  const double causal =
      flops.causal + static_cast<double>(run.plan.forwards - 1) * (flops.causal / 3 - head);
  out.parameters = parameter_count(run.model);
  out.tokens_per_s = tokens / seconds;
  out.model_tflops_per_accelerator = causal / seconds / accelerators / 1e12;
  out.mfu = out.model_tflops_per_accelerator / peak_tflops(run);
  const double load = busiest_load(run.plan.experts);
  double executed = 0;
  for (const Program& program : workload.programs) executed += executed_flops(program, load);
  executed *= accelerators / static_cast<double>(workload.programs.size());
  out.hfu = executed / seconds / accelerators / 1e12 / peak_tflops(run);
}

/// Of a step that all ranks begin together, where the one predicted is not such a one.
Result<Timeline> first_step(const Workload& workload, CostModel& model, bool full,
                            Recorder& recorder,
                            const std::function<std::string(RankId)>& track_name) {
  FT_ASSIGN(const Prepared prepared, prepare(workload, model, full));
  FT_ASSIGN(const Replay result, replay(workload, prepared, &recorder));
  return recorder.take(workload, prepared, result, track_name);
}

/// The allocator's waits for the device, in every Program that has some.
void add_retries(const MemoryReport& memory, Workload& workload) {
  for (const auto& [program, retries] : memory.retries) {
    Program& retried = workload.programs[program];
    retried = with_retries(std::move(retried), retries, memory.retry_per_gib);
  }
}

/// `out` with how long a step takes, replayed with no eye on where its time goes.
Result<Prediction> with_step(const Run& run, const Workload& workload, const Workload& timed,
                             const Prepared& prepared, Prediction out) {
  FT_ASSIGN(const Time step, step_time(timed, prepared, steps_of(run.plan)));
  out.iteration_time_s = step.seconds();
  fill_rates(run, workload, out);
  return out;
}

}  // namespace

Result<Prediction> predict(const Run& run, const PredictOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  Prediction out;
  Workload workload = lower(run.model, run.plan);
  if (options.verify) {
    if (const Status status = verify(workload); !status.ok()) {
      return input_error(
          "the lowered program is not well-formed (a bug of foretrain, please report): " +
          status.error().message);
    }
  }
  for (const Program& program : workload.programs) out.lowered += count_ops(program);
  FT_ASSIGN(out.memory, report_memory(run, workload));
  if (options.most_memory > 0 && !out.memory.within(options.most_memory)) return out;
  if (out.memory.peak_gib > out.memory.capacity_gib) {
    FT_ASSIGN(out.memory.least_gib, least_memory(run, workload, out.memory));
  }
  add_retries(out.memory, workload);
  const std::int32_t steps = steps_of(run.plan);
  const Workload several = steps > 1 ? repeated(workload, steps) : Workload();
  const Workload& timed = steps > 1 ? several : workload;
  const std::unique_ptr<CostModel> model = cost_model_of(run, price_options(run));
  FT_ASSIGN(const Prepared prepared, prepare(timed, *model, options.full));
  FT_TRY(check_length(run, timed, prepared));
  if (options.step_alone) return with_step(run, workload, timed, prepared, std::move(out));
  const std::size_t critical = critical_actor(timed, prepared);
  std::vector<std::uint8_t> wanted;
  FT_TRY(choose_actors(prepared, options, wanted));
  Accountant of_critical(critical);
  Recorder of_shown(wanted);
  Tee tee(of_critical, of_shown);
  const bool shows = options.timeline && steps == 1;
  StepEnds ends(timed, prepared, steps, &of_critical);
  SpanSink& sink = shows       ? static_cast<SpanSink&>(tee)
                   : steps > 1 ? static_cast<SpanSink&>(ends)
                               : of_critical;
  Counter counter(sink, operations_in_all(timed, prepared), options.progress);
  FT_ASSIGN(const Replay result, replay(timed, prepared, options.progress ? &counter : &sink));
  const Time step = steps > 1 ? ends.longest() : result.end;
  const auto track_name = [&run](RankId rank) {
    return "rank " + std::to_string(rank.value) + ": " + name_of(coordinates_of(run.plan, rank));
  };
  const Account account = of_critical.take(timed, prepared, ends.begin(critical), step);
  out.iteration_time_s = step.seconds();
  out.critical_rank = prepared.quotient.actors[critical].rank.value;
  out.breakdown = account.breakdown;
  fill_rates(run, workload, out);
  set_interval(run, account, out);
  if (options.sensitivity) {
    const Time data = out.breakdown[static_cast<std::size_t>(Part::kData)];
    const bool waits = data.ps > step.ps / 100;
    FT_ASSIGN(out.sensitivity, sensitivities(run, timed, step, waits));
  }
  out.ranks = run.cluster.accelerators;
  out.ranks_simulated = static_cast<std::int64_t>(prepared.quotient.actors.size());
  out.operations = result.operations;
  out.events = result.events;
  if (options.timeline) {
    if (shows) {
      out.timeline = of_shown.take(timed, prepared, result, track_name);
    } else {
      FT_ASSIGN(out.timeline, first_step(workload, *model, options.full, of_shown, track_name));
    }
    out.timeline->name = run.name;
  }
  out.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return out;
}

}  // namespace foretrain
