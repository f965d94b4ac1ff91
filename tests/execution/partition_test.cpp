// Do stages with as many parameters, not as many layers, train as one rank?
#include "models/plan/layout/partition.h"

#include <gtest/gtest.h>

#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

// A vocabulary that outweighs layers, so that the ends have few of them or none: tied tables and
// others, tensor ranks, chunks, sharded states, gradients of weights in passes of their own.
TEST(Partition, TrainsAsOneRank) {
  for (Model model : {narrowed(small_gpt(), 8), narrowed(small_llama(), 8)}) {
    if (model.positions > 0) model.positions = 8;
    model.vocabulary *= 4;
    for (const PlanDegrees degrees : {PlanDegrees{1, 3, 1, 1}, PlanDegrees{2, 4, 1, 1},
                                      PlanDegrees{1, 2, 2, 2}, PlanDegrees{1, 4, 1, 2}}) {
      for (const bool tied : {false, true}) {
        model.tied_embeddings = tied;
        Plan plan = small_plan(model, degrees, 4);
        plan.schedule = degrees.virtual_pipeline > 1 ? Schedule::kInterleaved
                        : tied                       ? Schedule::k1F1B
                                                     : Schedule::kZbH1;
        plan.sequence_length = 8;
        plan.sharding = degrees.data > 1 ? Sharding::kOptimizer : Sharding::kNone;
        plan.partition = Partition::kParameters;
        plan.pipeline_layout = balanced_layout({parameter_weights(model, plan)}, plan.chunks());
        ASSERT_NE(plan.pipeline_layout, default_layout(model.layers, plan.chunks()));
        expect_as_one_rank(model, in_fp32(plan));
      }
    }
  }
}

// Layers without experts go with more of the others.
TEST(Partition, OfExpertsTrainsAsOneRank) {
  Model model = small_moe();
  model.layers = 6;
  model.experts.first_dense = 3;
  model.experts.width *= 2;
  Plan plan = small_plan(model, {1, 2, 1, 2}, 2);
  plan.experts.expert = 2;
  plan.sequence_length = 8;
  plan.pipeline_layout = balanced_layout({parameter_weights(model, plan)}, 2);
  EXPECT_EQ(plan.pipeline_layout, (std::vector<std::int64_t>{4, 2}));
  expect_as_one_rank(model, in_fp32(plan));
}

// A table of the first and the last stage in sharded units of unlike sizes, also where norms and
// positions stay gathered beside it, and where groups of shards hold copies.
TEST(TiedUnits, TrainAsOneRank) {
  for (Model model : {narrowed(small_gpt(), 4), narrowed(small_llama(), 4)}) {
    model.tied_embeddings = true;
    model.positions = std::min<std::int64_t>(model.positions, 8);
    for (const PlanDegrees degrees : {PlanDegrees{1, 2, 1, 2}, PlanDegrees{2, 2, 1, 1},
                                      PlanDegrees{1, 2, 2, 2}, PlanDegrees{1, 2, 1, 4}}) {
      for (const Sharding sharding : {Sharding::kGradients, Sharding::kParameters}) {
        Plan plan = small_plan(model, degrees, 4);
        plan.sequence_length = 8;
        plan.schedule = degrees.virtual_pipeline > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
        plan.sharding = sharding;
        plan.shard_group = degrees.data == 4 ? 2 : 0;
        plan.units.reduce = DType::kFp32;
        plan.units.reduce_each = sharding == Sharding::kGradients;
        plan.units.persist_elements = degrees.virtual_pipeline > 1 ? 8 : 0;
        plan.clip_norm = 0.3;
        expect_as_one_rank(model, in_fp32(plan));
      }
    }
  }
}

}  // namespace
}  // namespace foretrain
