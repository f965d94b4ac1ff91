// How the layers of a RUN are cut among tensor-parallel ranks, and what they cannot be cut into.
#pragma once

#include <optional>

#include "models/plan/plan_sharding.h"

namespace foretrain {

/// `tensor_mode` and `tensor_depth` of `parallel`; `tensor` and `sequence` are known. One tensor
/// rank has no grid.
void read_tensor_mode(JsonReader& reader, Plan& plan);

/// What tensor parallelism hides, of `overlap`.
void read_tensor_overlap(JsonReader& reader, Overlap& overlap);

/// Degrees that do not divide the model, grids that cannot be, what a grid does not go with.
std::optional<Refusal> refused_tensor(const Model& model, const Plan& plan);

}  // namespace foretrain
