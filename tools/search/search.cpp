#include "tools/search/search.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <thread>
#include <tuple>

#include "models/plan/keys/keys.h"
#include "sim/base/stop.h"
#include "sim/base/threads.h"
#include "tools/search/case_bounds.h"
#include "tools/search/memory_bound.h"
#include "tools/search/robustness.h"
#include "tools/search/search_case.h"
#include "tools/search/search_state.h"
#include "tools/search/stage_tuning.h"

namespace foretrain {
namespace {

/// What a round does before the clock is looked at: simulations, samples that are priced.
constexpr std::size_t kRoundSimulations = 8, kRoundSamples = 64;

/// What is known of a plan, and so what is asked next.
enum class Known : std::uint8_t { kDegrees, kFits };

/// A plan of a case, and what is known of it.
struct Item {
  double bound = 0;
  double estimate = 0;   ///< what plans are taken by, the lowest first
  double least_gib = 0;  ///< of memory
  std::uint32_t of_case = 0, plan = 0;
  Known known = Known::kDegrees;

  std::tuple<double, std::uint32_t, std::uint32_t> order() const {
    return {estimate, of_case, plan};
  }
  bool operator<(const Item& other) const { return order() > other.order(); }  // lowest first
};

/// The first words of a refusal: without the file's name and what is said after the rule.
std::string reason_of(const Error& error, const std::string& source) {
  std::string out = error.message;
  if (out.starts_with(source + ": ")) out.erase(0, source.size() + 2);
  return out;
}

/// Values of conditions: keys of a plan, and results once there are some.
class PlanValues {
 public:
  PlanValues(const Run& run, const FoundPlan* found) : x_run(run) {
    x_known["parallel.data"] = Json(run.plan.batch_ranks());
    x_known["batch.microbatches"] = Json(run.plan.microbatches());
    x_known["cluster.accelerators"] = Json(run.cluster.accelerators);
    if (found == nullptr) return;
    x_known["iteration_time_s"] = Json(found->iteration_time_s);
    x_known["tokens_per_s"] = Json(found->tokens_per_s);
    x_known["mfu"] = Json(found->mfu);
    x_known["cost"] = Json(found->cost);
    x_known["memory.peak_gib"] = Json(found->memory.peak_gib);
    x_known["memory.reserved_gib"] = Json(found->memory.reserved_gib);
    x_known["memory.host_gib"] = Json(found->memory.host_gib);
  }
  const Json* operator()(const std::string& name) const {
    const auto known = x_known.find(name);
    return known != x_known.end() ? &known->second : value_of_key(x_run.resolved, name);
  }

 private:
  const Run& x_run;
  std::map<std::string, Json> x_known;
};

constexpr const char* kResults[] = {"parallel.data",
                                    "batch.microbatches",
                                    "cluster.accelerators",
                                    "iteration_time_s",
                                    "tokens_per_s",
                                    "mfu",
                                    "cost",
                                    "memory.peak_gib",
                                    "memory.reserved_gib",
                                    "memory.host_gib"};

/// Looks at single plans.
class Evaluator {
 public:
  Evaluator(const std::vector<SearchCase>& cases, std::vector<Condition> conditions)
      : x_cases(cases), x_conditions(std::move(conditions)) {}

  Outcome look_at(const Item& item) const {
    if (stop_asked()) return {};
    const SearchCase& of = x_cases[item.of_case];
    const Point point = of.space.at(item.plan);
    const Result<Run> run = of.resolve(of.space.run_of(point));
    Outcome out;
    if (!run.ok()) {
      out.fate = Fate::kRefused;
      out.reason = reason_of(run.error(), of.seed.source);
      return out;
    }
    if (excludes(run.value(), nullptr)) {
      out.fate = Fate::kExcluded;
      return out;
    }
    out.least_gib = least_memory_gib(run.value());
    if (out.least_gib > run.value().cluster.device.memory_gib) {
      out.fate = Fate::kTooLarge;
      return out;
    }
    out = simulate(of, run.value(), false);
    if (out.found) describe_plan(of, point, *out.found);
    return out;
  }

  static void describe_plan(const SearchCase& of, Point point, FoundPlan& plan) {
    plan.run = of.space.run_of(point);
    plan.changes = of.space.changes(point);
  }

