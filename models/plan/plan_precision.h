// Recipes of low precision.
#pragma once

#include "models/plan/plan.h"
#include "models/plan/violations.h"
#include "sim/base/json.h"

namespace foretrain {

struct Request;
enum class NamedPrecision : std::uint8_t;

/// The types that a name of `precision` stands for.
void derive_compute(NamedPrecision name, Precision& precision);

/// How the tensors of fp8 are scaled (`kernels.fp8_recipe` and its like), for the precision that
/// the RUN names. The other formats of low precision have a recipe of their own.
void derive_recipe(JsonReader& run, const Request& request, Precision& precision);

/// `kernels.attention`, of the generation that `kernels.flash` names.
AttentionKernel attention_of(const Request& request);

/// The keys `autocast` and `fp8_weights` of `kernels`: false, true, or "auto", which is where it is
/// modelled.
enum class Asked : std::uint8_t { kNo, kWhereModelled, kYes };

/// Adds why torch.autocast is not modelled for the plan, if it is not.
void check_autocast(const Model& model, const Plan& plan, Violations& out);

/// Under autocast a 16-bit precision is that of linears and attention alone; others it leaves as
/// they are. Adds a violation where autocast is asked for and not modelled. The degrees are known.
void derive_autocast(Asked asked, const Model& model, Plan& plan, Violations& out);

/// The same of weights that are kept in fp8 alone: models/emit/fp8_weights.cpp.
void derive_fp8_primary_weights(Asked asked, const Model& model, Plan& plan, Violations& out);

/// What int8 does not go with.
void check_precision(const Model& model, const Plan& plan, Violations& out);

}  // namespace foretrain
