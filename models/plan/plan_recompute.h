// What of a layer a RUN computes again in its backward pass.
#pragma once

#include "models/plan/plan.h"
#include "models/plan/violations.h"

namespace foretrain {

struct Request;

/// What `recompute` asks for. Selective means by operation where that is asked for and modelled.
/// The parallel degrees and kernels of `plan` are known.
void derive_recompute(const Request& request, const Model& model, Plan& plan);

/// Modules and results that do not go together, or with the model.
void check_recompute(const Model& model, const Plan& plan, Violations& out);

}  // namespace foretrain