  /// `any`: also what does not fit, with its memory alone.
  Outcome simulate(const SearchCase& of, const Run& run, bool any) const {
    Outcome out;
    PredictOptions options;
    options.verify = options.sensitivity = false;
    options.step_alone = true;
    options.most_memory = any ? 0 : 1;
    const Result<Prediction> prediction = predict(run, options);
    if (!prediction.ok()) {
      out.fate = Fate::kRefused;
      out.reason = reason_of(prediction.error(), of.seed.source);
      return out;
    }
    FoundPlan found = found_plan(of, prediction.value().iteration_time_s);
    found.tokens_per_s = prediction.value().tokens_per_s;
    found.mfu = prediction.value().mfu;
    found.memory = prediction.value().memory;
    out.least_gib = found.memory.peak_gib;
    out.fate = Fate::kTooLarge;
    if (any || found.memory.within(1)) {
      const bool excluded = !any && excludes(run, &found);
      out.fate = excluded ? Fate::kExcluded : Fate::kSimulated;
      out.found = std::move(found);
    }
    return out;
  }

  /// The plan with what its prices' deviations add.
  UnsurePlan unsure(const SearchCase& of, const FoundPlan& plan) const {
    UnsurePlan out;
    out.objective = plan.objective;
    PredictOptions options;
    options.verify = options.sensitivity = false;
    const Result<Run> run = of.resolve(plan.run);
    if (!run.ok()) return out;
    const Result<Prediction> prediction = predict(run.value(), options);
    if (!prediction.ok()) return out;
    const Prediction& known = prediction.value();
    out.by_part = known.interval.by_part;
    for (std::size_t part = 0; part < out.shares.size(); ++part) {
      out.shares[part] = known.breakdown[part].seconds() / known.iteration_time_s;
    }
    return out;
  }

  bool excludes(const Run& run, const FoundPlan* found) const {
    const PlanValues values(run, found);
    return std::any_of(x_conditions.begin(), x_conditions.end(), [&](const Condition& one) {
      return one.holds(std::cref(values)) == std::optional(false);
    });
  }

 private:
  const std::vector<SearchCase>& x_cases;
  std::vector<Condition> x_conditions;
};

/// How much more than their bounds plans take that are alike in what bounds leave out: time and
/// memory. Order alone follows it.
class Excess {
 public:
  explicit Excess(const std::vector<SearchCase>& cases) : x_cases(cases) {}

  double of_all() const { return x_of_all.ratio.value_or(1); }
  /// What to take the plan by: its bound, stretched by the least of plans like it that were
  /// simulated, or else of all; later where it lacks memory if it takes as much more as these, and
  /// by its chunks: their messages are in no bound, and the more there are the longer a look takes.
  double estimate(const Item& item, double seconds) const {
    constexpr double kDoubt = 1.05;
    constexpr double kChunk = 5e-4;
    const Space& space = x_cases[item.of_case].space;
    const auto chunks =
        static_cast<double>(space.degrees(space.at(item.plan)).virtual_pipeline - 1);
    const auto known = x_least.find(like(item));
    const Least& least = known == x_least.end() ? x_of_all : known->second;
    const double gib = item.least_gib + least.gib.value_or(0);
    const bool doubtful = gib > x_cases[item.of_case].seed.cluster.device.memory_gib;
    return seconds * least.ratio.value_or(of_all()) * (doubtful ? kDoubt : 1) *
           (1 + kChunk * chunks);
  }
  void learn_time(const Item& item, double objective) {
    if (item.bound <= 0) return;
    const double ratio = std::max(1.0, objective / item.bound);
    lower(x_of_all.ratio, ratio);
    lower(x_least[like(item)].ratio, ratio);
  }
  void learn_memory(const Item& item, double gib) {
    lower(x_of_all.gib, gib - item.least_gib);
    lower(x_least[like(item)].gib, gib - item.least_gib);
  }

 private:
  /// The least that were seen.
  struct Least {
    std::optional<double> ratio, gib;
  };
  /// Case, sharding, stages, tensor ranks.
  using Like = std::array<std::int64_t, 4>;

