#include "tools/search/search.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <queue>
#include <tuple>

#include "models/plan/keys/keys.h"
#include "sim/base/threads.h"
#include "tools/search/memory_bound.h"
#include "tools/search/search_case.h"

namespace foretrain {
namespace {

/// What a round takes: plans of any kind, and simulations among them.
constexpr std::size_t kRound = 64, kRoundSimulations = 8;
/// Samples that are priced before the clock is looked at.
constexpr std::size_t kSamplesAtOnce = 64;

/// Before there are bounds: plans that lie evenly in the space, of which so many are made better,
/// and most that are looked at in all.
constexpr std::size_t kSpread = 48, kDives = 2, kMostJudged = 400;
/// More samples of memory take longer than such a look.
constexpr std::size_t kManySamples = 1000;

enum class Fate : std::uint8_t { kOpen, kRefused, kExcluded, kTooLarge, kSimulated };

/// A plan of a case, and what is known of it.
struct Item {
  double bound = 0;
  double estimate = 0;   ///< what plans are taken by, the lowest first; at least the bound
  bool checked = false;  ///< legal, and not too large for all that is known
  std::uint32_t of_case = 0, plan = 0;

  std::tuple<double, std::uint32_t, std::uint32_t> order() const {
    return {estimate, of_case, plan};
  }
  bool operator<(const Item& other) const { return order() > other.order(); }  // lowest first
};

struct Outcome {
  Fate fate = Fate::kOpen;
  double least_gib = 0;  ///< of a plan that is too large
  std::string reason;
  std::optional<FoundPlan> found;
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
    const SearchCase& of = x_cases[item.of_case];
    const Point point = of.space.at(item.plan);
    const Json written = of.space.run_of(point);
    const Result<Run> run = of.resolve(written);
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
    if (!item.checked) {
      out.least_gib = least_memory_gib(run.value());
      const bool large = out.least_gib > run.value().cluster.device.memory_gib;
      if (large) out.fate = Fate::kTooLarge;
      return out;
    }
    return simulate(of, run.value(), written, of.space.changes(point), false);
  }

  /// `any`: also what does not fit, with its memory alone.
  Outcome simulate(const SearchCase& of, const Run& run, const Json& written,
                   std::vector<std::pair<std::string, Json>> changes, bool any) const {
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
    FoundPlan found = found_of(of, prediction.value());
    found.run = written;
    found.changes = std::move(changes);
    out.least_gib = found.memory.peak_gib;
    out.fate = Fate::kTooLarge;
    if (any || found.memory.within(1)) {
      const bool excluded = !any && excludes(run, &found);
      out.fate = excluded ? Fate::kExcluded : Fate::kSimulated;
      out.found = std::move(found);
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
  static FoundPlan found_of(const SearchCase& of, const Prediction& prediction) {
    FoundPlan out;
    constexpr double kHour = 3600, kKwh = 3.6e6;
    out.cluster = of.cluster;
    out.accelerators = of.seed.cluster.accelerators;
    out.iteration_time_s = prediction.iteration_time_s;
    out.tokens_per_s = prediction.tokens_per_s;
    out.mfu = prediction.mfu;
    out.memory = prediction.memory;
    const double seconds = static_cast<double>(out.accelerators) * out.iteration_time_s;
    out.cost = seconds / kHour * of.price_per_gpu_hour;
    out.energy_kwh = seconds * of.seed.cluster.device.power_w / kKwh;
    out.objective = out.iteration_time_s * of.weight;
    return out;
  }

  const std::vector<SearchCase>& x_cases;
  std::vector<Condition> x_conditions;
};

/// How much longer than their bounds plans take that are alike in what bounds leave out.
class Excess {
 public:
  explicit Excess(const std::vector<SearchCase>& cases) : x_cases(cases) {}
  /// The least of those that were simulated; 1 where none was.
  double of(const Item& item) const {
    const auto known = x_least.find(like(item));
    return known == x_least.end() ? 1 : known->second;
  }
  void learn(const Item& item, double objective) {
    if (item.bound <= 0) return;
    const double ratio = std::max(1.0, objective / item.bound);
    const auto [it, fresh] = x_least.try_emplace(like(item), ratio);
    if (!fresh) it->second = std::min(it->second, ratio);
  }

 private:
  /// Case, sharding, stages, tensor ranks.
  using Like = std::array<std::int64_t, 4>;
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
  std::map<Like, double> x_least;
};

/// Why plans failed, and those that lack least memory.
struct Failures {
  std::map<std::string, std::int64_t> reasons;
  std::vector<std::pair<double, Item>> large;
};

class Searcher {
 public:
  Searcher(const std::vector<SearchCase>& cases, const Evaluator& evaluator,
           const SearchOptions& options, const SearchWatch& watch)
      : x_cases(cases),
        x_evaluator(evaluator),
        x_options(options),
        x_watch(watch),
        x_excess(cases) {}

  SearchResult run() && {
    look_at_own();
    for (const SearchCase& one : x_cases) x_bounds.push_back(std::make_unique<CaseBounds>(one));
    // Where bounds take long a good plan comes first.
    for (std::uint32_t c = 0; c < x_cases.size(); ++c) {
      if (x_bounds[c]->samples() > kManySamples) dive(c);
    }
    make_bounds();
    bool goes_on = may_go_on();
    while (goes_on && !x_open.empty()) {
      take_round();
      goes_on = may_go_on();
    }
    finish();
    return std::move(x_out);
  }

 private:
  double best() const { return x_out.plans.empty() ? kNoLimit : x_out.plans[x_best].objective; }

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - x_begin).count();
  }

