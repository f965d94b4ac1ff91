// Do a few microbatches say, to the picosecond and the byte, what many take?
#include <gtest/gtest.h>

#include "hardware/presets.h"
#include "models/lower.h"
#include "sim/program/allocator.h"
#include "sim/program/memory.h"
#include "tests/support/sanitized.h"
#include "tests/support/small_plans.h"
#include "tests/support/test_prices.h"
#include "tools/predict/lowered_step.h"
#include "tools/predict/predict.h"

namespace foretrain {
namespace {

constexpr int kSteadyPlans = cases(600, 20);

/// The plan with many microbatches, so that a part of them may stand for all.
Plan with_many_microbatches(Plan plan, std::int64_t microbatches) {
  plan.global_batch = microbatches * plan.micro_batch * plan.batch_ranks();
  return plan;
}

/// What the step with fewer microbatches says of memory is what the whole one says.
void expect_equal_memory(const LoweredStep& fewer, const LoweredStep& whole) {
  for (std::size_t p = 0; p < whole.workload.programs.size(); ++p) {
    const Program& all = whole.workload.programs[p];
    const Program& few = fewer.workload.programs[p];
    EXPECT_EQ(count_ops(fewer, p), count_ops(whole, p));
    for (const Memory memory : {Memory::kDevice, Memory::kHost, Memory::kStorage}) {
      const MemoryPeak peak = memory_peak(all, memory);
      const MemoryPeak found = memory_peak(few, memory);
      EXPECT_EQ(found.bytes, peak.bytes);
      EXPECT_EQ(found.by_kind, peak.by_kind);
      EXPECT_EQ(found.saved, peak.saved);
      if (peak.call < 0 || found.call < 0) continue;
      EXPECT_EQ(few.calls[static_cast<std::size_t>(found.call)].microbatch,
                all.calls[static_cast<std::size_t>(peak.call)].microbatch);
    }
    for (const bool expandable : {false, true}) {
      AllocatorRules rules;
      rules.expandable = expandable;
      rules.records_streams = p % 2 == 0;
      const AllocatorUse use = caching_allocator(all, rules, 0);
      const AllocatorUse found = caching_allocator(few, rules, 0, fewer.more_of(p));
      EXPECT_EQ(found.reserved, use.reserved);
      EXPECT_EQ(found.allocated, use.allocated);
    }
  }
}

struct Tally {
  int rounds = 0, proved = 0;
};

void expect_equal_steps(std::uint64_t seed, Tally& tally) {
  Rng rng(seed);
  const auto draw = seed % 3 == 0   ? draw_sharded_plan
                    : seed % 3 == 1 ? draw_plan
                                    : draw_sparse_plan;
  Drawn drawn = draw(rng);
  const Plan plan = with_many_microbatches(
      drawn.plan, drawn.plan.pipeline * drawn.plan.directions() * (12 + rng.below(3)));
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(drawn.model, plan));
  const bool holds = rng.below(3) == 0;
  const bool ports = rng.below(3) == 0;
  const Rates rates = draw_rates(rng, holds, ports);
  const LoweredStep whole = lower_step(drawn.model, plan);
  for (const std::int64_t few : fewer_microbatches(plan)) {
    const std::optional<LoweredStep> fewer = lower_fewer(drawn.model, plan, few);
    if (!fewer) continue;
    ++tally.rounds;
    expect_equal_memory(*fewer, whole);
    TestPrices of_few(rates);
    TestPrices of_all(rates);
    const Result<Prepared> prepared = prepare(fewer->replayed(), of_few, false);
    const Result<Prepared> all = prepare(whole.replayed(), of_all, false);
    ASSERT_TRUE(prepared.ok() && all.ok());
    const Result<std::optional<Time>> time = step_time(*fewer, prepared.value());
    const Result<std::optional<Time>> expected = step_time(whole, all.value());
    ASSERT_TRUE(time.ok() && expected.ok());
    if (!time.value()) continue;
    ++tally.proved;
    EXPECT_EQ(time.value()->ps, expected.value()->ps);
    return;
  }
}

TEST(SteadyState, OfDrawnPlansIsExact) {
  Tally tally;
  for (int i = 0; i < kSteadyPlans; ++i) {
    expect_equal_steps(77000 + static_cast<std::uint64_t>(i), tally);
    if (HasFailure()) return;
  }
  // Schedules that are no rounds, and contention, leave some without an answer.
  EXPECT_GT(tally.rounds, kSteadyPlans / 3);
  EXPECT_GT(tally.proved, kSteadyPlans / 4);
  std::printf("%d plans, %d tries of rounds, %d proved\n", kSteadyPlans, tally.rounds,
              tally.proved);
}

/// A prediction by few microbatches is that of the whole step.
void expect_equal_predictions(const Run& run, int& fewer) {
  PredictOptions options;
  options.verify = options.sensitivity = false;
  const Result<Prediction> found = predict(run, options);
  options.whole = true;
  const Result<Prediction> whole = predict(run, options);
  ASSERT_TRUE(found.ok() && whole.ok());
  const Prediction& a = found.value();
  const Prediction& b = whole.value();
  EXPECT_EQ(a.iteration_time_s, b.iteration_time_s);
  EXPECT_EQ(a.breakdown, b.breakdown);
  EXPECT_EQ(a.critical_rank, b.critical_rank);
  EXPECT_EQ(a.operations, b.operations);
  EXPECT_EQ(a.simulated.lowered, b.simulated.lowered);
  EXPECT_EQ(a.memory.peak_gib, b.memory.peak_gib);
  EXPECT_EQ(a.memory.peak_at, b.memory.peak_at);
  EXPECT_EQ(a.memory.by_kind_gib, b.memory.by_kind_gib);
  EXPECT_EQ(a.memory.least_gib, b.memory.least_gib);
  EXPECT_EQ(a.memory.allocator_retries, b.memory.allocator_retries);
  // Sums of real numbers, in another order.
  EXPECT_NEAR(a.hfu, b.hfu, 1e-9 * b.hfu);
  EXPECT_NEAR(a.interval.low_s, b.interval.low_s, 1e-9 * b.interval.low_s);
  EXPECT_NEAR(a.interval.high_s, b.interval.high_s, 1e-9 * b.interval.high_s);
  for (std::size_t i = 0; i < a.provenance.size(); ++i) {
    EXPECT_NEAR(a.provenance[i], b.provenance[i], 1e-9);
  }
  fewer += a.simulated.events != b.simulated.events || a.simulated.events == 0 ? 1 : 0;
}

TEST(SteadyState, OfShippedRunsIsExact) {
  int fewer = 0, runs = 0;
  for (const std::string& name : preset_names("runs")) {
    SCOPED_TRACE(name);
    const auto usual = load_run(name, {});
    ASSERT_TRUE(usual.ok()) << usual.error().message;
    const Plan& plan = usual.value().plan;
    // As they are, or with as many microbatches as make rounds.
    const std::int64_t more = plan.microbatches() >= 64 ? 1 : 4 * plan.pipeline + 16;
    if (plan.microbatches() * more * (plan.pipeline + 4) > cases(4000, 400)) continue;
    const auto run = load_run(name, {"batch.global=" + std::to_string(plan.global_batch * more)});
    ASSERT_TRUE(run.ok()) << run.error().message;
    expect_equal_predictions(run.value(), fewer);
    ++runs;
  }
  EXPECT_GT(runs, cases(20, 8));
  EXPECT_GT(fewer, runs / 3);
  std::printf("%d runs, %d by fewer microbatches\n", runs, fewer);
}

// What the host prepares for a microbatch lies before the operations that it then issues.
TEST(SteadyState, OfHostsThatPrepareDataIsExact) {
  int fewer = 0;
  const std::vector<std::pair<const char*, std::vector<std::string>>> runs = {
      {"llama-3-8b-8-h100", {"host.data_us=200"}},
      {"llama-3-8b-8-h100", {"host.data_us=400000"}},
      {"lightseq-bert-base-1-a100", {"host.data_us=30000", "batch.global=400"}},
      {"bloom-176b-384-a100", {"host.data_us=30000", "batch.global=1520"}},
      {"fairscale-gpt3-13b-8-v100",
       {"host.synchronize=forward", "offload.pageable=true", "batch.global=1920"}}};
  for (const auto& [name, sets] : runs) {
    SCOPED_TRACE(name);
    const auto run = load_run(name, sets);
    ASSERT_TRUE(run.ok()) << run.error().message;
    expect_equal_predictions(run.value(), fewer);
  }
}

// Four million sequences a step, whose Programs would not fit into memory.
TEST(SteadyState, HasNoLongestStep) {
  const auto run = load_run("llama-3-8b-8-h100", {"batch.global=4194304"});
  ASSERT_TRUE(run.ok()) << run.error().message;
  EXPECT_FALSE(lowerable(run.value().model, run.value().plan).ok());
  PredictOptions options;
  const Result<Prediction> found = predict(run.value(), options);
  ASSERT_TRUE(found.ok()) << found.error().message;
  const auto less = load_run("llama-3-8b-8-h100", {"batch.global=2097152"});
  const Result<Prediction> half = predict(less.value(), options);
  EXPECT_NEAR(found.value().iteration_time_s / half.value().iteration_time_s, 2, 1e-3);
}

}  // namespace
}  // namespace foretrain