  static void lower(std::optional<double>& least, double value) {
    least = least ? std::min(*least, value) : value;
  }
  Like like(const Item& item) const {
    const Space& space = x_cases[item.of_case].space;
    const Point point = space.at(item.plan);
    const Degrees degrees = space.degrees(point);
    Like out = {item.of_case, -1, degrees.pipeline, degrees.tensor};
    for (std::size_t d = 0; d < space.dimensions().size(); ++d) {
      if (space.dimensions()[d].key == "sharding.level") out[1] = point[d];
    }
    return out;
  }

  const std::vector<SearchCase>& x_cases;
  std::map<Like, Least> x_least;
  Least x_of_all;
};

/// Why plans failed, and those that lack least memory.
struct Failures {
  std::map<std::string, std::int64_t> reasons;
  std::vector<std::pair<double, Item>> large;
};

const SearchCase& case_of_plan(const std::vector<SearchCase>& cases, const FoundPlan& plan) {
  return *std::find_if(cases.begin(), cases.end(), [&plan](const SearchCase& one) {
    return one.cluster == plan.cluster && one.seed.cluster.accelerators == plan.accelerators;
  });
}

/// Of the search's wall time: what simulations took, and what is left.
class Clock {
 public:
  Clock(double budget_s, std::size_t threads)
      : x_budget_s(budget_s),
        x_threads(threads > 0 ? threads : std::max(1U, std::thread::hardware_concurrency())) {}

  double seconds() const { return since(x_begin); }
  /// Calls `simulate` and learns how long that takes.
  template <typename Simulate>
  auto timed(const Simulate& simulate) {
    const auto begin = std::chrono::steady_clock::now();
    auto out = simulate();
    x_simulated_us += static_cast<std::int64_t>(1e6 * since(begin));
    ++x_simulations;
    return out;
  }
  /// How many simulations, each `times` as long as the mean, end before so large a share of the
  /// budget is spent: at most `most`.
  std::size_t room_for(std::size_t most, double share, double times = 1) const {
    const double each = times * 1e-6 * static_cast<double>(x_simulated_us) /
                        std::max(1.0, static_cast<double>(x_simulations));
    const double left = share * x_budget_s - seconds();
    const double room = each > 0 ? left * static_cast<double>(x_threads) / each : kNoLimit;
    return room < static_cast<double>(most) ? static_cast<std::size_t>(std::max(0.0, room)) : most;
  }

 private:
  using Instant = std::chrono::steady_clock::time_point;
  static double since(Instant begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  double x_budget_s;
  std::size_t x_threads;
  Instant x_begin = std::chrono::steady_clock::now();
  std::atomic<std::int64_t> x_simulated_us = 0, x_simulations = 0;
};

/// Counts how often each of the best plans wins when predictions are off, of as many as `most`.
void count_wins(const std::vector<SearchCase>& cases, const Evaluator& evaluator,
                std::size_t threads, std::size_t most, SearchResult& result) {
  constexpr std::size_t kDraws = 2000;
  const std::size_t count = std::min(most, result.plans.size());
  if (count == 0 || (count == 1 && result.plans.size() > 1)) return;
  std::vector<UnsurePlan> plans(count);
  const auto ask = [&](std::size_t i) {
    const FoundPlan& plan = result.plans[i];
    plans[i] = evaluator.unsure(case_of_plan(cases, plan), plan);
  };
  in_parallel(count, ask, threads);
  if (stop_asked()) return;
  const std::vector<double> wins = shares_of_wins(
      plans, plans_deviation(case_of_plan(cases, result.plans.front()).seed.cluster), kDraws);
  for (std::size_t i = 0; i < count; ++i) result.plans[i].wins = wins[i];
  result.draws = kDraws;
  result.drawn_plans = static_cast<std::int64_t>(count);
}

/// Makes more of plans that were found: stages of their own.
class PlanTuner {
 public:
  PlanTuner(const std::vector<SearchCase>& cases, const SpaceOptions& options,
            const Evaluator& evaluator, std::function<bool()> may_go_on)
      : x_cases(cases),
        x_options(options),
        x_evaluator(evaluator),
        x_may_go_on(std::move(may_go_on)) {}

