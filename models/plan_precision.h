// Recipes of low precision.
#pragma once

#include "models/plan.h"
#include "models/plan_sharding.h"
#include "sim/base/json.h"

namespace foretrain {

/// The keys `amax_reduction` and `fp8_recipe` of `kernels`, for the precision that the RUN names:
/// how the tensors of fp8 are scaled. The other formats of low precision have a recipe of their
/// own.
void read_recipe(JsonReader& kernels, Precision& precision);

/// What int8 does not go with.
std::optional<Refusal> refused_precision(const Model& model, const Plan& plan);

}  // namespace foretrain
