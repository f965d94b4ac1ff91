// Passes of their own for gradients of weights, beside sharded gradients and parameters.
#include <gtest/gtest.h>

#include <algorithm>

#include "models/lower.h"
#include "sim/program/memory.h"
#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

// Several microbatches' gradients wait at once, each in arrays of its own or in the sum.
TEST(WeightPassesOfUnits, TrainAsOneRank) {
  for (const Schedule schedule : {Schedule::kZbH1, Schedule::kZbH2, Schedule::kZbV,
                                  Schedule::kZbAuto, Schedule::kDualPipeV}) {
    for (const Sharding sharding : {Sharding::kGradients, Sharding::kParameters}) {
      for (const bool each : {false, true}) {
        const bool v = schedule == Schedule::kZbV || schedule == Schedule::kDualPipeV;
        Model model = narrowed(small_llama(), 4);
        model.tied_embeddings = !v && each;
        Plan plan = small_plan(model, {each ? 1 : 2, 2, v ? 2 : 1, 2}, 5);
        plan.schedule = schedule;
        plan.sequence_length = 8;
        plan.sequence = plan.tensor > 1;
        plan.sharding = sharding;
        plan.units.reduce = DType::kFp32;
        plan.units.reduce_each = each;
        plan.units.layers = v ? 1 : 2;
        plan.units.persist_elements = each ? 0 : 8;
        plan.recompute.layer = each;
        plan.clip_norm = 0.3;
        expect_as_one_rank(model, in_fp32(plan));
      }
    }
  }
}

TEST(WeightPassesOfUnits, TrainExpertsAsOneRank) {
  Model model = narrowed(small_moe(), 2);
  model.experts = Experts{8, 2, 8, 8, 1, 1, false};
  model.tied_embeddings = false;
  for (const bool each : {false, true}) {
    Plan plan = small_plan(model, {1, 2, 1, 2}, 3);
    plan.schedule = Schedule::kZbH1;
    plan.sequence_length = 16;
    plan.experts.expert = 2;
    plan.sharding = Sharding::kParameters;
    plan.units.reduce = DType::kFp32;
    plan.units.reduce_each = each;
    expect_as_one_rank(model, in_fp32(plan));
  }
}

// A pass for weights reads no parameters: those of a layer are let go before it, as in 1f1b.
TEST(WeightPassesOfUnits, HoldNoParameters) {
  const Model model = small_llama();
  const auto gathers = [&model](Schedule schedule) {
    Plan plan = small_plan(model, {1, 2, 1, 8}, 4);
    plan.schedule = schedule;
    plan.sharding = Sharding::kParameters;
    plan.units.reshard = true;
    const Workload workload = lower(model, plan);
    Bytes most = 0, live = 0;
    for (const MemoryChange& change : memory_changes(workload.programs[0])) {
      if (change.kind != BufferKind::kParameters) continue;
      live += change.bytes;
      most = std::max(most, live);
    }
    return most;
  };
  EXPECT_EQ(gathers(Schedule::kZbH1), gathers(Schedule::k1F1B));
}

}  // namespace
}  // namespace foretrain
