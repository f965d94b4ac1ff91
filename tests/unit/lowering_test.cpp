// Does every combination of schedule, parallelism and switches lower to a sound Workload that runs?
#include <gtest/gtest.h>

#include "models/lower.h"
#include "sim/program/verify.h"
#include "tests/support/recording.h"
#include "tests/support/small_plans.h"
#include "tests/support/test_prices.h"

namespace foretrain {
namespace {

void expect_sound(const Model& model, const Plan& plan) {
  SCOPED_TRACE(describe(model, plan));
  const Workload workload = lower(model, plan);
  const Status status = verify(workload);
  ASSERT_TRUE(status.ok()) << status.error().message;
  TestPrices folded_prices(plain_rates());
  const Result<Replayed> folded = replay_all(workload, folded_prices, false);
  ASSERT_TRUE(folded.ok()) << folded.error().message;
  TestPrices full_prices(plain_rates());
  const Result<Replayed> full = replay_all(workload, full_prices, true);
  ASSERT_TRUE(full.ok()) << full.error().message;
  EXPECT_EQ(folded.value().replay.end.ps, full.value().replay.end.ps);
  EXPECT_GT(full.value().replay.end.ps, 0);
}

/// One stage, gpipe, 1f1b and interleaved-1f1b; with whole and sharded optimizer states.
void expect_sound_in_every_schedule(const Model& model, std::int64_t tensor, std::int64_t data,
                                    bool sequence) {
  for (int kind = 0; kind < 4; ++kind) {
    const PlanDegrees degrees{tensor, kind == 0 ? 1 : 2, kind == 3 ? 2 : 1, data};
    Plan plan = small_plan(model, degrees, 4);
    plan.sequence = sequence;
    if (kind == 1) plan.schedule = Schedule::kGpipe;
    expect_sound(model, plan);
    plan.sharding = Sharding::kOptimizer;
    plan.bucket_elements = 100'000;
    expect_sound(model, plan);
  }
}

// 8 layers of small_gpt: a step that is no longer looked at pass by pass.
TEST(Lowering, HasAnEnd) {
  const Model model = small_gpt();
  EXPECT_TRUE(lowerable(model, small_plan(model, PlanDegrees(), 125'000)).ok());
  const Status status = lowerable(model, small_plan(model, PlanDegrees(), 125'001));
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("/batch/global"), std::string::npos);
}

TEST(Lowering, EveryScheduleAndDegree) {
  for (const Model& model : {small_gpt(), small_llama()}) {
    for (const std::int64_t tensor : {1, 2, 4}) {
      for (const std::int64_t data : {1, 2, 4}) {
        expect_sound_in_every_schedule(model, tensor, data, false);
        if (tensor > 1) expect_sound_in_every_schedule(model, tensor, data, true);
      }
    }
  }
}

TEST(Lowering, EverySwitch) {
  for (int bits = 0; bits < 1 << 10; ++bits) {
    const auto bit = [bits](int i) { return (bits >> i & 1) != 0; };
    if (bits % 7 != 0 && (bits & (bits - 1)) != 0) continue;  // single switches, and a seventh
    Model model = bit(9) ? small_gpt() : small_llama();
    model.tied_embeddings = bit(8);
    Plan plan = small_plan(model, {2, 2, 1, 2}, 3);
    plan.sequence = bit(7);
    plan.sharding = bit(6) ? Sharding::kOptimizer : Sharding::kNone;
    plan.overlap = Overlap{bit(5), bit(4), bit(3), bit(2), bit(1)};
    plan.attention = bit(0) ? AttentionKernel::kUnfused : AttentionKernel::kFlash;
    plan.dropout = bit(9) != bit(0) ? 0.1 : 0;
    plan.bucket_elements = bit(3) ? 50'000 : 0;
    expect_sound(model, plan);
  }
}

TEST(Lowering, EveryRecomputation) {
  for (int bits = 0; bits < 1 << 6; ++bits) {
    const auto bit = [bits](int i) { return (bits >> i & 1) != 0; };
    for (const bool sequence : {false, true}) {
      const Model model = bit(5) ? small_gpt() : small_llama();
      Plan plan = small_plan(model, {2, 2, 1, 1}, 2);
      plan.sequence = sequence;
      plan.recompute.layer = bit(0);
      plan.recompute.attention = bit(1);
      plan.recompute.norm = bit(2);
      plan.recompute.mlp = bit(3);
      plan.recompute.activation = bit(4);
      plan.dropout = bit(5) ? 0.1 : 0;
      plan.recompute.layer_period = bit(3) ? 2 : 1;
      plan.recompute.layers = bit(4) ? 3 : -1;
      expect_sound(model, plan);
    }
  }
}

TEST(Lowering, EmptyChunks) {
  for (const bool tied : {false, true}) {
    for (const bool sharded : {false, true}) {
      Model model = small_gpt();
      model.tied_embeddings = tied;
      Plan plan = small_plan(model, {2, 4, 1, 2}, 4);
      plan.sharding = sharded ? Sharding::kOptimizer : Sharding::kNone;
      plan.pipeline_layout = {0, 4, 4, 0};
      expect_sound(model, plan);
      plan = small_plan(model, {1, 2, 2, 2}, 4);
      plan.sharding = sharded ? Sharding::kOptimizer : Sharding::kNone;
      plan.pipeline_layout = {0, 4, 4, 0};
      expect_sound(model, plan);
    }
  }
}

}  // namespace
}  // namespace foretrain
