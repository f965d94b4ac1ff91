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
#include "sim/engine/steady.h"
#include "sim/engine/step_ends.h"
#include "sim/program/repeat.h"
#include "sim/program/verify.h"
#include "tools/predict/bounds/fewer_stages.h"
#include "tools/predict/interval.h"
#include "tools/report/report.h"

namespace foretrain {
namespace {

/// Busy picoseconds of an actor's compute stream by its prices: who has most is critical.
std::int64_t busy_ps(const LoweredStep& step, const Prepared& prepared, std::size_t actor) {
  const std::size_t p = prepared.quotient.actors[actor].program.index();
  const Program& program = step.workload.programs[p];
  const PreparedPrices& prices =
      prepared.prices[static_cast<std::size_t>(prepared.prices_of[actor])];
  std::vector<std::int64_t> of_segment(program.segments.size());
  for (std::size_t s = 0; s < program.segments.size(); ++s) {
    for (const Op& op : program.segments[s].ops) {
      if (op.stream.value != 0) continue;
      of_segment[s] += prices.costs[op.work.index()].duration.ps;
    }
  }
  return sum_over_calls(step, p, of_segment);
}

std::size_t critical_actor(const LoweredStep& step, const Prepared& prepared) {
  // All actors with one Program and one set of prices are equally busy.
  std::vector<std::int64_t> known(prepared.prices.size(), -1);
  std::size_t best = 0;
  std::int64_t most = -1;
  for (std::size_t a = 0; a < prepared.quotient.actors.size(); ++a) {
    std::int64_t& busy = known[static_cast<std::size_t>(prepared.prices_of[a])];
    if (busy < 0) busy = busy_ps(step, prepared, a);
    if (busy <= most) continue;
    most = busy;
    best = a;
  }
  return best;
}

/// Refuses steps that Time, an integer number of picoseconds, may not hold: were every operation of
/// every stage to run after the other, they must take less than a million seconds.
Status check_length(const Run& run, const LoweredStep& step, const Prepared& prepared) {
  constexpr double kLongest = 1e6;
  std::vector<std::uint8_t> known(prepared.prices.size());
  for (std::size_t a = 0; a < prepared.quotient.actors.size(); ++a) {
    const auto prices_of = static_cast<std::size_t>(prepared.prices_of[a]);
    if (known[prices_of]++ > 0) continue;
    const PreparedPrices& prices = prepared.prices[prices_of];
    const std::size_t p = prepared.quotient.actors[a].program.index();
    const Program& program = step.workload.programs[p];
    std::vector<double> of_segment(program.segments.size());
    for (std::size_t s = 0; s < program.segments.size(); ++s) {
      for (const Op& op : program.segments[s].ops) {
        const Cost& cost = prices.costs[op.work.index()];
        of_segment[s] += cost.duration.seconds() + launch_of(op, cost).seconds();
      }
    }
    const double sum = sum_over_calls(step, p, of_segment);
    if (sum * static_cast<double>(run.plan.pipeline) < kLongest) continue;
    return input_error(run.source + ": a step would take up to " +
                       seconds_text(sum * static_cast<double>(run.plan.pipeline)) +
                       ", more than 11 days; found a size or a rate out of proportion");
  }
  return ok_status();
}

/// FLOPs that a mean rank's tensor cores execute in a step. Where every rank is taken as the one
/// with most tokens for its experts, `load` times the mean, their products are those of so many.
double executed_flops(const LoweredStep& step, std::size_t p, double load) {
  const Program& program = step.workload.programs[p];
  std::vector<double> of_segment(program.segments.size());
  for (std::size_t s = 0; s < program.segments.size(); ++s) {
    for (const Op& op : program.segments[s].ops) {
      const double of_rank = op.name.starts_with("moe.experts.") ? load : 1;
      of_segment[s] += flops_of(program.works[op.work.index()]) / of_rank;
    }
  }
  return sum_over_calls(step, p, of_segment);
}

double peak_tflops(const Run& run) { return run.cluster.mean_tflops(run.plan.precision.matrix); }

/// The same plan with data that is there sooner.
Plan with_faster_data(Plan plan, double faster) {
  for (Time* time : {&plan.data_time, &plan.loader_time}) {
    time->ps = static_cast<std::int64_t>(std::llround(static_cast<double>(time->ps) / faster));
  }
  return plan;
}

bool uses_storage(const Offload& offload) {
  return offload.optimizer == Memory::kStorage || offload.parameters == Memory::kStorage ||
         (offload.activation_layers > 0 && offload.activations == Memory::kStorage);
}

/// A step with one resource at a higher rate.
struct Faster {
  std::string name;
  PriceOptions options;
  const LoweredStep* step;
  const Run* run;
  const Plan* plan;  ///< that the step stands for
};

bool same_costs(const Prepared& a, const Prepared& b) {
  return std::equal(a.prices.begin(), a.prices.end(), b.prices.begin(), b.prices.end(),
                    [](const auto& x, const auto& y) {
                      return x.sm_count == y.sm_count && x.costs == y.costs &&
                             x.message_costs == y.message_costs;
                    });
}

/// How long it takes. `folded`: the same step at the usual prices, at which it takes `usual`; none
/// where it has not been folded.
Result<Time> step_of(const Model& model, const Faster& what, const Prepared* folded, Time usual) {
  const std::unique_ptr<CostModel> prices = cost_model_of(*what.run, what.options);
  const Workload& replayed = what.step->replayed();
  FT_ASSIGN(const Prepared priced, folded != nullptr ? price_again(replayed, *prices, *folded)
                                                     : prepare(replayed, *prices, false));
  if (folded != nullptr && same_costs(priced, *folded)) return usual;
  FT_ASSIGN(const std::optional<Time> time, step_time(*what.step, priced));
  if (time) return *time;
  FT_TRY(lowerable(model, *what.plan));
  const LoweredStep whole = lower_step(model, *what.plan);
  FT_ASSIGN(const Prepared of_whole, prepare(whole.replayed(), *prices, false));
  FT_ASSIGN(const std::optional<Time> of_all, step_time(whole, of_whole));
  return *of_all;
}

/// Gains from one resource at a time at 11/10 of its rate; from that of data where it is waited
/// for. `folded`: the step at the usual prices; none where its ranks stand for themselves.
Result<std::vector<Sensitivity>> sensitivities(const Run& run, const PriceOptions& usual,
                                               const LoweredStep& step, const Prepared* folded,
                                               Time base, bool waits_for_data) {
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
  std::vector<Faster> all;
  for (const Case& one : kCases) {
    if (one.rate == &PriceOptions::host_rate && !offloads) continue;
    all.push_back({one.name, usual, &step, &run, &run.plan});
    all.back().options.*one.rate = kFaster;
  }
  all.push_back({"host launches", usual, &step, &run, &run.plan});
  Time& dispatch = all.back().options.dispatch_per_kernel;
  dispatch =
      Time{static_cast<std::int64_t>(std::llround(static_cast<double>(dispatch.ps) / kFaster))};
  Run with_storage;
  if (uses_storage(run.plan.offload)) {
    with_storage = run;
    std::vector<Cluster*> clusters = {&with_storage.cluster};
    for (Cluster& pool : with_storage.cluster.pools) clusters.push_back(&pool);
    for (Cluster* cluster : clusters) {
      cluster->storage_gb_per_s *= kFaster;
      cluster->storage_write_gb_per_s *= kFaster;
    }
    all.push_back({"storage", usual, &step, &with_storage, &run.plan});
  }
  std::optional<LoweredStep> with_data;
  const Plan sooner = with_faster_data(run.plan, kFaster);
  if (waits_for_data) {
    if (step.more > 0) with_data = lower_fewer(run.model, sooner, step.plan.microbatches());
    if (!with_data) {
      FT_TRY(lowerable(run.model, sooner));
      with_data = lower_step(run.model, sooner);
    }
    all.push_back({"data loading", usual, &*with_data, &run, &sooner});
  }
  std::vector<std::optional<Result<Time>>> steps(all.size());
  in_parallel(all.size(), [&](std::size_t i) {
    steps[i] = step_of(run.model, all[i], all[i].step == &step ? folded : nullptr, base);
  });
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
  for (std::size_t part = 0; part < account.busy_s.size() && busy_share > 0; ++part) {
    if (account.busy_s[part] <= 0) continue;
    out.interval.by_part[part] =
        out.breakdown[part].seconds() * account.error_s[part] / (account.busy_s[part] * busy_share);
  }
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

/// Hands every span to several sinks.
class Sinks : public SpanSink {
 public:
  explicit Sinks(SpanSink* first) : x_all{first} {}
  void add(SpanSink* sink) { x_all.push_back(sink); }
  void span(const OpTimes& times) override {
    for (SpanSink* sink : x_all) sink->span(times);
  }

 private:
  std::vector<SpanSink*> x_all;
};

/// Reports progress every million spans.
class Counter : public SpanSink {
 public:
  Counter(std::int64_t total, const std::function<void(std::int64_t, std::int64_t)>& report)
      : x_total(total), x_report(report) {}
  void span(const OpTimes&) override {
    if ((++x_done & 0xfffff) == 0) x_report(x_done, x_total);
  }

 private:
  std::int64_t x_total, x_done = 0;
  const std::function<void(std::int64_t, std::int64_t)>& x_report;
};

std::int64_t operations_in_all(const LoweredStep& step, const Quotient& quotient) {
  std::vector<std::int64_t> of_program;
  for (std::size_t p = 0; p < step.workload.programs.size(); ++p) {
    of_program.push_back(count_ops(step, p) * step.steps);
  }
  std::int64_t sum = 0;
  for (const Actor& actor : quotient.actors) sum += of_program[actor.program.index()];
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

/// What follows from the step's time and the model.
void fill_model_rates(const Run& run, Prediction& out) {
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
}

void fill_rates(const Run& run, const LoweredStep& step, Prediction& out) {
  fill_model_rates(run, out);
  const double seconds = out.iteration_time_s;
  const auto accelerators = static_cast<double>(run.cluster.accelerators);
  const double load = busiest_load(run.plan.experts);
  double executed = 0;
  const std::size_t programs = step.workload.programs.size();
  std::vector<double> ranks(programs);
  for (const RankBinding& rank : step.workload.ranks) ++ranks[rank.program.index()];
  const double even =
      static_cast<double>(step.workload.ranks.size()) / static_cast<double>(programs);
  for (std::size_t p = 0; p < programs; ++p) {
    executed += executed_flops(step, p, load) * (ranks[p] / even);
  }
  executed *= accelerators / static_cast<double>(programs);
  out.hfu = executed / seconds / accelerators / 1e12 / peak_tflops(run);
}

/// The allocator's waits for the device, in every Program that has some.
void add_retries(const MemoryReport& memory, Workload& workload) {
  for (const auto& [program, retries] : memory.retries) {
    Program& retried = workload.programs[program];
    retried = with_retries(std::move(retried), retries, memory.allocator.retry_per_gib);
  }
}

/// What the rounds that were left out add to the account of a step's critical rank.
void add_rounds(const LoweredStep& step, const Account& round, Account& out) {
  const auto times = static_cast<double>(step.more);
  for (std::size_t part = 0; part < out.breakdown.size(); ++part) {
    out.breakdown[part].ps += step.more * round.breakdown[part].ps;
    out.busy_s[part] += times * round.busy_s[part];
    out.error_s[part] += times * round.error_s[part];
  }
  for (std::size_t i = 0; i < out.provenance_s.size(); ++i) {
    out.provenance_s[i] += times * round.provenance_s[i];
  }
  out.all_s += times * round.all_s;
}

/// What a step's replay says.
struct TimedStep {
  Time time;
  Account account;  ///< of the critical rank
};

/// The memory of `step`, unless it is `known`, and in its Programs what the allocator's retries
/// take. False where they do not stand for what the run does.
Result<bool> add_memory(const Run& run, LoweredStep& step, std::optional<MemoryReport>& known) {
  if (!known) {
    FT_ASSIGN(known, report_memory(run, step));
    if (known->peak_gib > known->capacity_gib) {
      FT_ASSIGN(known->least_gib, least_memory(run, step, *known));
    }
  }
  if (!known->allocator.known || (step.more > 0 && !known->retries.empty())) {
    known.reset();
    return false;
  }
  if (known->retries.empty()) return true;
  add_retries(*known, step.workload);
  if (step.steps > 1) step.several = repeated(step.workload, step.steps);
  return true;
}

/// Replays, with `shown` among those who look on. None where the time of what `step` stands for is
/// not proved.
Result<std::optional<TimedStep>> time_step(const LoweredStep& step, const Prepared& prepared,
                                           std::size_t critical, Recorder* shown,
                                           const PredictOptions& options, Prediction& out,
                                           std::optional<Replay>& result) {
  const Workload& timed = step.replayed();
  Accountant of_critical(critical);
  std::optional<RoundTimes> rounds;
  if (step.more > 0) rounds.emplace(timed, prepared);
  StepEnds ends(timed, prepared, step.steps, nullptr);
  Sinks sinks{&of_critical};
  if (shown != nullptr) sinks.add(shown);
  if (rounds) sinks.add(&*rounds);
  if (step.steps > 1) sinks.add(&ends);
  Counter counter(out.operations, options.progress);
  if (options.progress && step.more == 0) sinks.add(&counter);
  FT_ASSIGN(result, replay(timed, prepared, &sinks));
  out.simulated.events = result->events;
  TimedStep of_step;
  of_step.time = step.steps > 1 ? ends.longest() : result->end;
  of_step.account = of_critical.take(timed, prepared, ends.begin(critical), of_step.time);
  if (!rounds) return std::optional<TimedStep>(of_step);
  const auto steady = rounds->steady(*result, step.rounds, critical);
  if (!steady) return std::optional<TimedStep>();
  add_rounds(step, of_critical.take(timed, prepared, steady->from, steady->round), of_step.account);
  of_step.time += Time{steady->round.ps * step.more};
  return std::optional<TimedStep>(of_step);
}

/// Of the actors that were recorded; where a step is the last of several, of a step that all ranks
/// begin together, which is replayed here. The step and its prices are kept with what they tell.
Result<Recording> recording_of(const Run& run, LoweredStep step, Prepared prepared, Time end,
                               bool full, CostModel& model, Recorder& recorder) {
  if (step.steps > 1) {
    FT_ASSIGN(prepared, prepare(step.workload, model, full));
    FT_ASSIGN(const Replay alone, replay(step.workload, prepared, &recorder));
    end = alone.end;
  }
  const auto track_name = [&run](RankId rank) {
    return "rank " + std::to_string(rank.value) + ": " + name_of(coordinates_of(run.plan, rank));
  };
  Recording out = recorder.take(std::move(step.workload), std::move(prepared), end, track_name);
  out.set_name(run.name);
  return out;
}

Status check_programs(const Workload& workload) {
  const Status status = verify(workload);
  if (status.ok()) return status;
  return input_error(
      "the lowered program is not well-formed (a bug of foretrain, please report): " +
      status.error().message);
}

/// What a step costs that is priced and replayed again for each of the resources.
SimulationCost with_sensitivities(SimulationCost cost) {
  constexpr double kResources = 6;
  cost.seconds *= 1 + kResources;
  return cost;
}

/// A step, folded.
struct FoldedStep {
  PriceOptions options;
  std::unique_ptr<CostModel> model;
  Quotient quotient;
  std::int64_t operations = 0;
  SimulationCost cost;
};

Result<FoldedStep> fold_step(const Run& run, const LoweredStep& step, const PriceOptions& options,
                             bool full) {
  FoldedStep out{options, cost_model_of(run, options), {}, 0, {}};
  FT_ASSIGN(out.quotient, make_quotient(step.replayed(), *out.model, full));
  out.operations = operations_in_all(step, out.quotient);
  out.cost = cost_of_replay(step, out.quotient);
  return out;
}

/// More operations than the replay of a folded step should have, or may have, are far messages, if
/// there are fewer with these. An error where `bounds` are exceeded all the same.
Result<FoldedStep> choose_fold(const Run& run, const LoweredStep& step,
                               const PredictOptions& options) {
  constexpr std::int64_t kMostOperations = 40'000'000;
  FT_ASSIGN(FoldedStep out, fold_step(run, step, price_options(run), options.full));
  // What a RUN is predicted to take must not depend on what else the machine does.
  const bool few = out.operations <= kMostOperations &&
                   (options.bounds.of_machine || out.cost.within(options.bounds));
  if (!few && !options.full) {
    PriceOptions prices = out.options;
    prices.far_messages = true;
    FT_ASSIGN(FoldedStep far, fold_step(run, step, prices, false));
    if (2 * far.operations < out.operations) out = std::move(far);
  }
  const std::string classes = count_text(std::ssize(out.quotient.actors));
  FT_TRY(check_bounds(run.source, options.bounds, out.cost,
                      "a simulation of " + classes + " classes of ranks"));
  return out;
}

/// A step, folded and priced.
struct PricedStep {
  PriceOptions options;
  std::unique_ptr<CostModel> model;
  Prepared prepared;
  std::int64_t operations = 0;
  SimulationCost cost;
};

Result<PricedStep> price_step(const Run& run, const LoweredStep& step,
                              const PredictOptions& options) {
  FT_ASSIGN(FoldedStep folded, choose_fold(run, step, options));
  PricedStep out{folded.options, std::move(folded.model), {}, folded.operations, folded.cost};
  FT_ASSIGN(out.prepared, prepare(step.replayed(), *out.model, std::move(folded.quotient)));
  FT_TRY(check_length(run, step, out.prepared));
  return out;
}

/// `run` by the Programs of `step`; none where these do not prove what the run does. Its memory is
/// `known` after that, if it is proved.
Result<std::optional<Prediction>> predict_step(const Run& run, const PredictOptions& options,
                                               LoweredStep step,
                                               std::optional<MemoryReport>& known) {
  using Found = std::optional<Prediction>;
  Prediction out;
  if (options.verify) FT_TRY(check_programs(step.workload));
  for (std::size_t p = 0; p < step.workload.programs.size(); ++p)
    out.simulated.lowered += count_ops(step, p);
  FT_ASSIGN(const bool stands, add_memory(run, step, known));
  if (!stands) return Found();
  out.memory = *known;
  if (options.most_memory > 0 && !out.memory.within(options.most_memory)) return Found(out);
  FT_ASSIGN(PricedStep priced, price_step(run, step, options));
  const Prepared& prepared = priced.prepared;
  out.simulated.ranks = std::ssize(prepared.quotient.actors);
  out.operations = priced.operations;
  out.simulated.far_messages = priced.options.far_messages;
  out.simulated.estimated = priced.cost;
  if (options.step_alone) {
    FT_ASSIGN(const std::optional<Time> time, step_time(step, prepared));
    if (!time) return Found();
    out.iteration_time_s = time->seconds();
    fill_rates(run, step, out);
    return Found(std::move(out));
  }
  const std::size_t critical = critical_actor(step, prepared);
  std::vector<std::uint8_t> wanted;
  FT_TRY(choose_actors(prepared, options, wanted));
  Recorder shown(wanted);
  const bool shows = options.timeline && step.steps == 1;
  std::optional<Replay> result;
  FT_ASSIGN(const std::optional<TimedStep> timed,
            time_step(step, prepared, critical, shows ? &shown : nullptr, options, out, result));
  if (!timed) return Found();
  out.iteration_time_s = timed->time.seconds();
  out.critical_rank = prepared.quotient.actors[critical].rank.value;
  out.breakdown = timed->account.breakdown;
  fill_rates(run, step, out);
  set_interval(run, timed->account, out);
  out.simulated.less_advice =
      options.sensitivity && !with_sensitivities(priced.cost).within(options.bounds);
  if (options.sensitivity && !out.simulated.less_advice) {
    const Time data = out.breakdown[static_cast<std::size_t>(Part::kData)];
    FT_ASSIGN(out.sensitivity,
              sensitivities(run, priced.options, step, options.full ? nullptr : &prepared,
                            timed->time, data.ps > timed->time.ps / 100));
  }
  out.ranks = run.cluster.accelerators;
  if (options.timeline) {
    FT_ASSIGN(out.timeline, recording_of(run, std::move(step), std::move(priced.prepared),
                                         result->end, options.full, *priced.model, shown));
  }
  return Found(std::move(out));
}

/// Refuses Programs of so many microbatches that would take more than they may.
Status may_lower(const Run& run, std::int64_t microbatches, const SimulationBounds& bounds) {
  if (surely_within(run.model, run.plan, microbatches, bounds)) return ok_status();
  return check_bounds(run.source, bounds, cost_of_lowering(run.model, run.plan, microbatches),
                      "a simulation of " + count_text(run.plan.pipeline) + " stages");
}

/// By Programs with fewer microbatches, where these prove what the run does; else by its own.
Result<Prediction> by_own_stages(const Run& run, const PredictOptions& options) {
  std::optional<MemoryReport> memory;
  if (!options.timeline && !options.whole && !options.full) {
    for (const std::int64_t few : fewer_microbatches(run.plan)) {
      if (!may_lower(run, few, options.bounds).ok()) break;
      std::optional<LoweredStep> fewer = lower_fewer(run.model, run.plan, few);
      if (!fewer) continue;
      FT_ASSIGN(std::optional<Prediction> found,
                predict_step(run, options, std::move(*fewer), memory));
      if (found) return std::move(*found);
      if (!memory) break;  // more microbatches would not tell more of the allocator
    }
  }
  FT_TRY(lowerable(run.model, run.plan));
  FT_TRY(may_lower(run, run.plan.microbatches(), options.bounds));
  FT_ASSIGN(std::optional<Prediction> found,
            predict_step(run, options, lower_step(run.model, run.plan), memory));
  return std::move(*found);
}

/// Whether a step of many stages has more operations than are to be replayed, or may be.
bool is_too_long(const Run& run, const PredictOptions& options) {
  constexpr std::int64_t kMostOperations = 10'000'000;
  constexpr std::int64_t kManyStages = 256;
  const std::vector<std::int64_t> few = fewer_microbatches(run.plan);
  const std::int64_t microbatches = few.empty() ? run.plan.microbatches() : few.front();
  const bool many = run.plan.pipeline >= kManyStages;
  const bool asked = !options.bounds.of_machine;
  if (!many && (!asked || surely_within(run.model, run.plan, microbatches, options.bounds)))
    return false;
  const SimulationCost cost = cost_of_lowering(run.model, run.plan, microbatches);
  return (many && cost.operations > kMostOperations) || (asked && !cost.within(options.bounds));
}

/// By two steps with fewer stages; none where the step is short, or stages are not alike.
Result<std::optional<Prediction>> by_fewer_stages(const Run& run, const PredictOptions& options) {
  using Found = std::optional<Prediction>;
  if (options.timeline || options.whole || options.full) return Found();
  const auto stages = fewer_stages(run);
  if (!stages || !is_too_long(run, options)) return Found();
  PredictOptions of_fewer = options;
  of_fewer.most_memory = 0;
  const Result<Prediction> a = by_own_stages(with_stages(run, stages->first), of_fewer);
  if (!a.ok()) return Found();  // an error is to name the run's own stages
  const Result<Prediction> b = by_own_stages(with_stages(run, stages->second), of_fewer);
  if (!b.ok() || !on_a_line(run, a.value(), b.value(), *stages)) return Found();
  Prediction out = with_more_stages(run, a.value(), b.value(), *stages);
  fill_model_rates(run, out);
  return Found(std::move(out));
}

}  // namespace

Result<Prediction> predict(const Run& run, const PredictOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  FT_ASSIGN(std::optional<Prediction> by_fewer, by_fewer_stages(run, options));
  Result<Prediction> found = by_fewer ? std::move(*by_fewer) : by_own_stages(run, options);
  if (!found.ok()) return found;
  Prediction& out = found.value();
  out.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return found;
}

}  // namespace foretrain
