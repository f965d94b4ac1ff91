#include "tools/search/search.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <tuple>

#include "models/plan/keys/keys.h"
#include "sim/base/stop.h"
#include "tools/search/bounds/case_bounds.h"
#include "tools/search/evaluator.h"
#include "tools/search/search_case.h"
#include "tools/search/search_state.h"
#include "tools/search/team/crew.h"

namespace foretrain {
namespace {

/// What a round does before the clock is looked at, by process: simulations, samples that are
/// priced.
constexpr std::size_t kRoundSimulations = 8, kRoundSamples = 64;

/// What is known of a plan, and so what is asked next.
enum class Known : std::uint8_t { kDegrees, kFits, kBound };

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
    return seconds * of_like(item).ratio.value_or(of_all()) * (lacks_memory(item) ? kDoubt : 1) *
           (1 + kChunk * chunks);
  }
  /// Whether it does if it takes as much more than its bound as plans like it.
  bool lacks_memory(const Item& item) const {
    const double gib = item.least_gib + of_like(item).gib.value_or(0);
    return gib > x_cases[item.of_case].seed.cluster.most_memory_gib();
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

  const Least& of_like(const Item& item) const {
    const auto known = x_least.find(like(item));
    return known == x_least.end() ? x_of_all : known->second;
  }
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
class Failures {
 public:
  void note_reason(const std::string& reason) { ++x_reasons[reason]; }
  /// Of a plan that takes so much at least.
  void note_large(const Item& item, double least_gib) {
    x_large.emplace_back(least_gib, item);
    if (x_large.size() >= 2 * kKept) keep_least();
  }
  /// The few that lack least.
  std::vector<Item> least_large() {
    keep_least();
    std::vector<Item> out;
    for (const auto& [least, item] : x_large) out.push_back(item);
    return out;
  }
  /// The commonest first.
  std::vector<std::string> reasons() const {
    constexpr std::size_t kShown = 5;
    std::vector<std::pair<std::int64_t, std::string>> order;
    for (const auto& [reason, count] : x_reasons) order.emplace_back(-count, reason);
    std::sort(order.begin(), order.end());
    std::vector<std::string> out;
    for (std::size_t i = 0; i < std::min(kShown, order.size()); ++i) out.push_back(order[i].second);
    return out;
  }

 private:
  static constexpr std::size_t kKept = 8;
  void keep_least() {
    std::sort(x_large.begin(), x_large.end(), [](const auto& a, const auto& b) {
      return std::pair(a.first, a.second.order()) < std::pair(b.first, b.second.order());
    });
    x_large.resize(std::min(kKept, x_large.size()));
  }

  std::map<std::string, std::int64_t> x_reasons;
  std::vector<std::pair<double, Item>> x_large;
};

/// Of the search's wall time: what simulations took, and what is left.
class Clock {
 public:
  Clock(double budget_s, std::size_t threads) : x_budget_s(budget_s), x_threads(threads) {}

  double seconds() const { return since(x_begin); }
  /// A simulation took so long.
  void learn(double simulation_s) {
    x_simulated_s += simulation_s;
    ++x_simulations;
  }
  /// How many simulations, each `times` as long as the mean, end before so large a share of the
  /// budget is spent: at most `most`.
  std::size_t room_for(std::size_t most, double share, double times = 1) const {
    const double each = times * x_simulated_s / std::max(1.0, x_simulations);
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
  double x_simulated_s = 0, x_simulations = 0;
};

class Searcher {
 public:
  Searcher(const std::vector<SearchCase>& cases, const Evaluator& evaluator, const Crew& crew,
           SearchState& state, const SearchOptions& options, const SearchWatch& watch)
      : x_cases(cases),
        x_evaluator(evaluator),
        x_crew(crew),
        x_state(state),
        x_options(options),
        x_watch(watch),
        x_excess(cases),
        x_clock(options.budget_s, crew.threads()) {}

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
    const std::size_t at_once = x_crew.at_once(kRoundSamples);
    for (std::size_t first = 0; first < all.size(); first += at_once) {
      if (!may_go_on() || seconds() > until) break;
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
      const auto left = static_cast<std::size_t>(all.end() - begin);
      run_jobs({begin, begin + static_cast<std::ptrdiff_t>(std::min(at_once, left))}, {});
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
    std::vector<std::optional<Outcome>> outcomes;
    std::vector<Question> questions;  // plans first: these take longer
    for (const Item& item : plans) {
      outcomes.push_back(x_state.find(item.of_case, item.plan));
      if (!outcomes.back()) questions.emplace_back(PlanQuestion{item.of_case, item.plan});
    }
    const std::size_t asked = questions.size();
    for (const auto& [c, sample] : samples) {
      questions.emplace_back(SampleQuestion{c, x_bounds[c]->request(sample)});
    }
    std::vector<Answer> answers = x_crew.answers(questions);
    if (!take_stop(answers)) {
      for (const Item& item : plans) x_next.ready.push(item);
      return;
    }
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const auto& [c, sample] = samples[i];
      x_bounds[c]->learn(sample, std::move(std::get<SampleAnswer>(answers[asked + i])));
    }
    x_out.bounds += static_cast<std::int64_t>(samples.size());
    std::size_t next = 0;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      if (!outcomes[i]) {
        outcomes[i] = std::move(std::get<Outcome>(answers[next++]));
        x_clock.learn(outcomes[i]->seconds);
      }
      x_state.add(plans[i].of_case, plans[i].plan, *outcomes[i]);
      note(plans[i], std::move(*outcomes[i]));
    }
  }

  /// Whether all has been answered; else someone was told to stop, and the search ends.
  bool take_stop(const std::vector<Answer>& answers) {
    const bool stopped =
        stop_asked() || std::any_of(answers.begin(), answers.end(), [](const Answer& one) {
          return std::holds_alternative<std::monostate>(one);
        });
    x_out.interrupted = x_out.interrupted || stopped;
    return !stopped;
  }

  /// Plans in the order of their estimates: more is asked of some, others are simulated. Where what
  /// is asked promises more than what could be simulated every second round only asks.
  void take_round() {
    std::vector<Item> waiting = ask_of_open();
    std::vector<Item> plans;
    const bool promises =
        !x_next.open.empty() && !x_next.ready.empty() &&
        x_next.open.top().estimate * x_excess.of_all() < x_next.ready.top().estimate;
    x_next.asks_alone = promises && !x_next.asks_alone;
    // The last rounds are as short as what is left.
    const std::size_t most =
        std::max<std::size_t>(1, x_clock.room_for(x_crew.at_once(kRoundSimulations), share()));
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
    // Until some plan is known those that may fit are simulated while their samples are priced.
    const bool any = !x_out.plans.empty() || !plans.empty();
    for (auto it = waiting.begin(); !any && plans.size() < most && it != waiting.end();) {
      const bool fits = it->known == Known::kFits && !x_excess.lacks_memory(*it);
      if (fits) plans.push_back(*it);
      it = fits ? waiting.erase(it) : it + 1;
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
      if (x_next.wanted.size() >= x_crew.at_once(kRoundSamples)) break;
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
      item.known = Known::kBound;
      x_next.ready.push(item);
      return true;
    }
    item.least_gib = bounds.least_gib(item.plan);
    if (item.least_gib > x_cases[item.of_case].seed.cluster.most_memory_gib()) {
      ++x_out.certificate.too_large;
      x_failures.note_large(item, item.least_gib);
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
        x_failures.note_reason(outcome.reason);
        break;
      case Fate::kExcluded:
        ++c.excluded;
        break;
      case Fate::kTooLarge:
        ++c.too_large;
        x_excess.learn_memory(item, outcome.least_gib);
        x_failures.note_large(item, outcome.least_gib);
        break;
      case Fate::kSimulated:
        ++c.simulated;
        if (item.known == Known::kBound) x_excess.learn_time(item, outcome.found->objective);
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

  /// The plans that lack least memory, with what they take.
  std::vector<FoundPlan> nearest_plans() {
    std::vector<FoundPlan> out;
    for (const Item& item : x_failures.least_large()) {
      if (!out.empty() && seconds() > x_options.budget_s) break;
      const SearchCase& of = x_cases[item.of_case];
      const Point point = of.space.at(item.plan);
      const Result<Run> run = of.resolve(of.space.run_of(point));
      if (!run.ok()) continue;
      Outcome one = x_evaluator.simulate(of, run.value(), true);
      if (!one.found) continue;
      describe_plan(of, point, *one.found);
      out.push_back(std::move(*one.found));
    }
    return out;
  }

  /// From the best plans, and what they are with one chunk a stage, those in which each stage does
  /// what it needs, and those whose stages have tensor degrees of their own. They stand beside the
  /// plans that the certificate counts.
  void tune_best() {
    constexpr std::size_t kTuned = 8, kOfDegrees = 3;
    constexpr double kSpent = 0.9;
    const double left = kSpent * x_options.budget_s - seconds();
    std::vector<Question> questions;
    for (std::size_t i = 0; i < std::min(kTuned, x_out.plans.size()); ++i) {
      for (const Tuning tuning : {Tuning::kStages, Tuning::kOneChunk}) {
        questions.emplace_back(TuneQuestion{x_out.plans[i], tuning, left});
      }
    }
    for (std::size_t i = 0; i < std::min(kOfDegrees, x_out.plans.size()); ++i) {
      questions.emplace_back(TuneQuestion{x_out.plans[i], Tuning::kDegrees, left});
    }
    // What lacks least memory may fit when each stage does what it needs.
    if (x_out.plans.size() < kTuned && seconds() < x_options.budget_s) {
      for (FoundPlan& one : nearest_plans()) {
        one.objective = kNoLimit;
        questions.emplace_back(TuneQuestion{std::move(one), Tuning::kStages, left});
      }
    }
    std::vector<Answer> answers = x_crew.answers(questions);
    for (Answer& answer : answers) {
      if (std::holds_alternative<std::monostate>(answer)) continue;
      std::optional<FoundPlan>& plan = std::get<TunedPlan>(answer).best;
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

  /// Counts how often each of the best plans wins when predictions are off, of as many as `most`.
  void count_wins(std::size_t most) {
    constexpr std::size_t kDraws = 2000;
    const std::size_t count = std::min(most, x_out.plans.size());
    if (count == 0 || (count == 1 && x_out.plans.size() > 1)) return;
    std::vector<Question> questions;
    for (std::size_t i = 0; i < count; ++i) questions.emplace_back(UnsureQuestion{x_out.plans[i]});
    const std::vector<Answer> answers = x_crew.answers(questions);
    if (!take_stop(answers)) return;
    std::vector<UnsurePlan> plans;
    for (const Answer& answer : answers) plans.push_back(std::get<UnsurePlan>(answer));
    const Cluster& cluster = x_evaluator.case_of(x_out.plans.front()).seed.cluster;
    const std::vector<double> wins = shares_of_wins(plans, plans_deviation(cluster), kDraws);
    for (std::size_t i = 0; i < count; ++i) x_out.plans[i].wins = wins[i];
    x_out.draws = kDraws;
    x_out.drawn_plans = static_cast<std::int64_t>(count);
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
    if (!x_out.interrupted) count_wins(most);
    x_out.team_fault = x_crew.fault();
    x_out.reasons = x_failures.reasons();
    x_out.wall_s = seconds();
  }

  const std::vector<SearchCase>& x_cases;
  const Evaluator& x_evaluator;
  const Crew& x_crew;
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
  std::vector<std::string> out = result_names();
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
  const Answerer answerer(cases, evaluator, options.space);
  if (options.team != nullptr) {
    std::string question = question_of(cases, options);
    for (const std::string& key : options.space.fixed) question += " " + key;
    question += names_stages(options.space) ? " names stages" : "";
    question += tunes_stages(options.space) ? " tunes stages" : "";
    FT_TRY(options.team->agree(question));
    if (!options.team->leads()) {
      FT_TRY(options.team->help(
          [&](const std::string& asked) { return answerer.answer_packed(asked); }));
      return SearchResult();
    }
  }
  const Crew crew(answerer, options.team, options.threads);
  FT_ASSIGN(SearchState state, SearchState::open(options.state, cases, options));
  FT_TRY(state.save());
  return Searcher(cases, evaluator, crew, state, options, watch).run();
}

}  // namespace foretrain
