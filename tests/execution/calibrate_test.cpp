// Can every operation of a Program be lifted out and timed alone, and do the samples then price all
// of it?
#include <gtest/gtest.h>

#include "executor/host_rank.h"
#include "executor/side_by_side.h"
#include "models/lower.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

Model tiny(Model m) {
  m.layers = 2;
  m.hidden = 32;
  m.head_dim = 8;
  m.intermediate = 64;
  m.vocabulary = 100;
  return m;
}

Plan fp32(Plan plan) {
  plan.precision.compute = plan.precision.gradients = plan.precision.matrix = DType::kFp32;
  plan.precision.master = false;
  plan.units.reduce = DType::kFp32;
  plan.sequence_length = 16;
  return plan;
}

void expect_all_measured(const Model& model, const Plan& plan) {
  const Workload workload = lower(model, plan);
  ASSERT_TRUE(check_executable(workload).ok());
  const auto ranks = static_cast<std::int64_t>(workload.ranks.size());
  const std::vector<MicroOp> ops = distinct_ops(workload);
  CalibrateOptions options;
  options.seconds = 0.0005;
  options.rotation = 1 << 16;
  std::size_t saved = 0;
  options.save = [&saved] {
    ++saved;
    return ok_status();
  };
  Profile profile;
  profile.machine = machine_identity();
  const Result<bool> whole = calibrate_threads(ops, ranks, options, profile);
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  EXPECT_TRUE(whole.value());
  EXPECT_GE(saved, 1);
  ASSERT_EQ(profile.samples.size(), ops.size() + 2);
  for (const auto& [key, sample] : profile.samples) {
    EXPECT_GT(sample.count, 0) << key.shape;
    EXPECT_GT(sample.median_us, 0) << key.shape;
    EXPECT_LE(sample.p10_us, sample.median_us) << key.shape;
    EXPECT_GE(sample.p90_us, sample.median_us) << key.shape;
  }
  const ProfileTable table(profile);
  for (const MicroOp& op : ops) {
    const auto price = table.price(op.work, op.key.ranks);
    ASSERT_TRUE(price.ok()) << op.key.shape;
    EXPECT_EQ(price.value().provenance, Provenance::kMeasured) << op.key.shape;
  }
  // What is known is not measured again; a stop is heeded.
  int measured = 0;
  options.progress = [&measured](std::size_t, std::size_t, const std::string&) { ++measured; };
  ASSERT_TRUE(calibrate_threads(ops, ranks, options, profile).ok());
  EXPECT_EQ(measured, 0);
  options.interrupted = [] { return true; };
  Profile none;
  const Result<bool> stopped = calibrate_threads(ops, ranks, options, none);
  ASSERT_TRUE(stopped.ok());
  EXPECT_FALSE(stopped.value());
  EXPECT_TRUE(none.samples.empty());
}

TEST(Calibrate, TensorAndPipeline) {
  const Model gpt = tiny(small_gpt());
  Plan plan = fp32(small_plan(gpt, {2, 2, 1, 1}, 2));
  plan.dropout = 0.1;
  plan.attention = AttentionKernel::kUnfused;
  expect_all_measured(gpt, plan);
  plan.sequence = true;
  Model model = tiny(small_llama());
  model.qk_norm = true;
  plan.attention = AttentionKernel::kFlash;
  expect_all_measured(model, plan);
}

TEST(Calibrate, TensorGrid) {
  const Model gpt = tiny(small_gpt());
  Plan plan = fp32(small_plan(gpt, {4, 1, 1, 1}, 2));
  plan.tensor_mode = TensorMode::k2D;
  plan.micro_batch = plan.token_parts();
  plan.global_batch = 2 * plan.micro_batch;
  plan.dropout = 0.1;
  plan.attention = AttentionKernel::kUnfused;
  expect_all_measured(gpt, plan);
}

TEST(Calibrate, ShardedParametersAndBuckets) {
  const Model model = tiny(small_llama());
  Plan plan = fp32(small_plan(model, {1, 1, 1, 2}, 2));
  plan.sharding = Sharding::kParameters;
  expect_all_measured(model, plan);
  plan.sharding = Sharding::kOptimizer;
  plan.bucket_elements = 5'000;
  plan.overlap.gradient_reduce = true;
  expect_all_measured(model, plan);
}

// Operations and steps in turns: every round adds to the samples, and the steps are those of a run
// in one go.
TEST(Calibrate, RoundsBetweenSteps) {
  const Model model = tiny(small_llama());
  const Plan plan = fp32(small_plan(model, {2, 1, 1, 1}, 2));
  const Workload workload = lower(model, plan);
  ASSERT_TRUE(check_executable(workload).ok());
  const std::vector<MicroOp> ops = distinct_ops(workload);
  SideBySideOptions options;
  options.calibrate.seconds = 0.0005;
  options.calibrate.rotation = 1 << 16;
  options.execute.steps = 5;
  options.execute.name_of = [](RankId) { return std::string("rank"); };
  std::int64_t samples[2] = {0, 0};
  for (const std::int64_t rounds : {1, 4}) {
    options.rounds = rounds;
    Profile profile;
    const auto executed = measure_and_execute_threads(ops, workload, options, profile);
    ASSERT_TRUE(executed.ok()) << executed.error().message;
    ASSERT_EQ(executed.value().steps.size(), 5);
    const auto at_once = execute_threads(workload, options.execute);
    ASSERT_TRUE(at_once.ok());
    for (std::size_t s = 0; s < 5; ++s) {
      EXPECT_EQ(executed.value().steps[s].loss, at_once.value().steps[s].loss);
    }
    ASSERT_EQ(profile.samples.size(), ops.size() + 2);
    for (const auto& [key, sample] : profile.samples) {
      EXPECT_GT(sample.price_us(), 0) << key.shape;
      EXPECT_LE(sample.mean_us, 3 * sample.median_us) << key.shape;
    }
    samples[rounds == 1 ? 0 : 1] = profile.find(ops.front().key)->count;
  }
  // Every round adds to a sample; how much, the noise of the machine decides.
  EXPECT_GE(samples[0], 1);
  EXPECT_GE(samples[1], 4);
}

}  // namespace
}  // namespace foretrain
