// How the layers of a RUN are cut among tensor-parallel ranks, and what they cannot be cut into.
#pragma once

#include <optional>

#include "models/plan/plan_sharding.h"

namespace foretrain {

/// Degrees that do not divide the model, grids that cannot be, what a grid does not go with.
std::optional<Refusal> refused_tensor(const Model& model, const Plan& plan);

}  // namespace foretrain
