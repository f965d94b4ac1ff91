#include "tools/search/evaluator.h"

#include <algorithm>
#include <functional>
#include <map>

#include "sim/base/stop.h"
#include "tools/search/bounds/memory_bound.h"

namespace foretrain {
namespace {

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
    x_known["parallel.tensor"] = Json(run.plan.tensor);  // of stages the largest
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

}  // namespace

const std::vector<std::string>& result_names() {
  static const std::vector<std::string> kResults = {"parallel.data",
                                                    "batch.microbatches",
                                                    "cluster.accelerators",
                                                    "iteration_time_s",
                                                    "tokens_per_s",
                                                    "mfu",
                                                    "cost",
                                                    "memory.peak_gib",
                                                    "memory.reserved_gib",
                                                    "memory.host_gib"};
  return kResults;
}

void describe_plan(const SearchCase& of, Point point, FoundPlan& plan) {
  plan.run = of.space.run_of(point);
  plan.changes = of.space.changes(point);
}

Outcome Evaluator::look_at(std::uint32_t of_case, std::uint32_t plan) const {
  if (stop_asked()) return {};
  const SearchCase& of = x_cases[of_case];
  const Point point = of.space.at(plan);
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
  if (out.least_gib > run.value().cluster.most_memory_gib()) {
    out.fate = Fate::kTooLarge;
    return out;
  }
  out = simulate(of, run.value(), false);
  if (out.found) describe_plan(of, point, *out.found);
  return out;
}

Outcome Evaluator::simulate(const SearchCase& of, const Run& run, bool any) const {
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

UnsurePlan Evaluator::unsure(const FoundPlan& plan) const {
  UnsurePlan out;
  out.objective = plan.objective;
  PredictOptions options;
  options.verify = options.sensitivity = false;
  const Result<Run> run = case_of(plan).resolve(plan.run);
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

const SearchCase& Evaluator::case_of(const FoundPlan& plan) const {
  return *std::find_if(x_cases.begin(), x_cases.end(), [&plan](const SearchCase& one) {
    return one.cluster == plan.cluster && one.seed.cluster.accelerators == plan.accelerators;
  });
}

bool Evaluator::excludes(const Run& run, const FoundPlan* found) const {
  const PlanValues values(run, found);
  return std::any_of(x_conditions.begin(), x_conditions.end(), [&](const Condition& one) {
    return one.holds(std::cref(values)) == std::optional(false);
  });
}

}  // namespace foretrain