  /// The plan with one chunk a stage, and with everything computed again where that is searched:
  /// its stages find what they need.
  std::optional<FoundPlan> with_one_chunk(const FoundPlan& plan) const {
    const char* const key = "parallel.virtual_pipeline";
    const Json* chunks = value_of_key(plan.run, key);
    if (chunks == nullptr || *chunks == Json(1) || !tries(plan, key, Json(1))) return {};
    std::vector<std::pair<std::string, Json>> changes = {{key, Json(1)}};
    if (tries(plan, "recompute", Json("full"))) changes.emplace_back("recompute", Json("full"));
    return changed(plan, changes);
  }

  /// The best that is found of the plan's stages; nothing where the plan itself is as good.
  std::optional<FoundPlan> tuned_plan(const FoundPlan& plan) const {
    const Result<Run> even = case_of(plan).resolve(plan.run);
    if (!even.ok()) return {};
    std::optional<FoundPlan> best;
    const auto ask = [&](const Json& stages) -> std::optional<double> {
      std::optional<FoundPlan> one = changed(plan, {{kStagesKey, stages}});
      if (!one) return {};
      const double objective = one->objective;
      if (!best || objective < best->objective) best = std::move(one);
      return objective;
    };
    tune_stages(even.value(), plan.memory, plan.objective, keys_of(plan), {ask, x_may_go_on});
    if (best && best->objective >= plan.objective) best.reset();
    return best;
  }

 private:
  const SearchCase& case_of(const FoundPlan& plan) const { return case_of_plan(x_cases, plan); }
  /// The plan with `changes` more, if it fits and nothing excludes it.
  std::optional<FoundPlan> changed(const FoundPlan& plan,
                                   const std::vector<std::pair<std::string, Json>>& changes) const {
    if (!x_may_go_on()) return {};
    const SearchCase& of = case_of(plan);
    FoundPlan out = plan;
    for (const auto& [key, value] : changes) {
      set_key(out.run, key, value);
      std::erase_if(out.changes, [&key = key](const auto& one) { return one.first == key; });
      out.changes.emplace_back(key, value);
    }
    const Result<Run> run = of.resolve(out.run);
    if (!run.ok()) return {};
    Outcome outcome = x_evaluator.simulate(of, run.value(), false);
    if (outcome.fate != Fate::kSimulated) return {};
    outcome.found->run = std::move(out.run);
    outcome.found->changes = std::move(out.changes);
    return std::move(outcome.found);
  }

  /// Whether the search tries this value of a key. It tries no other value of a key that the RUN
  /// states, that is fixed, or whose range lacks the value.
  bool tries(const FoundPlan& plan, const std::string& key, const Json& value) const {
    for (const Dimension& one : case_of(plan).space.dimensions()) {
      if (one.key != key) continue;
      return std::find(one.values.begin(), one.values.end(), value) != one.values.end();
    }
    return false;
  }

  /// What is searched, and with `pipeline_stages` freed by name all that is not fixed.
  TunedKeys keys_of(const FoundPlan& plan) const {
    const bool named = names_stages(x_options);
    const auto may = [&](const std::string& key) {
      const auto& fixed = x_options.fixed;
      if (std::find(fixed.begin(), fixed.end(), key) != fixed.end()) return false;
      const std::vector<Dimension>& all = case_of(plan).space.dimensions();
      return named || std::any_of(all.begin(), all.end(),
                                  [&key](const Dimension& one) { return one.key == key; });
    };
    TunedKeys out;
    out.recompute = may("recompute");
    out.adds_recompute = out.recompute && (named || tries(plan, "recompute", Json("full")));
    out.activations = may("offload.activation_layers");
    out.states = may("offload.optimizer");
    out.layers = named && may("parallel.pipeline_layout");
    return out;
  }

  const std::vector<SearchCase>& x_cases;
  const SpaceOptions& x_options;
  const Evaluator& x_evaluator;
  std::function<bool()> x_may_go_on;
};

class Searcher {
 public:
  Searcher(const std::vector<SearchCase>& cases, const Evaluator& evaluator, SearchState& state,
           const SearchOptions& options, const SearchWatch& watch)
      : x_cases(cases),
        x_evaluator(evaluator),
        x_state(state),
        x_options(options),
        x_watch(watch),
        x_excess(cases),
        x_clock(options.budget_s, options.threads) {}

