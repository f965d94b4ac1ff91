// Makes more of plans that were found: stages of their own.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/search/evaluator.h"
#include "tools/search/stage_degrees.h"
#include "tools/search/stage_tuning.h"

namespace foretrain {

class PlanTuner {
 public:
  PlanTuner(const Evaluator& evaluator, const SpaceOptions& options,
            std::function<bool()> may_go_on)
      : x_evaluator(evaluator), x_options(options), x_may_go_on(std::move(may_go_on)) {}

  /// The plan with one chunk a stage, and with everything computed again where that is searched:
  /// its stages find what they need. Nothing where it has one already.
  std::optional<FoundPlan> with_one_chunk(const FoundPlan& plan) const;
  /// The best that is found of the plan's stages; nothing where the plan itself is as good.
  std::optional<FoundPlan> tuned_plan(const FoundPlan& plan) const;
  /// The best that is found of plans with as many data- and context-parallel ranks whose stages
  /// have tensor degrees of their own, one chunk each, and layers by time; nothing where the plan
  /// itself is as good. Asks about some sixty at most.
  std::optional<FoundPlan> with_stage_degrees(const FoundPlan& plan) const;

 private:
  std::optional<FoundPlan> changed(const FoundPlan& plan,
                                   const std::vector<std::pair<std::string, Json>>& changes) const;
  const std::vector<Json>& values_of(const FoundPlan& plan, const std::string& key) const;
  bool tries(const FoundPlan& plan, const std::string& key, const Json& value) const;
  DegreesAsked degrees_of(const FoundPlan& plan, const Run& run) const;
  TunedKeys keys_of(const FoundPlan& plan) const;

  const Evaluator& x_evaluator;
  const SpaceOptions& x_options;
  std::function<bool()> x_may_go_on;
};

}  // namespace foretrain
