// Tensor parallelism on grids trains as one rank does: the oracle of models/layers/tensor_grid.h.
#include <gtest/gtest.h>

#include <ostream>

#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

struct Grid {
  TensorMode mode;
  std::int64_t tensor, depth;
};
void PrintTo(const Grid& grid, std::ostream* out) {
  *out << name_of(grid.mode) << " on " << grid.tensor << " ranks, depth " << grid.depth;
}
constexpr Grid kFour{TensorMode::k2D, 4, 1};
constexpr Grid kDeep{TensorMode::k25D, 2, 2};
constexpr Grid kTwoLayers{TensorMode::k25D, 8, 2};
constexpr Grid kFlat{TensorMode::k25D, 4, 1};
constexpr Grid kCube{TensorMode::k3D, 8, 1};

/// Two layers of four heads and sequences of 8 tokens, two microbatches on every data rank.
Plan plan_on(const Model& model, const Grid& grid, std::int64_t pipeline = 1,
             std::int64_t data = 1) {
  Plan plan = in_fp32(small_plan(model, {grid.tensor, pipeline, 1, data}, 2));
  plan.tensor_mode = grid.mode;
  plan.tensor_depth = grid.depth;
  plan.sequence_length = 8;
  plan.micro_batch = plan.token_parts();
  plan.global_batch = plan.micro_batch * plan.batch_ranks() * 2;
  plan.clip_norm = 0.3;
  return plan;
}

Model gpt() {
  Model model = narrowed(small_gpt(), 2);
  model.positions = 8;
  model.embedding_norm = true;
  return model;
}
Model llama() {
  Model model = narrowed(small_llama(), 2);
  model.intermediate = 32;
  return model;
}

class OnGrid : public testing::TestWithParam<Grid> {};

// LayerNorm with biases, learned positions, GELU and dropout; RMSNorm, rotary positions and a gated
// MLP; tables tied and not.
TEST_P(OnGrid, TrainsAsOneRank) {
  for (const bool tied : {false, true}) {
    for (Model model : {gpt(), llama()}) {
      model.tied_embeddings = tied;
      Plan plan = plan_on(model, GetParam());
      plan.dropout = 0.1;
      plan.recompute.layer = tied;
      expect_as_one_rank(model, plan);
    }
  }
}

// What is computed again, stored scores with their dropout, ALiBi, parallel branches.
TEST_P(OnGrid, TrainsAsOneRankInParts) {
  Model model = gpt();
  model.position = Position::kAlibi;
  model.positions = 0;
  model.parallel_residual = true;
  Plan plan = plan_on(model, GetParam());
  plan.dropout = 0.1;
  plan.attention = AttentionKernel::kUnfused;
  plan.recompute.attention = plan.recompute.norm = plan.recompute.mlp = true;
  expect_as_one_rank(model, plan);
}

// Three steps a product: both buffers of a broadcast are used again.
TEST(OnNineRanks, TrainsAsOneRank) {
  for (Model model : {gpt(), llama()}) {
    model.heads = model.kv_heads = 6;
    model.hidden = 24;
    model.intermediate = 36;
    expect_as_one_rank(model, plan_on(model, {TensorMode::k2D, 9, 1}));
  }
}

// Stages, of which one has passes of its own for gradients of weights; data-parallel ranks that
// share the optimizer's states, in buckets that go as soon as they can.
TEST(GridBeside, OtherParallelismTrainsAsOneRank) {
  const Model model = gpt();
  for (const Schedule schedule : {Schedule::k1F1B, Schedule::kZbH1}) {
    Plan plan = plan_on(model, kFour, 2);
    plan.schedule = schedule;
    plan.dropout = 0.1;
    expect_as_one_rank(model, plan);
  }
  for (const Grid& grid : {kFour, kDeep}) {
    for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer}) {
      Plan plan = plan_on(model, grid, 1, 2);
      plan.sharding = sharding;
      plan.bucket_elements = 500;
      plan.overlap.gradient_reduce = plan.overlap.parameter_gather = true;
      expect_as_one_rank(model, plan);
    }
  }
}

// A table that stands on two stages and in two layers of depth: the norm of the gradients counts
// each of its elements once.
TEST(GridBeside, ATiedTableTrainsAsOneRank) {
  Model model = gpt();
  model.tied_embeddings = true;
  for (const Grid& grid : {kFour, kDeep}) {
    Plan plan = plan_on(model, grid, 2);
    plan.clip_norm = 0.01;
    expect_as_one_rank(model, plan);
  }
}

// Passes for gradients of weights where what 3d gathered stays until then.
TEST(GridBeside, WeightPassesOfACubeTrainAsOneRank) {
  const Model model = llama();
  Plan plan = plan_on(model, kCube, 2);
  plan.schedule = Schedule::kZbH1;
  expect_as_one_rank(model, plan);
}

INSTANTIATE_TEST_SUITE_P(Grids, OnGrid, testing::Values(kFour, kDeep, kFlat, kTwoLayers, kCube));

}  // namespace
}  // namespace foretrain
