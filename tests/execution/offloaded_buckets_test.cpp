// Do plans whose states lie in buckets and are updated on the host, and layers whose activations go
// to storage, train as one rank that offloads nothing?
#include <gtest/gtest.h>

#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

Plan on_host(const Model& model, const PlanDegrees& degrees, std::int64_t microbatches) {
  Plan plan = small_plan(model, degrees, microbatches);
  plan.sequence_length = 8;
  plan.sequence = plan.tensor > 1;
  plan.sharding = Sharding::kOptimizer;
  plan.bucket_elements = 3000;
  plan.clip_norm = 0.3;
  plan.offload.optimizer = Memory::kHost;
  return plan;
}

// A sharded optimizer: buckets beside the backward pass or all at the end, weights gathered after
// the update or beside the next forward pass, states in memory or in files; tables tied or not.
TEST(OffloadedBuckets, TrainAsOneRank) {
  for (const PlanDegrees& degrees :
       {PlanDegrees{1, 1, 1, 4}, PlanDegrees{2, 1, 1, 2}, PlanDegrees{1, 2, 1, 2}}) {
    for (int choice = 0; choice < 16; ++choice) {
      const auto bit = [choice](int n) { return (choice >> n & 1) != 0; };
      Model model = narrowed(small_llama(), 4);
      model.tied_embeddings = bit(0);
      Plan plan = on_host(model, degrees, 2);
      plan.overlap.gradient_reduce = bit(1);
      plan.overlap.parameter_gather = bit(2);
      if (bit(3)) plan.offload.optimizer = Memory::kStorage;
      plan.reduction = static_cast<GradientReduction>(choice % 3);
      plan.precision.master = bit(2);
      expect_as_one_rank(model, in_fp32(plan));
    }
  }
}

// Groups of shards with replicas, sums after every pass, gradients of weights in passes of their
// own, two pipelines over the same stages.
TEST(OffloadedBuckets, TrainInOtherPlansAsOneRank) {
  const Model model = narrowed(small_llama(), 4);
  Plan grouped = on_host(model, {1, 1, 1, 4}, 2);
  grouped.shard_group = 2;
  Plan after = on_host(model, {1, 2, 1, 2}, 4);
  after.sums_after_pass = true;
  Plan split = on_host(model, {1, 2, 1, 2}, 4);
  split.schedule = Schedule::kZbH1;
  for (const Plan& plan : {grouped, after, split}) expect_as_one_rank(model, in_fp32(plan));
}

// One data rank without sharding (ZeRO-Offload on one device), cut over tensor ranks and stages.
TEST(OffloadedBuckets, OfOneDataRankTrainAsOneRank) {
  for (const PlanDegrees& degrees :
       {PlanDegrees{1, 1, 1, 1}, PlanDegrees{2, 1, 1, 1}, PlanDegrees{1, 2, 1, 1}}) {
    for (const bool tied : {false, true}) {
      Model model = narrowed(small_gpt(), 4);
      model.tied_embeddings = tied;
      Plan plan = on_host(model, degrees, 2);
      plan.sharding = Sharding::kNone;
      plan.overlap.gradient_reduce = tied;
      expect_as_one_rank(model, in_fp32(plan));
    }
  }
}

// Contiguous buckets: the sums of all microbatches, or pass by pass, which the host adds up.
TEST(OffloadedBuckets, ContiguousTrainAsOneRank) {
  for (int choice = 0; choice < 16; ++choice) {
    const auto bit = [choice](int n) { return (choice >> n & 1) != 0; };
    Model model = narrowed(small_llama(), 4);
    model.tied_embeddings = bit(0);
    Plan plan = on_host(model, {bit(1) ? 2 : 1, 1, 1, bit(1) ? 2 : 3}, bit(2) ? 3 : 1);
    plan.sharding = bit(3) ? Sharding::kGradients : Sharding::kOptimizer;
    plan.overlap.gradient_reduce = bit(0);
    plan.buckets.cut = Bucketing::kContiguous;
    plan.bucket_elements = bit(2) ? 700 : 1;
    if (bit(1)) plan.offload.optimizer = Memory::kStorage;
    expect_as_one_rank(model, in_fp32(plan));
  }
}

// What layers keep goes on to storage and comes back, in one chunk and in several.
TEST(StoredActivations, TrainAsOneRank) {
  for (const PlanDegrees& degrees :
       {PlanDegrees{1, 1, 1, 1}, PlanDegrees{1, 2, 1, 2}, PlanDegrees{2, 2, 2, 1}}) {
    for (const std::int64_t layers : {1, 3, 8}) {
      const Model model = narrowed(small_llama(), 8);
      Plan plan = small_plan(model, degrees, 4);
      plan.sequence_length = 8;
      plan.recompute.layer = layers == 3;
      plan.offload.activation_layers = layers;
      plan.offload.activations = Memory::kStorage;
      expect_as_one_rank(model, in_fp32(plan));
    }
  }
}

}  // namespace
}  // namespace foretrain
