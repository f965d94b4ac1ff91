// What a plan cannot ask of a network of layers or an encoder-decoder.
#pragma once

#include <optional>

#include "models/plan/plan_sharding.h"

namespace foretrain {

/// They train with data parallelism, in 16 bits and more, without recomputation.
std::optional<Refusal> refused_network(const Model& model, const Plan& plan);

}  // namespace foretrain
