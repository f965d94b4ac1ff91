// Do blocks of layers that are computed again keep, compute and wait for what they should?
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "models/lower.h"
#include "sim/program/memory.h"
#include "sim/program/verify.h"
#include "tests/support/pass_prices.h"
#include "tests/support/recording.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

using Ps = std::int64_t;

Workload blocks_workload(const Model& model, const Plan& plan) {
  Workload workload = lower(model, plan);
  const Status status = verify(workload);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return workload;
}

Plan in_blocks(const Model& model, PlanDegrees degrees, std::int64_t microbatches,
               std::int64_t layers, bool early = false) {
  Plan plan = small_plan(model, degrees, microbatches);
  plan.recompute.layer = true;
  plan.recompute.block_layers = layers;
  plan.recompute.early = early;
  return plan;
}

std::map<Phase, double> flops_of_phases(const Workload& workload) {
  std::map<Phase, double> out;
  const Program& program = workload.programs[0];
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      out[op.phase] += flops_of(program.works[op.work.index()]);
    }
  }
  return out;
}

// What is computed again does not depend on how many layers are together.
TEST(RecomputeBlocks, Flops) {
  for (const Model& model : {small_gpt(), small_llama()}) {
    const auto alone = flops_of_phases(blocks_workload(model, in_blocks(model, {}, 3, 1)));
    EXPECT_GT(alone.at(Phase::kRecompute), 0);
    for (const std::int64_t layers : {0, 2, 3, 100}) {
      for (const bool early : {false, true}) {
        const Plan plan = in_blocks(model, {}, 3, layers, early);
        EXPECT_EQ(flops_of_phases(blocks_workload(model, plan)), alone) << layers;
      }
    }
  }
}

// When the first layer goes back, n layers hold what they keep and n - 1 streams between them; L/n
// inputs of blocks were kept. Embedding, head and what a layer has for itself are as they were.
TEST(RecomputeBlocks, Memory) {
  Model model = small_llama();
  model.layers = 12;
  model.vocabulary = 128;
  Plan plain = small_plan(model, {}, 1);
  const Workload whole = blocks_workload(model, plain);
  Bytes kept = 0;
  for (const FrameLayout& layout : whole.programs[0].layouts) {
    if (layout.name != "saved") continue;
    for (const Buffer& buffer : layout.buffers) kept += buffer.bytes();
  }
  ASSERT_GT(kept, 0);
  const Bytes stream = 2 * plain.tokens() * model.hidden;
  const auto peak = [&](std::int64_t n) {
    return memory_peak(blocks_workload(model, in_blocks(model, {}, 1, n)).programs[0]).bytes;
  };
  const Bytes two = peak(2);
  for (const std::int64_t n : {3, 4, 6, 12}) {
    EXPECT_EQ(peak(n) - two, (n - 2) * (kept + stream) + (12 / n - 6) * stream) << n;
  }
  EXPECT_EQ(peak(0), peak(12));
  EXPECT_LT(two, memory_peak(whole.programs[0]).bytes);
}

// With F, as long again, and B a stage: waiting for the gradient
//   (m + p - 1) (F + R + B),
// and without it, of the way up to the first stage but the first stage's own R
//   (m + p - 1) F + m (R + B) + (p - 1) B.
TEST(RecomputeBlocks, EarlyHidesTheWayUp) {
  const Ps f = 2 * 4'000'000, b = 2 * 7'000'000;
  for (const std::int64_t p : {2, 3, 5}) {
    Model model = pass_model();
    model.layers = 2 * p;
    for (const std::int64_t m : {p, 3 * p}) {
      for (const bool early : {false, true}) {
        Plan plan = in_blocks(model, {1, p, 1, 1}, m, 0, early);
        plan.schedule = Schedule::kGpipe;
        PassPrices prices({Time{f / 2}, Time{b / 2}, Time{}, Time{}});
        const Result<Replayed> result = replay_all(blocks_workload(model, plan), prices, true);
        ASSERT_TRUE(result.ok()) << result.error().message;
        const Ps waiting = (m + p - 1) * (f + f + b);
        const Ps expected = early ? waiting - (p - 1) * f : waiting;
        EXPECT_EQ(result.value().replay.end.ps, expected) << p << " " << m << " " << early;
      }
    }
  }
}

// Nor does a stage lose by it, whatever the order of its passes.
TEST(RecomputeBlocks, EarlyIsNeverSlower) {
  Model model = pass_model();
  model.layers = 8;
  for (const Schedule schedule :
       {Schedule::kGpipe, Schedule::k1F1B, Schedule::kInterleaved, Schedule::kZbH1}) {
    for (const std::int64_t layers : {0, 1, 2}) {
      Time step[2];
      for (const bool early : {false, true}) {
        const std::int64_t chunks = schedule == Schedule::kInterleaved ? 2 : 1;
        Plan plan = in_blocks(model, {1, 4, chunks, 1}, 8, layers, early);
        plan.schedule = schedule;
        PassPrices prices({Time{4'000'000}, Time{5'000'000}, Time{3'000'000}, Time{500'000}});
        const Result<Replayed> result = replay_all(blocks_workload(model, plan), prices, true);
        ASSERT_TRUE(result.ok()) << result.error().message;
        step[early ? 1 : 0] = result.value().replay.end;
      }
      EXPECT_LE(step[1], step[0]) << static_cast<int>(schedule) << " " << layers;
    }
  }
}

// The last layer of a block ends at the last product that a gradient reads, the others whole.
TEST(RecomputeBlocks, EarlyStop) {
  Plan plan = in_blocks(small_llama(), {}, 1, 2);
  const auto products = [&plan](const char* name) {
    const Program program = blocks_workload(small_llama(), plan).programs[0];
    std::int64_t count = 0;
    for (const Call& call : program.calls) {
      for (const Op& op : program.segments[call.segment.index()].ops) {
        count += op.phase == Phase::kRecompute && op.name == name ? 1 : 0;
      }
    }
    return count;
  };
  const std::int64_t layers = small_llama().layers;
  EXPECT_EQ(products("mlp.down"), layers);
  plan.recompute.early_stop = true;
  EXPECT_EQ(products("mlp.down"), layers - (layers + 1) / 2);
  EXPECT_EQ(products("mlp.up"), layers);
}

}  // namespace
}  // namespace foretrain
