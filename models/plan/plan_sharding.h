// The keys `sharding`, `gradients` and `offload` of a RUN, and what they cannot be.
#pragma once

#include <optional>
#include <string>

#include "models/plan/plan.h"
#include "models/plan/violations.h"

namespace foretrain {

/// What `gradients` says that the rest of the plan decides on.
struct GradientKeys {
  /// kFp32InPipelines: fp32 where the passes of a pipeline add bf16 gradients up, else compute's.
  enum class Stored : std::uint8_t { kFp32, kCompute, kFp32InPipelines };
  Stored stored = Stored::kFp32;
  bool reduced_as_compute = false;  ///< sums, whatever travels
  /// Who takes the scale of fp16's loss out of the gradients: a pass of its own, or the clipping.
  enum class Unscale : std::uint8_t { kApart, kClipping, kNone };
  Unscale unscale = Unscale::kApart;
  std::int64_t bucket_elements_per_rank = 0;
};

/// Whether `sums_after_pass` is modelled for the plan.
bool can_sum_after_pass(const Model& model, const Plan& plan);

/// Gradients that are wider only where a pipeline's passes add them up are added after each pass,
/// where that is modelled. Once the schedule is known.
void derive_accumulation(const Model& model, const GradientKeys& keys, Plan& plan);

/// Whether gradients of the plan can be copied into contiguous buckets.
bool can_copy_into_buckets(const Model& model, const Plan& plan);

/// Widens buckets that would be too many to be written as ops, where no device holds the gradients
/// that are cut into buckets: the plan does not fit, and its memory does not depend on the buckets.
/// The degrees are known.
void widen_buckets(const Model& model, Plan& plan);

/// Whether the plan's buckets are as wide as `widen_buckets` makes them.
bool has_widened_buckets(const Model& model, const Plan& plan);

/// Else they go as they would without them. Once the degrees are known.
void derive_buckets(const Model& model, Plan& plan);

/// A unit has as many layers as a chunk has room for. Once the degrees are known.
void derive_chunks(const Model& model, Plan& plan);

/// Gradients that travel in the type that they have are not cast.
void derive_compression(Plan& plan);

/// What sharding and reductions cannot be. All degrees are known.
void check_sharding(const Model& model, const Plan& plan, Violations& out);

void check_offload(const Model& model, const Plan& plan, Violations& out);

}  // namespace foretrain