  SearchResult run() && {
    look_at_own();
    for (const SearchCase& one : x_cases) x_bounds.push_back(std::make_unique<CaseBounds>(one));
    for (std::uint32_t c = 0; c < x_cases.size(); ++c) open_case(c);
    bool goes_on = may_go_on();
    constexpr double kSaveEvery = 10;
    double saved = seconds();
    while (goes_on && !(x_next.open.empty() && x_next.ready.empty())) {
      take_round();
      goes_on = may_go_on();
      if (seconds() - saved < kSaveEvery) continue;
      saved = seconds();
      save();
    }
    save();
    finish();
    return std::move(x_out);
  }

 private:
  double best() const { return x_out.plans.empty() ? kNoLimit : x_out.plans[x_best].objective; }

  double seconds() const { return x_clock.seconds(); }

  /// Of the budget that is left to the search when the clock says so: stages are tuned in what
  /// remains, and wins are counted.
  double share() const {
    constexpr double kTuned = 0.65, kAlone = 0.9;
    return tunes_stages(x_options.space) ? kTuned : kAlone;
  }

  /// Whether there is time left and nobody has asked to stop.
  bool may_go_on() {
    SearchProgress progress;
    progress.seconds = seconds();
    progress.so_far = x_out.certificate;
    progress.best = x_out.plans.empty() ? nullptr : &x_out.plans[x_best];
    if (x_watch && !x_watch(progress)) x_out.interrupted = true;
    return !x_out.interrupted && progress.seconds < share() * x_options.budget_s;
  }

  /// What cannot be written any more ends no search.
  void save() {
    const Status saved = x_state.save();
    if (!saved.ok()) x_out.state_fault = saved.error().message;
  }

  /// The RUN as it is: what changes are measured against, and the first to be beaten.
  void look_at_own() {
    const SearchCase& first = x_cases.front();
    if (!first.own) return;
    x_out.own = x_evaluator.simulate(first, first.seed, true).found;
    if (x_out.own) x_out.own->run = first.run;
  }

  /// All plans of a case, with the bounds of their degrees; where these take long some have none.
  void open_case(std::uint32_t c) {
    constexpr double kShareOfBudget = 0.3;
    CaseBounds& bounds = *x_bounds[c];
    const std::size_t plans = x_cases[c].space.size();
    x_out.certificate.plans += static_cast<std::int64_t>(plans);
    constexpr std::size_t kPlansAtOnce = 1 << 14;
    std::set<Wanted> wanted;
    std::size_t seen = 0;
    for (; seen < plans && (seen % kPlansAtOnce != 0 || may_go_on()); ++seen) {
      for (const std::size_t sample : bounds.lacking(seen, Ask::kFirst)) wanted.insert({c, sample});
    }
    const std::vector<Wanted> all(wanted.begin(), wanted.end());
    const double until = seconds() + kShareOfBudget * (x_options.budget_s - seconds());
    for (std::size_t first = 0; first < all.size(); first += kRoundSamples) {
      if (!may_go_on() || seconds() > until) break;
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
      const auto left = static_cast<std::size_t>(all.end() - begin);
      run_jobs({begin, begin + static_cast<std::ptrdiff_t>(std::min(kRoundSamples, left))}, {});
    }
    for (std::size_t p = 0; p < plans; ++p) {
      Item item;
      item.of_case = c;
      item.plan = static_cast<std::uint32_t>(p);
      const double first = p < seen ? bounds.first_seconds(p) * x_cases[c].weight : 0;
      if (bounds.bounds(p)) item.bound = first;
      // What no sample can be made of is mostly what no plan can be made of: it comes last.
      item.estimate = first > 0 ? first + bounds.again_seconds(p) * x_cases[c].weight : kNoLimit;
      x_next.open.push(item);
    }
  }

  /// A sample of a case.
  using Wanted = std::pair<std::uint32_t, std::size_t>;

