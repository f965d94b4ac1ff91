// Do slices of a microbatch that take turns train as the whole one?
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

// With dropout everywhere, recomputation, tied tables, buckets that go beside the backward pass.
TEST(TensorSlices, TrainAsOneRank) {
  for (Model model : {narrowed(small_gpt(), 4), narrowed(small_llama(), 4)}) {
    model.positions = std::min<std::int64_t>(model.positions, 8);
    for (const PlanDegrees degrees :
         {PlanDegrees{2, 1, 1, 1}, PlanDegrees{2, 2, 1, 2}, PlanDegrees{2, 2, 2, 1}}) {
      for (const bool again : {false, true}) {
        for (const std::int64_t slices : {2, 4}) {
          model.tied_embeddings = again;
          model.parallel_residual = slices == 4;
          Plan plan = small_plan(model, degrees, 4);
          plan.micro_batch = slices;
          plan.global_batch *= slices;
          plan.sequence_length = 8;
          plan.overlap.tensor_slices = slices;
          plan.overlap.tensor_backward = slices == 2;
          plan.overlap.gradient_reduce = plan.overlap.parameter_gather = true;
          plan.sharding = again ? Sharding::kOptimizer : Sharding::kNone;
          plan.bucket_elements = 500;
          plan.dropout = 0.1;
          plan.recompute.layer = again;
          plan.attention = again ? AttentionKernel::kFlash : AttentionKernel::kUnfused;
          expect_as_one_rank(model, in_fp32(plan));
        }
      }
    }
  }
}

}  // namespace
}  // namespace foretrain
