#include "tools/search/plan_tuner.h"

#include <algorithm>

#include "models/plan/layout/plan_stages.h"

namespace foretrain {

std::optional<FoundPlan> PlanTuner::with_one_chunk(const FoundPlan& plan) const {
  const char* const key = "parallel.virtual_pipeline";
  const Json* chunks = value_of_key(plan.run, key);
  if (chunks == nullptr || *chunks == Json(1) || !tries(plan, key, Json(1))) return {};
  std::vector<std::pair<std::string, Json>> changes = {{key, Json(1)}};
  if (tries(plan, "recompute", Json("full"))) changes.emplace_back("recompute", Json("full"));
  return changed(plan, changes);
}

std::optional<FoundPlan> PlanTuner::tuned_plan(const FoundPlan& plan) const {
  const Result<Run> even = x_evaluator.case_of(plan).resolve(plan.run);
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

/// The plan with `changes` more, if it fits and nothing excludes it.
std::optional<FoundPlan> PlanTuner::changed(
    const FoundPlan& plan, const std::vector<std::pair<std::string, Json>>& changes) const {
  if (!x_may_go_on()) return {};
  const SearchCase& of = x_evaluator.case_of(plan);
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

/// The values that the search tries of a key, which are no others than a RUN states, a user fixes
/// or a range holds.
const std::vector<Json>& PlanTuner::values_of(const FoundPlan& plan, const std::string& key) const {
  static const std::vector<Json> none;
  for (const Dimension& one : x_evaluator.case_of(plan).space.dimensions()) {
    if (one.key == key) return one.values;
  }
  return none;
}

bool PlanTuner::tries(const FoundPlan& plan, const std::string& key, const Json& value) const {
  const std::vector<Json>& values = values_of(plan, key);
  return std::find(values.begin(), values.end(), value) != values.end();
}

/// Degrees that the search tries, on as many stages as lie between the fewest and the most.
DegreesAsked PlanTuner::degrees_of(const FoundPlan& plan, const Run& run) const {
  const auto whole = [](const Json& value) { return static_cast<std::int64_t>(value.number()); };
  DegreesAsked out;
  out.ranks = model_ranks(run.plan);
  for (const Json& value : values_of(plan, "parallel.tensor")) out.degrees.push_back(whole(value));
  out.least_stages = out.most_stages = run.plan.pipeline;
  for (const Json& value : values_of(plan, "parallel.pipeline")) {
    out.least_stages = std::min(out.least_stages, whole(value));
    out.most_stages = std::max(out.most_stages, whole(value));
  }
  out.least_stages = std::max<std::int64_t>(out.least_stages, 2);
  out.most_stages = std::min(out.most_stages, run.model.layers);
  for (const Cluster& pool : run.cluster.pools) {
    if (pool.accelerators % run.plan.data != 0) {
      out.pools.clear();  // no stage begins with a pool
      break;
    }
    out.pools.push_back(pool.accelerators / run.plan.data);
  }
  return out;
}

std::optional<FoundPlan> PlanTuner::with_stage_degrees(const FoundPlan& plan) const {
  constexpr std::size_t kMostLists = 60;
  const Result<Run> run = x_evaluator.case_of(plan).resolve(plan.run);
  const bool searched = names_stages(x_options) && values_of(plan, "parallel.tensor").size() > 1;
  if (!run.ok() || !searched) return {};
  const char* const chunks = "parallel.virtual_pipeline";
  if (run.value().plan.virtual_pipeline > 1 && !tries(plan, chunks, Json(1))) return {};
  const char* const partition = "parallel.pipeline_partition";
  const auto& fixed = x_options.fixed;
  const bool stated = value_of_key(plan.run, partition) != nullptr ||
                      value_of_key(plan.run, "parallel.pipeline_layout") != nullptr;
  const bool divides = std::find(fixed.begin(), fixed.end(), partition) == fixed.end() &&
                       (!stated || tries(plan, partition, Json("profiled")));
  std::optional<FoundPlan> best;
  for (const auto& degrees : stage_degrees(degrees_of(plan, run.value()), kMostLists)) {
    Json::Array stages;
    for (const std::int64_t degree : degrees) {
      stages.emplace_back(Json::Object{});
      stages.back().set("tensor", degree);
    }
    std::vector<std::pair<std::string, Json>> changes = {
        {"parallel.pipeline", Json(static_cast<std::int64_t>(degrees.size()))},
        {chunks, Json(1)},
        {kStagesKey, Json(std::move(stages))}};
    if (divides) changes.emplace_back(partition, Json("profiled"));
    std::optional<FoundPlan> one = changed(plan, changes);
    if (one && one->objective < (best ? best->objective : plan.objective)) best = std::move(one);
  }
  return best;
}

/// What is searched, and with `pipeline_stages` freed by name all that is not fixed.
TunedKeys PlanTuner::keys_of(const FoundPlan& plan) const {
  const bool named = names_stages(x_options);
  const auto may = [&](const std::string& key) {
    const auto& fixed = x_options.fixed;
    if (std::find(fixed.begin(), fixed.end(), key) != fixed.end()) return false;
    const std::vector<Dimension>& all = x_evaluator.case_of(plan).space.dimensions();
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

}  // namespace foretrain
