// Does a loss that goes by parts of the tokens train as a whole one does?
#include <gtest/gtest.h>

#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

// Parts that divide the tokens and others, tied tables and others, a cut vocabulary with and
// without cut sequences, stages, sharded units, products that add up themselves or in a pass.
TEST(LossChunks, TrainsAsAWholeLoss) {
  for (Model model : {narrowed(small_gpt(), 4), narrowed(small_llama(), 4)}) {
    if (model.positions > 0) model.positions = 8;
    for (const PlanDegrees degrees : {PlanDegrees{1, 1, 1, 2}, PlanDegrees{2, 1, 1, 1},
                                      PlanDegrees{2, 2, 1, 1}, PlanDegrees{1, 2, 2, 2}}) {
      for (const std::int64_t chunks : {1, 3, 4}) {
        model.tied_embeddings = chunks == 3;
        Plan plan = small_plan(model, degrees, 2);
        plan.schedule = degrees.virtual_pipeline > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
        plan.loss.chunks = chunks;
        plan.sequence_length = 8;
        plan.sequence = degrees.tensor > 1 && chunks != 4;
        const bool units = degrees.pipeline == 1 && degrees.tensor == 1 && chunks != 3;
        plan.sharding = units ? Sharding::kParameters : Sharding::kOptimizer;
        plan.loss.form = chunks == 4 ? LossForm::kTorch : LossForm::kFused;
        plan.fused_accumulation = chunks != 1;
        expect_as_one_rank(model, in_fp32(plan));
      }
    }
  }
}

}  // namespace
}  // namespace foretrain
