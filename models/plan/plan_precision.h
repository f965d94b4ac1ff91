// Recipes of low precision.
#pragma once

#include "models/plan/plan.h"
#include "models/plan/plan_sharding.h"
#include "sim/base/json.h"

namespace foretrain {

struct Request;
enum class NamedPrecision : std::uint8_t;

/// The types that a name of `precision` stands for.
void settle_compute(NamedPrecision name, Precision& precision);

/// How the tensors of fp8 are scaled (`kernels.fp8_recipe` and its like), for the precision that
/// the RUN names. The other formats of low precision have a recipe of their own.
void settle_recipe(JsonReader& run, const Request& request, Precision& precision);

/// `kernels.attention`, of the generation that `kernels.flash` names.
AttentionKernel attention_of(const Request& request);

/// The keys `autocast` and `fp8_weights` of `kernels`: false, true, or "auto", which is where it is
/// modelled.
enum class Asked : std::uint8_t { kNo, kWhereModelled, kYes };

/// Why torch.autocast is not modelled for the plan, if it is not.
std::optional<Refusal> refused_autocast(const Model& model, const Plan& plan);

/// Under autocast a 16-bit precision is that of linears and attention alone; others it leaves as
/// they are. Returns the refusal where it is asked for and not modelled. Once the degrees are
/// known.
std::optional<Refusal> settle_autocast(Asked asked, const Model& model, Plan& plan);

/// The same of weights that are kept in fp8 alone: models/emit/fp8_weights.cpp.
std::optional<Refusal> settle_low_weights(Asked asked, const Model& model, Plan& plan);

/// What int8 does not go with.
std::optional<Refusal> refused_precision(const Model& model, const Plan& plan);

}  // namespace foretrain
