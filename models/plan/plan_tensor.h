// How the layers of a RUN are cut among tensor-parallel ranks, and what they cannot be cut into.
#pragma once

#include "models/plan/plan.h"
#include "models/plan/violations.h"

namespace foretrain {

/// Degrees that do not divide the model, grids that cannot be, what a grid does not go with.
void check_tensor(const Model& model, const Plan& plan, Violations& out);

}  // namespace foretrain
