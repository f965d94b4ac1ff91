// Do stages that recompute, share and offload each in its own way train as one rank?
#include <gtest/gtest.h>

#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

TEST(PipelineStages, RecomputationByStageTrainsAsOneRank) {
  for (const bool experts : {false, true}) {
    const Model model = experts ? small_moe() : narrowed(small_gpt(), 6);
    Plan plan = small_plan(model, {1, 3, 1, 1}, 4);
    plan.sequence_length = 8;
    plan.pipeline_layout =
        experts ? std::vector<std::int64_t>{2, 1, 1} : std::vector<std::int64_t>{2, 3, 1};
    plan.recompute.layer = true;
    plan.stages = {{.recompute_layers = 2}, {.recompute_layers = 1, .activation_layers = 1}, {}};
    plan.stages[2].recompute_layers = 0;
    expect_as_one_rank(model, in_fp32(plan));
  }
}

// Every pair of levels, with the host's share of the states by stage.
TEST(PipelineStages, LevelsByStageTrainAsOneRank) {
  Model model = narrowed(small_llama(), 4);
  model.tied_embeddings = false;
  const Sharding levels[] = {Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters};
  for (const Sharding first : levels) {
    for (const Sharding second : levels) {
      for (const std::int64_t tensor : {1, 2}) {
        Plan plan = small_plan(model, {tensor, 2, 1, 2}, 4);
        plan.sequence_length = 8;
        plan.sharding = first;
        plan.units.reduce = DType::kFp32;
        plan.clip_norm = 0.3;
        plan.stages.resize(2);
        plan.stages[1].sharding = second;
        expect_as_one_rank(model, in_fp32(plan));
      }
    }
  }
}

TEST(PipelineStages, OffloadByStageTrainsAsOneRank) {
  const Model model = narrowed(small_llama(), 6);
  for (const Sharding level : {Sharding::kGradients, Sharding::kParameters}) {
    Plan plan = small_plan(model, {1, 2, 1, 2}, 4);
    plan.sequence_length = 8;
    plan.sharding = level;
    plan.units.reduce = DType::kFp32;
    plan.units.narrow_shards = true;
    plan.offload.optimizer = Memory::kHost;
    plan.offload.device_share = 1;
    plan.clip_norm = 0.3;
    for (const double share : {0.0, 0.5, 1.0}) {
      plan.stages = {{.device_share = 0.5}, {.device_share = share}};
      expect_as_one_rank(model, in_fp32(plan));
    }
  }
}

}  // namespace
}  // namespace foretrain
