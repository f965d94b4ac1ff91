// Are one rank's gradients the derivatives of its loss? Central differences along a random
// direction of every tensor, in double precision.
#pragma once

#include "models/plan/plan.h"

namespace foretrain {

/// `model` with two narrow layers.
Model probed(Model model);

/// Two microbatches of two sequences of 7 tokens on one rank, in fp32.
Plan plan_of(const Model& model, AttentionKernel attention, double dropout);

/// Of a step of the model, whose loss is near that of drawn labels.
void expect_derivatives(const Model& model, const Plan& plan);

}  // namespace foretrain
