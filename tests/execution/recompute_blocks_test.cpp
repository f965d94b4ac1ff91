// Do blocks of layers that are computed again together train as one rank that keeps everything?
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

struct BlockCase {
  PlanDegrees degrees;
  Schedule schedule;
};

// Dropout, whose masks are drawn again alike; tied tables; passes of their own for gradients of
// weights, which read what was computed again.
TEST(RecomputeBlocks, TrainsAsOneRank) {
  const BlockCase cases[] = {
      {{1, 1, 1, 2}, Schedule::k1F1B},        {{2, 1, 1, 1}, Schedule::k1F1B},
      {{1, 2, 1, 1}, Schedule::kGpipe},       {{2, 2, 1, 1}, Schedule::kGpipe},
      {{1, 2, 2, 1}, Schedule::kInterleaved}, {{1, 2, 1, 1}, Schedule::kZbH1},
      {{1, 2, 2, 1}, Schedule::kZbV}};
  for (Model model : {narrowed(small_gpt(), 5), narrowed(small_llama(), 5)}) {
    model.positions = std::min<std::int64_t>(model.positions, 8);
    for (const BlockCase& c : cases) {
      for (const std::int64_t layers : {0, 1, 2}) {
        const bool early = layers != 2;
        model.tied_embeddings = early && c.schedule != Schedule::kZbV;
        Plan plan = small_plan(model, c.degrees, 4);
        plan.schedule = c.schedule;
        plan.sequence_length = 8;
        plan.sequence = c.degrees.tensor > 1 && early;
        plan.sharding = early ? Sharding::kOptimizer : Sharding::kNone;
        plan.overlap.gradient_reduce = plan.overlap.parameter_gather = true;
        plan.bucket_elements = 500;
        plan.dropout = 0.1;
        plan.recompute.layer = true;
        plan.recompute.block_layers = layers;
        plan.recompute.early = early;
        plan.recompute.early_stop = layers == 2;
        expect_as_one_rank(model, in_fp32(plan));
      }
    }
  }
}

// Experts choose again as they chose, latent attention widens again.
TEST(RecomputeBlocks, WithExpertsTrainsAsOneRank) {
  for (const std::int64_t layers : {0, 2}) {
    Model model = narrowed(small_moe(), 3);
    model.vocabulary = 96;
    Plan plan = small_plan(model, {1, 1, 1, 2}, 2);
    plan.experts = ExpertPlan{2, 1, Dispatcher::kAllToAll, Routing::kBalanced, 1};
    plan.sequence_length = 16;
    plan.recompute.layer = true;
    plan.recompute.block_layers = layers;
    expect_as_one_rank(model, in_fp32(plan));
  }
}

}  // namespace
}  // namespace foretrain
