#include "models/plan/documents.h"
#include "models/plan/plan_precision.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

/// Whether a drawn plan's last stage can leave its output matrix' gradients to the end.
bool can_defer(const Plan& p) {
  const bool whole = !p.splits_backward() && !p.shares_vocabulary() && p.directions() == 1;
  return p.pipeline > 1 && whole && !p.by_units() && !p.reduces_each_pass() && !p.sums_after_pass;
}

/// Whether its stages can hand the norm of the gradients on.
bool can_validate_later(const Model& m, const Plan& p) {
  return p.pipeline > 1 && p.directions() == 1 && !p.shares_vocabulary() && !p.by_units() &&
         !p.offload.states() && !p.in_grid() && !m.has_experts();
}

}  // namespace

void add_rare(Rng rng, Drawn& drawn) {
  Model& m = drawn.model;
  Plan& p = drawn.plan;
  if (rng.below(3) == 0) {
    const std::int64_t some = 1 + rng.below(p.sequence_length / 2);
    p.documents = {some, p.sequence_length / 2, p.sequence_length - p.sequence_length / 2 - some};
    if (p.documents.back() == 0) p.documents.pop_back();
    if (!found_by(check_documents, m, p).empty()) p.documents.clear();
  }
  if (can_defer(p)) p.overlap.head_deferral = rng.below(5);
  p.overlap.post_validation = can_validate_later(m, p) && rng.below(3) == 0;
  const bool gathers = p.sharding == Sharding::kParameters && p.units.secondary == 0 &&
                       p.units.inner_group == 1 && !p.offload.states() && !m.has_experts();
  if (gathers && p.precision.linear == DType::kFp8 && !p.precision.blocks) {
    p.units.quantized_gathers = p.units.casts_shards = rng.below(2) == 0;
  }
  if (m.has_experts() && p.experts.routing == Routing::kNatural && rng.below(2) == 0) {
    for (std::int64_t e = 0; e < m.experts.count; ++e) {
      p.experts.load.push_back(0.25 * static_cast<double>(rng.below(8)));
    }
  }
  p.units.reduce_waits = p.by_units() && rng.below(4) == 0;
  p.precision.one_copy = p.precision.by_tensor() && rng.below(2) == 0;
  Violations ignored;
  if (rng.below(2) == 0) derive_fp8_primary_weights(Asked::kWhereModelled, m, p, ignored);
  draw_offloaded_buckets(rng, m, p);
}

}  // namespace foretrain
