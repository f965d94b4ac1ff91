// What of a layer a RUN computes again in its backward pass.
#pragma once

#include <optional>

#include "models/plan/plan_sharding.h"

namespace foretrain {

/// The key `recompute`. `operations`: "selective" means by operation, where that is modelled. The
/// parallel degrees and kernels of `plan` are known.
void read_recompute(JsonReader& run, bool operations, const Model& model, Plan& plan);

/// Modules and results that do not go together, or with the model.
std::optional<Refusal> refused_recompute(const Model& model, const Plan& plan);

}  // namespace foretrain
