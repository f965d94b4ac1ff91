// Do gradients that travel in contiguous buckets, to their owners, or as a coordinator lists them,
// and messages that tensor ranks share among each other, train as those of one rank?
#include <gtest/gtest.h>

#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

// Gradients copied into contiguous buckets: of the sums of all microbatches, or pass by pass;
// reduced by compute or beside it, to everybody or in parts; tables tied or not.
TEST(ContiguousBuckets, TrainAsOneRank) {
  for (const Model& shape : {narrowed(small_gpt(), 4), narrowed(small_llama(), 4)}) {
    for (int choice = 0; choice < 32; ++choice) {
      const auto bit = [choice](int n) { return (choice >> n & 1) != 0; };
      Model model = shape;
      model.positions = model.positions > 0 ? 8 : 0;
      model.tied_embeddings = bit(0);
      Plan plan = small_plan(model, {bit(1) ? 2 : 1, 1, 1, bit(1) ? 2 : 3}, bit(2) ? 3 : 1);
      plan.sequence_length = 8;
      plan.sequence = bit(1);
      plan.sharding = bit(3) ? Sharding::kGradients : Sharding::kOptimizer;
      plan.overlap.gradient_reduce = bit(4);
      plan.overlap.parameter_gather = bit(2);
      plan.reduction = static_cast<GradientReduction>(choice % 3);
      plan.buckets.cut = Bucketing::kContiguous;
      plan.bucket_elements = bit(2) ? 700 : 1;
      plan.clip_norm = 0.3;
      expect_as_one_rank(model, in_fp32(plan));
    }
  }
}

// Gradients reduced to the ranks that own them, parameters broadcast by these: in buckets and in
// units, in groups with replicas too.
TEST(Owners, TrainAsOneRank) {
  for (const Model& shape : {narrowed(small_gpt(), 4), narrowed(small_llama(), 4)}) {
    for (int choice = 0; choice < 16; ++choice) {
      const auto bit = [choice](int n) { return (choice >> n & 1) != 0; };
      Model model = shape;
      model.positions = model.positions > 0 ? 8 : 0;
      Plan plan = small_plan(model, {1, 1, 1, 4}, 2);
      plan.sequence_length = 8;
      plan.sharding = bit(0) ? Sharding::kGradients : Sharding::kOptimizer;
      plan.reduction = GradientReduction::kReduce;
      plan.shard_group = bit(1) ? 2 : 0;
      plan.overlap.gradient_reduce = plan.overlap.parameter_gather = bit(2);
      plan.units.reduce_each = bit(3);
      plan.bucket_elements = 3000;
      plan.clip_norm = 0.3;
      expect_as_one_rank(model, in_fp32(plan));
    }
  }
}

// What a coordinator's cycles list, in fewer reductions than layers and cut by the fusion buffer.
TEST(ReadyLists, TrainAsOneRank) {
  for (const bool tied : {false, true}) {
    for (const Bytes most : {Bytes{1} << 20, Bytes{9000}}) {
      Model model = narrowed(small_llama(), 4);
      model.tied_embeddings = tied;
      Plan plan = small_plan(model, {1, 1, 1, 2}, 2);
      plan.sequence_length = 8;
      plan.overlap.gradient_reduce = true;
      plan.buckets.cut = Bucketing::kReady;
      plan.buckets.copy = true;
      plan.buckets.bytes = plan.buckets.first_bytes = most;
      plan.buckets.cycle = Time::from_us(100);
      plan.buckets.lists = {{2, Time::from_us(10)}, {3, Time::from_us(20)}};
      expect_as_one_rank(model, in_fp32(plan));
    }
  }
}

// Stages that send a part from each tensor rank: kept outputs, receives ahead and in turn.
TEST(ScatterGather, TrainsAsOneRank) {
  for (const Model& shape : {narrowed(small_gpt(), 4), narrowed(small_llama(), 4)}) {
    for (int choice = 0; choice < 8; ++choice) {
      const auto bit = [choice](int n) { return (choice >> n & 1) != 0; };
      Model model = shape;
      model.positions = model.positions > 0 ? 8 : 0;
      Plan plan = small_plan(model, {bit(2) ? 4 : 2, 2, bit(0) && bit(1) ? 2 : 1, 1}, 4);
      plan.sequence_length = 8;
      plan.scatter_gather = true;
      plan.retain_outputs = bit(0);
      plan.overlap.pipeline = bit(1);
      plan.host_waits = bit(2) ? HostWaits::kPasses : HostWaits::kNone;
      plan.recompute.layer = bit(1);
      plan.clip_norm = 0.3;
      expect_as_one_rank(model, in_fp32(plan));
    }
  }
}

// Passes that come back, begin together, or leave the vocabulary to all stages.
TEST(ScatterGather, TrainsAsOneRankUnderOtherSchedules) {
  Model model = narrowed(small_llama(), 4);
  model.tied_embeddings = false;
  for (const Schedule schedule :
       {Schedule::k1F1B, Schedule::k3F1B, Schedule::kDualPipe, Schedule::kDualPipeV,
        Schedule::kChimera, Schedule::kSharedVocabulary, Schedule::kVocabulary1,
        Schedule::kVocabulary2}) {
    for (const bool keeps : {false, true}) {
      const bool v = schedule == Schedule::kDualPipeV;
      Plan plan = small_plan(model, {2, 2, v ? 2 : 1, 1}, 4);
      plan.schedule = schedule;
      plan.forwards = schedule == Schedule::k3F1B ? 2 : 1;
      plan.sequence_length = 8;
      plan.scatter_gather = true;
      plan.retain_outputs = keeps;
      plan.overlap.pipeline = !keeps;
      plan.overlap.passes = schedule == Schedule::k1F1B;
      expect_as_one_rank(model, in_fp32(plan));
    }
  }
}

}  // namespace
}  // namespace foretrain