  /// Whether there is time left and nobody has asked to stop.
  bool may_go_on() {
    SearchProgress progress;
    progress.seconds = seconds();
    progress.so_far = x_out.certificate;
    progress.best = x_out.plans.empty() ? nullptr : &x_out.plans[x_best];
    if (x_watch && !x_watch(progress)) x_out.interrupted = true;
    return !x_out.interrupted && progress.seconds < x_options.budget_s;
  }

  /// The RUN as it is: what changes are measured against, and the first to be beaten.
  void look_at_own() {
    const SearchCase& first = x_cases.front();
    if (!first.own) return;
    const Outcome own = x_evaluator.simulate(first, first.seed, first.run, {}, true);
    if (own.found) x_out.own = own.found;
  }

  /// Good plans early, before there are bounds: the better of some plans that lie evenly in the
  /// space, then whatever single change makes them better, as long as one does. What does not fit
  /// is the better the less it lacks.
  void dive(std::uint32_t c) {
    const std::size_t plans = x_cases[c].space.size();
    std::vector<std::uint32_t> spread;
    for (std::size_t i = 0; i < std::min(plans, kSpread); ++i) {
      spread.push_back(static_cast<std::uint32_t>(i * plans / std::min(plans, kSpread)));
    }
    judge(c, spread);
    const auto score = [&](std::uint32_t plan) { return x_scores.at({c, plan}); };
    std::stable_sort(spread.begin(), spread.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return score(a) < score(b); });
    if (spread.size() > kDives) spread.resize(kDives);
    for (std::uint32_t start : spread) {
      for (bool better = true; better && may_dive();) {
        const std::uint32_t next = best_neighbour(c, start);
        better = score(next) < score(start);
        if (better) start = next;
      }
    }
  }

  /// Half of the time is left for what follows.
  bool may_dive() { return may_go_on() && 2 * seconds() < x_options.budget_s; }

  /// One change after the other, each to the best value of its key.
  std::uint32_t best_neighbour(std::uint32_t c, std::uint32_t start) {
    const Space& space = x_cases[c].space;
    const std::size_t width = space.dimensions().size();
    std::uint32_t best = start;
    for (std::size_t d = 0; d < width && x_scores.size() < kMostJudged; ++d) {
      std::vector<std::uint32_t> near;
      for (std::size_t v = 0; v < space.dimensions()[d].values.size(); ++v) {
        std::vector<std::uint8_t> point(space.at(best), space.at(best) + width);
        point[d] = static_cast<std::uint8_t>(v);
        const std::optional<std::size_t> plan = space.find(std::move(point));
        if (plan) near.push_back(static_cast<std::uint32_t>(*plan));
      }
      judge(c, near);
      for (const std::uint32_t plan : near) {
        if (x_scores.at({c, plan}) < x_scores.at({c, best})) best = plan;
      }
      if (!may_dive()) break;
    }
    return best;
  }

  /// Simulates plans and scores them. Plans that fit come first, then larger ones, then refused
  /// ones.
  void judge(std::uint32_t c, const std::vector<std::uint32_t>& plans) {
    constexpr double kTooLarge = 1e12;
    std::vector<Item> fresh;
    for (const std::uint32_t plan : plans) {
      const bool known = !x_scores.try_emplace({c, plan}, kNoLimit).second;
      if (!known) fresh.push_back({0, 0, false, c, plan});
    }
    std::vector<Outcome> outcomes(fresh.size());
    const auto look = [&](std::size_t i) {
      outcomes[i] = x_evaluator.look_at(fresh[i]);
      if (outcomes[i].fate != Fate::kOpen) return;
      Item checked = fresh[i];
      checked.checked = true;
      outcomes[i] = x_evaluator.look_at(checked);
    };
    in_parallel(fresh.size(), look, x_options.threads);
    for (std::size_t i = 0; i < fresh.size(); ++i) {
      double& score = x_scores[{c, fresh[i].plan}];
      if (outcomes[i].fate == Fate::kTooLarge) score = kTooLarge * outcomes[i].least_gib;
      if (outcomes[i].found) score = outcomes[i].found->objective;
      note(fresh[i], std::move(outcomes[i]));
    }
  }