  /// Prices samples and simulates plans, on all threads.
  void run_jobs(const std::vector<Wanted>& samples, const std::vector<Item>& plans) {
    std::vector<Outcome> outcomes(plans.size());
    const auto work = [&](std::size_t i) {
      if (i < plans.size()) {  // these take longer
        std::optional<Outcome> known = x_state.find(plans[i].of_case, plans[i].plan);
        const auto look = [&] { return x_evaluator.look_at(plans[i]); };
        outcomes[i] = known ? std::move(*known) : x_clock.timed(look);
        return;
      }
      const auto& [c, sample] = samples[i - plans.size()];
      x_bounds[c]->price(sample);
    };
    in_parallel(plans.size() + samples.size(), work, x_options.threads);
    if (stop_asked()) {  // what stopped halfway says nothing of its plan
      for (const Item& item : plans) x_next.ready.push(item);
      return;
    }
    x_out.bounds += static_cast<std::int64_t>(samples.size());
    for (std::size_t i = 0; i < plans.size(); ++i) {
      x_state.add(plans[i].of_case, plans[i].plan, outcomes[i]);
      note(plans[i], std::move(outcomes[i]));
    }
  }

  /// Plans in the order of their estimates: more is asked of some, others are simulated. Where what
  /// is asked promises more than what could be simulated every second round only asks.
  void take_round() {
    const std::vector<Item> waiting = ask_of_open();
    std::vector<Item> plans;
    const bool promises =
        !x_next.open.empty() && !x_next.ready.empty() &&
        x_next.open.top().estimate * x_excess.of_all() < x_next.ready.top().estimate;
    x_next.asks_alone = promises && !x_next.asks_alone;
    // The last rounds are as short as what is left.
    const std::size_t most = std::max<std::size_t>(1, x_clock.room_for(kRoundSimulations, share()));
    while (!x_next.asks_alone && plans.size() < most && !x_next.ready.empty()) {
      Item item = x_next.ready.top();
      x_next.ready.pop();
      // Similar plans that were simulated since may raise the estimate above those of others.
      const double estimate = x_excess.estimate(item, item.bound);
      if (item.bound >= best()) {
        ++x_out.certificate.bounded;
      } else if (estimate > item.estimate) {
        item.estimate = estimate;
        x_next.ready.push(item);
      } else {
        plans.push_back(item);
      }
    }
    run_jobs({x_next.wanted.begin(), x_next.wanted.end()}, plans);
    x_next.wanted.clear();
    for (const Item& item : waiting) x_next.open.push(item);
  }

  /// Asks as much of open plans as the samples of one round answer; returns those that wait for
  /// samples.
  std::vector<Item> ask_of_open() {
    constexpr std::size_t kMostAsked = 100'000;
    std::vector<Item> waiting;
    for (std::size_t asked = 0; asked < kMostAsked && !x_next.open.empty(); ++asked) {
      if (x_next.wanted.size() >= kRoundSamples) break;
      const Item item = x_next.open.top();
      x_next.open.pop();
      if (item.bound >= best()) {
        ++x_out.certificate.bounded;
      } else if (!ask(item)) {
        waiting.push_back(item);
      }
    }
    return waiting;
  }

  /// Asks the next question of a plan; false where samples are wanted first.
  bool ask(Item item) {
    CaseBounds& bounds = *x_bounds[item.of_case];
    const bool fits = item.known == Known::kFits;
    const std::vector<std::size_t> lacking =
        bounds.lacking(item.plan, fits ? Ask::kTime : Ask::kMemory);
    for (const std::size_t sample : lacking) x_next.wanted.insert({item.of_case, sample});
    if (!lacking.empty()) return false;
    if (fits) {
      const double seconds = bounds.seconds(item.plan) * x_cases[item.of_case].weight;
      if (bounds.bounds(item.plan)) item.bound = std::max(item.bound, seconds);
      item.estimate = seconds > 0 ? x_excess.estimate(item, seconds) : kNoLimit;
      x_next.ready.push(item);
      return true;
    }
    item.least_gib = bounds.least_gib(item.plan);
    if (item.least_gib > x_cases[item.of_case].seed.cluster.device.memory_gib) {
      ++x_out.certificate.too_large;
      note_large(item, item.least_gib);
      return true;
    }
    item.known = Known::kFits;
    x_next.open.push(item);
    return true;
  }

