// Do stages that recompute, share and offload each in its own way train as one rank?
#include <gtest/gtest.h>

#include <algorithm>

#include "models/plan/layout/plan_stages.h"
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

/// Stages of these tensor degrees, `data` ranks each.
Plan with_degrees(const Model& model, const std::vector<std::int64_t>& degrees, std::int64_t data,
                  bool sequence, std::int64_t virtual_pipeline = 1) {
  const auto stages = static_cast<std::int64_t>(degrees.size());
  const std::int64_t most = *std::max_element(degrees.begin(), degrees.end());
  Plan plan = small_plan(model, {most, stages, virtual_pipeline, data}, 2 * stages);
  plan.sequence_length = 8;
  plan.tensors = {degrees, sequence};
  plan.sequence = sequence && plan.tensor > 1;
  plan.accelerators = model_ranks(plan) * data;
  plan.stages.resize(degrees.size());
  plan.clip_norm = 0.3;
  return in_fp32(plan);
}

// A stage of more ranks sends to each of fewer, and the other way round, parts of the tokens or of
// what all ranks hold.
TEST(PipelineStages, TensorDegreesByStageTrainAsOneRank) {
  Model llama = narrowed(small_llama(), 6);
  llama.tied_embeddings = false;
  const std::vector<std::vector<std::int64_t>> all = {{4, 2}, {1, 4}, {2, 4, 1}, {1, 2, 2}};
  for (const std::vector<std::int64_t>& degrees : all) {
    for (const bool sequence : {true, false}) {
      expect_as_one_rank(llama, with_degrees(llama, degrees, 1, sequence));
    }
  }
  Model gpt = narrowed(small_gpt(), 6);
  gpt.tied_embeddings = true;  // between stages of one degree, around one of another
  expect_as_one_rank(gpt, with_degrees(gpt, {2, 4, 2}, 1, true));
}

TEST(PipelineStages, TensorDegreesGoWithWhatElseAPlanDoes) {
  Model model = narrowed(small_llama(), 6);
  model.tied_embeddings = false;
  for (const Sharding level : {Sharding::kOptimizer, Sharding::kParameters}) {
    Plan plan = with_degrees(model, {1, 2}, 2, true);
    plan.sharding = level;
    plan.units.reduce = DType::kFp32;
    expect_as_one_rank(model, plan);
  }
  // The last stage sends to the first, in chunks that go around.
  expect_as_one_rank(model, with_degrees(model, {2, 1}, 2, true, 3));
  expect_as_one_rank(model, with_degrees(model, {2, 1}, 2, false, 3));
  Plan rings = with_degrees(model, {4, 2}, 1, true);
  rings.overlap.tensor = true;
  expect_as_one_rank(model, rings);
  Plan again = with_degrees(model, {2, 4}, 1, true);
  again.recompute.layer = true;
  again.stages[1].recompute_layers = 1;
  expect_as_one_rank(model, again);
  Plan split = with_degrees(model, {2, 1, 1}, 1, true);
  split.schedule = Schedule::kZbH1;
  expect_as_one_rank(model, split);
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
