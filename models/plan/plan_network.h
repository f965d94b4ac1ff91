// What a plan cannot ask of a network of layers or an encoder-decoder.
#pragma once

#include "models/plan/plan.h"
#include "models/plan/violations.h"

namespace foretrain {

/// They train with data parallelism, in 16 bits and more, without recomputation.
void check_network(const Model& model, const Plan& plan, Violations& out);

}  // namespace foretrain
