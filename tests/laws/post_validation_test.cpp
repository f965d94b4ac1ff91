// Does a step without a wait for the norm of all gradients take what its stages work?
#include <gtest/gtest.h>

#include "models/lower.h"
#include "sim/engine/step_ends.h"
#include "sim/program/repeat.h"
#include "sim/program/verify.h"
#include "tests/support/pass_prices.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

/// Of the last of `steps` steps.
Time step_of(const Model& model, const Plan& plan, PassDurations durations, std::int32_t steps) {
  PassPrices prices(durations);
  const Workload workload = lower(model, plan);
  const Status status = verify(workload);
  EXPECT_TRUE(status.ok()) << status.error().message;
  const Workload several = repeated(workload, steps);
  const Result<Prepared> prepared = prepare(several, prices, true);
  EXPECT_TRUE(prepared.ok()) << prepared.error().message;
  const Result<Time> out = step_time(several, prepared.value(), steps);
  EXPECT_TRUE(out.ok()) << out.error().message;
  return out.ok() ? out.value() : Time();
}

PassDurations lasting(std::int64_t f, std::int64_t b, std::int64_t w) {
  return {Time{f * 4'000'000}, Time{b * 4'000'000}, Time{w * 4'000'000}, Time{}};
}

Plan plan_of(const Model& model, Schedule schedule, std::int64_t p, std::int64_t m) {
  Plan plan = small_plan(model, {1, p, 1, 1}, m);
  plan.schedule = schedule;
  plan.pipeline_layout = default_layout(model.layers, p);
  return plan;
}

// zb-h2 with equal passes: a stage works m (F + B + W) without a pause, and begins F after the one
// before it. That the last one ends (p - 1) F later counts once all wait for each other.
TEST(PostValidation, LeavesWhatAStageWorks) {
  const Model model = pass_model();
  const PassDurations d = lasting(1, 1, 1);
  for (const std::int64_t p : {2, 4, 8}) {
    const std::int64_t m = 2 * p + 3;
    const std::int64_t layers = model.layers / p;
    Plan plan = plan_of(model, Schedule::kZbH2, p, m);
    const std::int64_t work =
        m * layers * (d.forward.ps + d.input_gradients.ps + d.weight_gradients.ps);
    EXPECT_EQ(step_of(model, plan, d, 1).ps, work + (p - 1) * layers * d.forward.ps);
    EXPECT_EQ(step_of(model, plan, d, 3).ps, work + (p - 1) * layers * d.forward.ps);
    plan.overlap.post_validation = true;
    EXPECT_EQ(step_of(model, plan, d, 3).ps, work);
  }
}

// What the common start of all ranks does to a step is over with the third.
TEST(PostValidation, StepsAreAlikeFromTheThirdOn) {
  const Model model = pass_model();
  for (const Schedule schedule : {Schedule::k1F1B, Schedule::kZbH1, Schedule::kZbH2}) {
    for (const auto& [f, b, w] : {std::array{1, 1, 1}, std::array{2, 3, 1}, std::array{3, 4, 5}}) {
      Plan plan = plan_of(model, schedule, 4, 9);
      const PassDurations d = lasting(f, b, w);
      const Time with_wait = step_of(model, plan, d, 3);
      plan.overlap.post_validation = true;
      const Time third = step_of(model, plan, d, 3);
      EXPECT_EQ(third, step_of(model, plan, d, 4));
      EXPECT_EQ(third, step_of(model, plan, d, 6));
      EXPECT_LE(third, with_wait);
    }
  }
}

// Chunks by turns: the state comes back up within the warm-up, which is that of all chunks, so that
// no stage waits for it.
TEST(PostValidation, NoStageWaitsInInterleavedWarmUps) {
  const Model model = pass_model();
  for (const std::int64_t p : {2, 4}) {
    for (const std::int64_t v : {2, 4}) {
      Plan plan = small_plan(model, {1, p, 1, 1}, 4 * p);
      plan.schedule = Schedule::kInterleaved;
      plan.virtual_pipeline = v;
      plan.pipeline_layout = default_layout(model.layers, p * v);
      const PassDurations d = lasting(1, 2, 1);
      const Time with_wait = step_of(model, plan, d, 3);
      plan.overlap.post_validation = true;
      EXPECT_LE(step_of(model, plan, d, 3), with_wait) << p << " x " << v;
    }
  }
}

std::int64_t count(const Program& program, const std::string& name) {
  std::int64_t out = 0;
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) out += op.name == name ? 1 : 0;
  }
  return out;
}

// One number a stage down at the end and up in the warm-up, two in fp16 down; what tensor and data
// ranks of a stage hold is summed there first; nothing is scaled.
TEST(PostValidation, HandsOneNumberOn) {
  const Model model = small_gpt();
  for (const bool unscales : {false, true}) {
    for (const std::int64_t tensor : {1, 2}) {
      Plan plan = small_plan(model, {tensor, 4, 1, 2}, 8);
      plan.sharding = Sharding::kOptimizer;
      plan.overlap.post_validation = true;
      plan.unscales = unscales;
      const Workload workload = lower(model, plan);
      const Status status = verify(workload);
      ASSERT_TRUE(status.ok()) << status.error().message;
      for (std::int64_t s = 0; s < 4; ++s) {
        const Program& program = workload.programs[static_cast<std::size_t>(s)];
        EXPECT_EQ(count(program, "gradients.norm.reduce"), 1);
        EXPECT_EQ(count(program, "gradients.norm.reduce.receive"), s > 0);
        EXPECT_EQ(count(program, "gradients.norm.reduce.send"), s < 3);
        EXPECT_EQ(count(program, "gradients.finite.reduce.send"), unscales && s < 3);
        EXPECT_EQ(count(program, "gradients.state.receive"), s < 3);
        EXPECT_EQ(count(program, "gradients.state.send"), s > 0);
        EXPECT_EQ(count(program, "gradients.validate"), 1);
        EXPECT_EQ(count(program, "gradients.clip"), 0);
      }
    }
  }
}

}  // namespace
}  // namespace foretrain
