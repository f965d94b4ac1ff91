// What of a layer a RUN computes again in its backward pass.
#pragma once

#include <optional>

#include "models/plan/plan_sharding.h"

namespace foretrain {

struct Request;

/// What `recompute` asks for. Selective means by operation where that is asked for and modelled.
/// The parallel degrees and kernels of `plan` are known.
void derive_recompute(const Request& request, const Model& model, Plan& plan);

/// Modules and results that do not go together, or with the model.
std::optional<Refusal> refused_recompute(const Model& model, const Plan& plan);

}  // namespace foretrain
