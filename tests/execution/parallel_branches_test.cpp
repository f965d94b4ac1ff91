// Do layers whose branches stand side by side train as on one rank, with a norm for each and with
// one for both? Their products are added on a rank before they are reduced.
#include <gtest/gtest.h>

#include <vector>

#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

/// Both kinds of small models, each with two norms and with one.
std::vector<Model> models() {
  std::vector<Model> out;
  for (const bool shared : {false, true}) {
    for (const Model& whole : {small_gpt(), small_llama()}) {
      Model model = narrowed(whole, 2);
      if (model.positions > 0) model.positions = 8;
      model.parallel_residual = true;
      model.shared_norm = shared;
      out.push_back(model);
    }
  }
  return out;
}

Plan plan_for(const Model& model, PlanDegrees degrees, bool sequence) {
  Plan plan = in_fp32(small_plan(model, degrees, 2 * degrees.pipeline));
  plan.sequence_length = 8;
  plan.sequence = sequence;
  plan.clip_norm = 0.3;
  return plan;
}

// Every module that is computed again; stored scores, dropout of the branches' sum.
TEST(ParallelBranches, TrainAsOneRank) {
  using Flag = bool Recompute::*;
  for (const Model& model : models()) {
    for (const bool sequence : {false, true}) {
      for (const Flag flag : {Flag{}, &Recompute::layer, &Recompute::attention, &Recompute::norm,
                              &Recompute::mlp, &Recompute::activation}) {
        for (const bool drops : {false, true}) {
          Plan plan = plan_for(model, {2, 1, 1, 1}, sequence);
          plan.dropout = drops ? 0.1 : 0;
          plan.attention = drops ? AttentionKernel::kUnfused : AttentionKernel::kFlash;
          plan.overlap.tensor_backward = drops;
          if (flag != nullptr) plan.recompute.*flag = true;
          expect_as_one_rank(model, plan);
        }
      }
    }
  }
}

// What a layer that is computed again keeps, and where it stops.
TEST(ParallelBranches, TrainAsOneRankWithResultsKept) {
  using Flag = bool Recompute::*;
  for (const Model& model : models()) {
    for (const bool sequence : {false, true}) {
      for (const Flag flag : {&Recompute::early_stop, &Recompute::keep_heads, &Recompute::keep_core,
                              &Recompute::keep_projection, &Recompute::keep_up}) {
        Plan plan = plan_for(model, {2, 1, 1, 1}, sequence);
        plan.dropout = flag == &Recompute::keep_up ? 0 : 0.1;
        plan.recompute.layer = plan.recompute.*flag = true;
        plan.recompute.early_stop = !sequence;
        expect_as_one_rank(model, plan);
      }
    }
  }
}

// Exchanges of parts of tokens under the products, passes of their own for gradients of weights,
// beside context ranks.
TEST(ParallelBranches, TrainAsOneRankInRings) {
  for (const Model& model : models()) {
    for (const std::int64_t tensor : {2, 4}) {
      for (const bool again : {false, true}) {
        Plan plan = plan_for(model, {tensor, again ? 2 : 1, 1, again ? 1 : 2}, true);
        plan.overlap.tensor = true;
        plan.recompute.layer = again;
        plan.schedule = again ? Schedule::kZbH1 : Schedule::k1F1B;
        plan.dropout = 0.1;
        if (!again) plan.context = 2;
        plan.global_batch = plan.batch_ranks() * 4;
        expect_as_one_rank(model, plan);
      }
    }
  }
}

TEST(ParallelBranches, TrainAsOneRankWithWeightPasses) {
  for (const Model& model : models()) {
    for (const bool sequence : {false, true}) {
      for (const Schedule schedule : {Schedule::kZbH1, Schedule::kDualPipe}) {
        Plan plan = plan_for(model, {2, 2, 1, 2}, sequence);
        plan.schedule = model.tied_embeddings ? Schedule::kZbH1 : schedule;
        plan.sharding = Sharding::kOptimizer;
        plan.bucket_elements = 500;
        expect_as_one_rank(model, plan);
      }
    }
  }
}

// Slices that take turns, and parts of a layer one after the other.
TEST(ParallelBranches, TrainAsOneRankInSlicesAndParts) {
  for (const Model& model : models()) {
    for (const bool again : {false, true}) {
      Plan plan = plan_for(model, {2, 1, 1, 1}, false);
      plan.micro_batch = 2;
      plan.global_batch = 4;
      plan.overlap.tensor_slices = 2;
      plan.recompute.layer = again;
      plan.dropout = 0.1;
      expect_as_one_rank(model, plan);
      plan.overlap.tensor_slices = 1;
      plan.recompute.parts = 2;
      for (const bool norm : {false, true}) {
        plan.recompute.norm = norm;
        for (const bool sequence : {false, true}) {
          plan.sequence = sequence;
          expect_as_one_rank(model, plan);
        }
      }
    }
  }
}

// Where each branch is reduced alone: grids, experts.
TEST(ParallelBranches, TrainAsOneRankApart) {
  for (const Model& model : models()) {
    for (const bool again : {false, true}) {
      Plan plan = plan_for(model, {4, 1, 1, 1}, false);
      plan.tensor_mode = TensorMode::k2D;
      plan.micro_batch = 2;
      plan.global_batch = 4;
      plan.recompute.layer = again;
      plan.dropout = 0.1;
      expect_as_one_rank(model, plan);
    }
  }
  Model model = narrowed(small_moe(), 2);
  model.experts = Experts{8, 2, 8, 8, 1, 1, false};
  model.parallel_residual = true;
  for (const bool shared : {false, true}) {
    model.shared_norm = shared;
    for (const bool again : {false, true}) {
      Plan plan = plan_for(model, {2, 1, 1, 1}, true);
      plan.sequence_length = 16;
      plan.recompute.layer = again;
      plan.experts = ExpertPlan{2, 1, Dispatcher::kAllToAll, Routing::kBalanced, 1};
      expect_as_one_rank(model, plan);
    }
  }
}

}  // namespace
}  // namespace foretrain