  void note(const Item& item, Outcome outcome) {
    Certificate& c = x_out.certificate;
    switch (outcome.fate) {
      case Fate::kRefused:
        ++c.refused;
        ++x_failures.reasons[outcome.reason];
        break;
      case Fate::kExcluded:
        ++c.excluded;
        break;
      case Fate::kTooLarge:
        ++c.too_large;
        x_excess.learn_memory(item, outcome.least_gib);
        note_large(item, outcome.least_gib);
        break;
      case Fate::kSimulated:
        ++c.simulated;
        x_excess.learn_time(item, outcome.found->objective);
        x_excess.learn_memory(item, outcome.least_gib);
        x_out.plans.push_back(std::move(*outcome.found));
        if (is_better(x_out.plans.back(), x_out.plans[x_best])) x_best = x_out.plans.size() - 1;
        break;
    }
  }

  /// Of equally good plans the one that changes less, then the first.
  static bool is_better(const FoundPlan& a, const FoundPlan& b) {
    return std::pair(a.objective, a.changes.size()) < std::pair(b.objective, b.changes.size());
  }

  /// Keeps the few that lack least memory, for what is said where nothing fits.
  void note_large(const Item& item, double least_gib) {
    constexpr std::size_t kKept = 8;
    x_failures.large.emplace_back(least_gib, item);
    if (x_failures.large.size() < 2 * kKept) return;
    sort_large();
    x_failures.large.resize(kKept);
  }
  void sort_large() {
    std::sort(x_failures.large.begin(), x_failures.large.end(), [](const auto& a, const auto& b) {
      return std::pair(a.first, a.second.order()) < std::pair(b.first, b.second.order());
    });
  }

  /// The plans that lack least memory, with what they take.
  std::vector<FoundPlan> nearest_plans() {
    sort_large();
    std::vector<FoundPlan> out;
    for (const auto& [least, item] : x_failures.large) {
      if (!out.empty() && seconds() > x_options.budget_s) break;
      const SearchCase& of = x_cases[item.of_case];
      const Point point = of.space.at(item.plan);
      const Result<Run> run = of.resolve(of.space.run_of(point));
      if (!run.ok()) continue;
      Outcome one = x_evaluator.simulate(of, run.value(), true);
      if (!one.found) continue;
      Evaluator::describe_plan(of, point, *one.found);
      out.push_back(std::move(*one.found));
    }
    return out;
  }

  /// From the best plans, and what they are with one chunk a stage, those in which each stage does
  /// what it needs. They stand beside the plans that the certificate counts.
  void tune_best() {
    constexpr std::size_t kTuned = 8;
    const PlanTuner tuner(x_cases, x_options.space, x_evaluator, [this] {
      constexpr double kSpent = 0.9;
      return !stop_asked() && seconds() < kSpent * x_options.budget_s;
    });
    std::vector<FoundPlan> starts;
    for (std::size_t i = 0; i < std::min(kTuned, x_out.plans.size()); ++i) {
      starts.push_back(x_out.plans[i]);
      if (std::optional<FoundPlan> one = tuner.with_one_chunk(x_out.plans[i])) {
        starts.push_back(std::move(*one));
      }
    }
    // What lacks least memory may fit when each stage does what it needs.
    if (x_out.plans.size() < kTuned && seconds() < x_options.budget_s) {
      for (FoundPlan& one : nearest_plans()) {
        one.objective = kNoLimit;
        starts.push_back(std::move(one));
      }
    }
    std::vector<std::optional<FoundPlan>> tuned(starts.size());
    const auto tune = [&](std::size_t i) { tuned[i] = tuner.tuned_plan(starts[i]); };
    in_parallel(starts.size(), tune, x_options.threads);
    for (std::optional<FoundPlan>& plan : tuned) {
      // Recomputation that every stage overrides makes no other plan.
      const auto same = [&plan](const FoundPlan& one) {
        const Json* stages = one.run.find(kStagesKey);
        return stages != nullptr && *stages == *plan->run.find(kStagesKey) &&
               one.objective == plan->objective && one.memory.peak_gib == plan->memory.peak_gib;
      };
      if (!plan || std::any_of(x_out.plans.begin(), x_out.plans.end(), same)) continue;
      x_out.plans.push_back(std::move(*plan));
    }
  }

