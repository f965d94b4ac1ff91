// Do forward passes whose output comes back train on stages as on one rank?
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

// The embedding is added in every pass: look-ups on tensor ranks, positions, dropout, a tied table,
// tokens that are scattered.
TEST(Recycling, TrainsAsOneRank) {
  for (Model model : {narrowed(small_gpt(), 4), narrowed(small_llama(), 4)}) {
    model.positions = std::min<std::int64_t>(model.positions, 8);
    for (const PlanDegrees degrees :
         {PlanDegrees{1, 1, 1, 2}, PlanDegrees{1, 2, 1, 1}, PlanDegrees{1, 4, 1, 2},
          PlanDegrees{2, 2, 1, 1}, PlanDegrees{2, 1, 1, 2}}) {
      for (const std::int64_t forwards : {2, 3}) {
        for (const std::int64_t microbatches : {1, 5}) {
          model.tied_embeddings = forwards == 2;
          Plan plan = small_plan(model, degrees, microbatches);
          plan.schedule = Schedule::k3F1B;
          plan.forwards = forwards;
          plan.sequence_length = 8;
          plan.sequence = degrees.tensor > 1 && forwards == 3;
          plan.sharding = forwards == 2 ? Sharding::kOptimizer : Sharding::kNone;
          plan.overlap.pipeline = microbatches == 5;
          plan.overlap.gradient_reduce = plan.overlap.parameter_gather = true;
          plan.bucket_elements = 500;
          plan.dropout = 0.1;
          plan.recompute.layer = microbatches == 1;
          expect_as_one_rank(model, in_fp32(plan));
        }
      }
    }
  }
}

Trained trained(const Model& model, const Plan& plan) {
  const Result<Trained> out = train<double>(model, plan);
  EXPECT_TRUE(out.ok()) << out.error().message;
  return out.ok() ? out.value() : Trained();
}

// One pass is plain training; more of them start from another loss.
TEST(Recycling, OnePassIsPlain) {
  const Model model = narrowed(small_llama(), 2);
  Plan plan = in_fp32(small_plan(model, {1, 2, 1, 1}, 3));
  plan.sequence_length = 8;
  const Trained plain = trained(model, plan);
  plan.schedule = Schedule::k3F1B;
  const Trained once = trained(model, plan);
  expect_same(plain, once, 1e-12);
  plan.forwards = 2;
  const Trained twice = trained(model, plan);
  EXPECT_GT(std::abs(twice.losses.front() - plain.losses.front()), 1e-6);
}

}  // namespace
}  // namespace foretrain
