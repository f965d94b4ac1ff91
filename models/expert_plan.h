// The part of a plan that is about experts.
#pragma once

#include <string>

#include "models/plan.h"

namespace foretrain {

/// Reads `moe`.
void read_expert_plan(JsonReader& run, const Model& model, ExpertPlan& plan);

/// Marks module `name` of `recompute.modules` if it is one of the experts' or of latent attention;
/// refuses what the model does not have.
void read_expert_module(JsonReader& reader, const std::string& name, const Model& model,
                        Recompute& out);

/// Refuses degrees that do not divide and combinations that cannot be. The plan's data is known.
void check_expert_plan(JsonReader& run, const Model& model, const Plan& plan);

}  // namespace foretrain
