#include "tools/search/plan_tuner.h"

#include <algorithm>

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

/// Whether the search tries this value of a key. It tries no other value of a key that the RUN
/// states, that is fixed, or whose range lacks the value.
bool PlanTuner::tries(const FoundPlan& plan, const std::string& key, const Json& value) const {
  for (const Dimension& one : x_evaluator.case_of(plan).space.dimensions()) {
    if (one.key != key) continue;
    return std::find(one.values.begin(), one.values.end(), value) != one.values.end();
  }
  return false;
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
