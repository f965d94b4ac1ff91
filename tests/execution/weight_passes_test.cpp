// Passes of their own for gradients of weights, beside sharded gradients and parameters, and
// activations on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

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

// Parameters stay for all microbatches of a chunk, gathered once forward and once backward.
TEST(BreadthFirst, TrainsAsOneRank) {
  for (const bool experts : {false, true}) {
    for (const bool each : {false, true}) {
      Model model = narrowed(experts ? small_moe() : small_llama(), 4);
      if (experts) model.experts = Experts{8, 2, 8, 8, 1, 1, false};
      model.tied_embeddings = !experts && each;
      Plan plan = small_plan(model, {1, 2, 2, 2}, 3);
      plan.schedule = Schedule::kBreadthFirst;
      plan.sequence_length = 16;
      plan.experts.expert = experts ? 2 : 1;
      plan.sharding = Sharding::kParameters;
      plan.units.reduce = DType::kFp32;
      plan.units.reduce_each = each;
      plan.units.forward_prefetch = each;
      plan.units.copies_out = !each;
      plan.recompute.layer = each;
      expect_as_one_rank(model, in_fp32(plan));
    }
  }
}

// What the host keeps comes back for the gradients of inputs and is there for those of weights.
TEST(WeightPasses, TrainWithActivationsOnTheHost) {
  for (const Schedule schedule : {Schedule::kZbH1, Schedule::kZbH2, Schedule::kZbV,
                                  Schedule::kZbAuto, Schedule::kDualPipeV}) {
    for (const Sharding sharding : {Sharding::kNone, Sharding::kParameters}) {
      const bool v = schedule == Schedule::kZbV || schedule == Schedule::kDualPipeV;
      const Model model = narrowed(small_llama(), 4);
      Plan plan = small_plan(model, {1, 2, v ? 2 : 1, 2}, 5);
      plan.schedule = schedule;
      plan.sequence_length = 8;
      plan.sharding = sharding;
      plan.units.reduce = DType::kFp32;
      plan.recompute.layer = v;
      plan.offload.activation_layers = v ? 1 : 2;
      expect_as_one_rank(model, in_fp32(plan));
    }
  }
}

// Blocks of a backward pass come between those of the forward pass that it hides.
TEST(WeightPasses, TrainExpertsWithActivationsOnTheHost) {
  Model model = narrowed(small_moe(), 4);
  model.experts = Experts{8, 2, 8, 8, 1, 1, false};
  model.tied_embeddings = false;
  for (const Sharding sharding : {Sharding::kNone, Sharding::kGradients}) {
    Plan plan = small_plan(model, {1, 2, 2, 2}, 5);
    plan.schedule = Schedule::kDualPipeV;
    plan.sequence_length = 16;
    plan.experts.expert = 2;
    plan.sharding = sharding;
    plan.units.reduce = DType::kFp32;
    plan.offload.activation_layers = 4;
    expect_as_one_rank(model, in_fp32(plan));
  }
}

// Each microbatch is copied out and back once, however its backward pass is divided.
TEST(WeightPasses, CopyWhatIsOnTheHostOnce) {
  const Model model = small_llama();
  const auto copied = [&model](Schedule schedule, std::int64_t layers) {
    Plan plan = small_plan(model, {1, 2, 1, 1}, 4);
    plan.schedule = schedule;
    plan.offload.activation_layers = layers;
    std::map<std::string, std::int64_t> counts;
    for (const Program& program : lower(model, plan).programs) {
      for (const Call& call : program.calls) ++counts[program.segments[call.segment.index()].name];
    }
    return std::pair(counts["keep on the host"], counts["load from the host"]);
  };
  EXPECT_EQ(copied(Schedule::kZbH1, 0), std::pair(0L, 0L));
  EXPECT_GT(copied(Schedule::kZbH1, 1).first, 0);
  EXPECT_EQ(copied(Schedule::kZbH1, 1), copied(Schedule::k1F1B, 1));
  EXPECT_EQ(copied(Schedule::kZbH1, 1).first, copied(Schedule::kZbH1, 1).second);
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
