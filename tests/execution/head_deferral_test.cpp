// Do gradients of the output matrix that wait for the cool-down add up to the same?
#include <gtest/gtest.h>

#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

// Tied tables and others, tensor ranks with and without cut sequences, chunks, buckets that travel
// beside the passes, all and some microbatches.
TEST(HeadDeferral, TrainsAsOneRank) {
  for (Model model : {narrowed(small_gpt(), 4), narrowed(small_llama(), 4)}) {
    if (model.positions > 0) model.positions = 8;
    for (const PlanDegrees degrees : {PlanDegrees{1, 2, 1, 2}, PlanDegrees{1, 4, 1, 1},
                                      PlanDegrees{2, 2, 1, 1}, PlanDegrees{1, 2, 2, 1}}) {
      for (const std::int64_t deferral : {1, 3, 100}) {
        model.tied_embeddings = deferral == 3;
        Plan plan = small_plan(model, degrees, 4);
        plan.schedule = degrees.virtual_pipeline > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
        plan.overlap.head_deferral = deferral;
        plan.sequence_length = 8;
        plan.sequence = degrees.tensor > 1 && deferral == 1;
        plan.sharding = deferral == 3 ? Sharding::kNone : Sharding::kOptimizer;
        plan.overlap.gradient_reduce = plan.overlap.parameter_gather = deferral != 1;
        plan.overlap.pipeline = deferral != 3;
        plan.bucket_elements = 500;
        plan.fused_accumulation = deferral != 100;
        expect_as_one_rank(model, in_fp32(plan));
      }
    }
  }
}

}  // namespace
}  // namespace foretrain