  void make_bounds() {
    for (std::size_t c = 0; c < x_cases.size(); ++c) {
      CaseBounds& bounds = *x_bounds[c];
      // What memory rules out needs no bound of its time.
      price_samples(bounds, 0);
      const std::size_t known = bounds.samples();
      bounds.sample_times();
      price_samples(bounds, known);
      x_out.certificate.plans += static_cast<std::int64_t>(x_cases[c].space.size());
    }
    std::vector<Item> items;
    for (std::size_t c = 0; c < x_cases.size(); ++c) {
      for (std::size_t p = 0; p < x_cases[c].space.size(); ++p) {
        Item item;
        item.of_case = static_cast<std::uint32_t>(c);
        item.plan = static_cast<std::uint32_t>(p);
        if (x_scores.count({item.of_case, item.plan}) > 0) continue;
        const double least_gib = x_bounds[c]->least_gib(p);
        if (least_gib > x_cases[c].seed.cluster.device.memory_gib) {
          ++x_out.certificate.too_large;
          note_large(item, least_gib);
          continue;
        }
        item.bound = x_bounds[c]->seconds(p) * x_cases[c].weight;
        item.estimate = item.bound;
        items.push_back(item);
      }
    }
    x_open = std::priority_queue<Item>(std::less<Item>(), std::move(items));
  }

  void price_samples(CaseBounds& bounds, std::size_t from) {
    bool goes_on = true;
    for (std::size_t first = from; first < bounds.samples() && goes_on; first += kSamplesAtOnce) {
      const std::size_t count = std::min(kSamplesAtOnce, bounds.samples() - first);
      in_parallel(
          count, [&](std::size_t i) { bounds.price(first + i); }, x_options.threads);
      x_out.bounds += static_cast<std::int64_t>(count);
      goes_on = may_go_on();
    }
  }

  void take_round() {
    std::vector<Item> round;
    std::size_t simulations = 0;
    while (!x_open.empty() && round.size() < kRound && simulations < kRoundSimulations) {
      Item item = x_open.top();
      x_open.pop();
      if (item.bound >= best()) {
        ++x_out.certificate.bounded;
        continue;
      }
      // Similar plans that were simulated since may raise the estimate above those of others.
      const double estimate = item.bound * x_excess.of(item);
      if (estimate > item.estimate) {
        item.estimate = estimate;
        x_open.push(item);
        continue;
      }
      round.push_back(item);
      simulations += item.checked ? 1 : 0;
    }
    std::vector<Outcome> outcomes(round.size());
    in_parallel(
        round.size(), [&](std::size_t i) { outcomes[i] = x_evaluator.look_at(round[i]); },
        x_options.threads);
    for (std::size_t i = 0; i < round.size(); ++i) note(round[i], std::move(outcomes[i]));
  }

  void note(Item item, Outcome outcome) {
    Certificate& c = x_out.certificate;
    switch (outcome.fate) {
      case Fate::kOpen:
        item.checked = true;
        x_open.push(item);
        break;
      case Fate::kRefused:
        ++c.refused;
        ++x_failures.reasons[outcome.reason];
        break;
      case Fate::kExcluded:
        ++c.excluded;
        break;
      case Fate::kTooLarge:
        ++c.too_large;
        note_large(item, outcome.least_gib);
        break;
      case Fate::kSimulated:
        ++c.simulated;
        x_excess.learn(item, outcome.found->objective);
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

  /// The plan of those that comes nearest to the device's memory.
  void find_nearest() {
    sort_large();
    for (const auto& [least, item] : x_failures.large) {
      const SearchCase& of = x_cases[item.of_case];
      const Point point = of.space.at(item.plan);
      const Json written = of.space.run_of(point);
      const Result<Run> run = of.resolve(written);
      if (!run.ok()) continue;
      Outcome one = x_evaluator.simulate(of, run.value(), written, of.space.changes(point), true);
      const bool nearer = one.found && (!x_out.nearest || one.found->memory.peak_gib <
                                                              x_out.nearest->memory.peak_gib);
      if (nearer) x_out.nearest = std::move(one.found);
    }
  }

  void finish() {
    Certificate& c = x_out.certificate;
    const double found = best();
    double lowest = found;
    for (; !x_open.empty(); x_open.pop()) {
      const double bound = x_open.top().bound;
      lowest = std::min(lowest, bound);
      ++(bound < found ? c.open : c.bounded);
    }
    c.complete = c.open == 0;
    c.gap = c.complete ? 0 : x_out.plans.empty() ? 1 : (found - lowest) / found;
    std::stable_sort(x_out.plans.begin(), x_out.plans.end(), is_better);
    if (x_out.plans.empty()) find_nearest();
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
  const SearchOptions& x_options;
  const SearchWatch& x_watch;
  Excess x_excess;
  std::chrono::steady_clock::time_point x_begin = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<CaseBounds>> x_bounds;
  std::priority_queue<Item> x_open;
  /// Of plans that were looked at before there were bounds, by case and plan.
  std::map<std::pair<std::uint32_t, std::uint32_t>, double> x_scores;
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
  return Searcher(cases, evaluator, options, watch).run();
}

}  // namespace foretrain