  void finish() {
    Certificate& c = x_out.certificate;
    const double found = best();
    double lowest = found;
    for (std::priority_queue<Item>* queue : {&x_next.open, &x_next.ready}) {
      for (; !queue->empty(); queue->pop()) {
        const double bound = queue->top().bound;
        lowest = std::min(lowest, bound);
        ++(bound < found ? c.open : c.bounded);
      }
    }
    c.complete = c.open == 0;
    c.gap = c.complete ? 0 : x_out.plans.empty() ? 1 : (found - lowest) / found;
    std::stable_sort(x_out.plans.begin(), x_out.plans.end(), is_better);
    if (tunes_stages(x_options.space) && !x_out.interrupted) {
      tune_best();
      std::stable_sort(x_out.plans.begin(), x_out.plans.end(), is_better);
    }
    for (FoundPlan& one : x_out.plans.empty() ? nearest_plans() : std::vector<FoundPlan>()) {
      const bool nearer = !x_out.nearest || one.memory.peak_gib < x_out.nearest->memory.peak_gib;
      if (nearer) x_out.nearest = std::move(one);
    }
    // With what each part of a step takes a plan costs as much again.
    constexpr std::size_t kCompared = 10;
    const std::size_t most = x_clock.room_for(kCompared, 1, 2);
    if (!x_out.interrupted) count_wins(x_cases, x_evaluator, x_options.threads, most, x_out);
    std::vector<std::pair<std::int64_t, std::string>> reasons;
    for (const auto& [reason, count] : x_failures.reasons) reasons.emplace_back(-count, reason);
    std::sort(reasons.begin(), reasons.end());
    constexpr std::size_t kShown = 5;
    for (std::size_t i = 0; i < std::min(kShown, reasons.size()); ++i) {
      x_out.reasons.push_back(reasons[i].second);
    }
    x_out.wall_s = seconds();
  }

  const std::vector<SearchCase>& x_cases;
  const Evaluator& x_evaluator;
  SearchState& x_state;
  const SearchOptions& x_options;
  const SearchWatch& x_watch;
  Excess x_excess;
  Clock x_clock;
  std::vector<std::unique_ptr<CaseBounds>> x_bounds;
  struct {
    std::priority_queue<Item> open;   ///< of which more is asked
    std::priority_queue<Item> ready;  ///< to be simulated
    std::set<Wanted> wanted;          ///< before more can be asked
    bool asks_alone = false;          ///< nothing is simulated in this round
  } x_next;
  std::size_t x_best = 0;
  Failures x_failures;
  SearchResult x_out;
};

}  // namespace

std::vector<std::string> condition_names() {
  std::vector<std::string> out(std::begin(kResults), std::end(kResults));
  for (const PlanKey& key : all_run_keys()) out.push_back(key.path());
  return out;
}

std::vector<std::size_t> pareto_front(const std::vector<FoundPlan>& plans) {
  std::vector<std::size_t> order(plans.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&plans](std::size_t a, std::size_t b) {
    return std::pair(plans[a].iteration_time_s, plans[a].memory.peak_gib) <
           std::pair(plans[b].iteration_time_s, plans[b].memory.peak_gib);
  });
  std::vector<std::size_t> out;
  for (const std::size_t i : order) {
    const bool less = out.empty() || plans[i].memory.peak_gib < plans[out.back()].memory.peak_gib;
    if (less) out.push_back(i);
  }
  return out;
}

Result<SearchResult> search_plans(const Json& run, const std::string& source,
                                  const SearchOptions& options, const SearchWatch& watch) {
  const std::vector<std::string> names = condition_names();
  std::vector<Condition> conditions;
  for (const std::string& text : options.conditions) {
    Result<Condition> one = Condition::parse(text, names);
    if (!one.ok()) return input_error("--where " + one.error().message);
    conditions.push_back(std::move(one.value()));
  }
  FT_ASSIGN(const std::vector<SearchCase> cases, search_cases(run, source, options));
  const Evaluator evaluator(cases, std::move(conditions));
  FT_ASSIGN(SearchState state, SearchState::open(options.state, cases, options));
  FT_TRY(state.save());
  return Searcher(cases, evaluator, state, options, watch).run();
}

}  // namespace foretrain
