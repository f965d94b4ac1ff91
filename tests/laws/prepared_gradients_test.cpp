// Are gradients looked at, and divided, all of them, once, and before they travel?
#include <gtest/gtest.h>

#include <algorithm>

#include "models/layers/slots.h"
#include "tests/laws/bucket_plans.h"
#include "tests/support/recording.h"
#include "tests/support/test_prices.h"

namespace foretrain {
namespace {

struct Done {
  std::string name, stream;
  std::int64_t count = 0;  ///< elements of kernels
  Time start, end;
};

/// The first rank's ops whose names begin with one of `prefixes`, in the order of their starts.
std::vector<Done> done(const Workload& workload, std::vector<std::string> prefixes) {
  TestPrices prices(plain_rates());
  const Result<Replayed> result = replay_all(workload, prices, false);
  EXPECT_TRUE(result.ok()) << result.error().message;
  std::vector<Done> out;
  if (!result.ok()) return out;
  const Program& program = workload.programs[0];
  for (const OpTimes& t : result.value().sink.of(0)) {
    const Call& call = program.calls[static_cast<std::size_t>(t.call)];
    const Op& op = program.segments[call.segment.index()].ops[static_cast<std::size_t>(t.op)];
    const bool wanted =
        std::any_of(prefixes.begin(), prefixes.end(),
                    [&op](const std::string& prefix) { return op.name.starts_with(prefix); });
    if (!wanted) continue;
    const auto* kernel = std::get_if<Kernel>(&program.works[op.work.index()]);
    out.push_back({op.name, program.streams[op.stream.index()],
                   kernel == nullptr ? 0 : kernel->rows * kernel->cols, t.start, t.end});
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Done& a, const Done& b) { return a.start < b.start; });
  return out;
}

std::vector<Done> named(const std::vector<Done>& all, const std::string& name) {
  std::vector<Done> out;
  for (const Done& one : all) {
    if (one.name == name) out.push_back(one);
  }
  return out;
}

std::int64_t elements(const std::vector<Done>& all, const std::string& name) {
  std::int64_t out = 0;
  for (const Done& one : named(all, name)) out += one.count;
  return out;
}

Plan in_ranges(Sharding sharding, bool overlap) {
  Plan plan = small_plan(model_for_buckets(), {1, 1, 1, kBucketRanks}, 2);
  plan.sharding = sharding;
  plan.overlap.gradient_reduce = overlap;
  plan.bucket_elements = 50'000;
  plan.buckets.averages = plan.buckets.checks = true;
  return plan;
}

// Megatron Core's start_grad_sync: the norm of a bucket, the host's look at it, the division, the
// reduction; on the stream of compute but for the last, bucket by bucket.
TEST(PreparedGradients, OfEachBucketInTurn) {
  for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer}) {
    for (const bool overlap : {false, true}) {
      const Workload workload = lowered_buckets(in_ranges(sharding, overlap));
      const std::vector<Done> all =
          done(workload, {"gradients.check.", "gradients.average", "gradients.reduce"});
      const std::vector<Done> norms = named(all, "gradients.check.norm");
      const std::vector<Done> waits = named(all, "gradients.check.wait");
      const std::vector<Done> divisions = named(all, "gradients.average");
      const std::vector<Done> reductions = named(all, "gradients.reduce");
      ASSERT_GT(reductions.size(), overlap ? 6U : 0U);
      ASSERT_EQ(norms.size(), reductions.size());
      ASSERT_EQ(waits.size(), reductions.size());
      ASSERT_EQ(divisions.size(), reductions.size());
      for (std::size_t i = 0; i < reductions.size(); ++i) {
        EXPECT_EQ(norms[i].count, divisions[i].count);
        EXPECT_EQ(norms[i].stream, "compute");
        EXPECT_EQ(divisions[i].stream, "compute");
        EXPECT_LE(norms[i].end, waits[i].start);
        EXPECT_LE(waits[i].end, divisions[i].start);
        EXPECT_LE(divisions[i].end, reductions[i].start);
      }
      const std::int64_t unit = sharding == Sharding::kNone ? 1 : 128 * kBucketRanks;
      const std::int64_t count = parameter_count(model_for_buckets());
      EXPECT_EQ(elements(all, "gradients.average"), (count + unit - 1) / unit * unit);
    }
  }
}

// One rank has nothing to divide by; what it computed is looked at all the same.
TEST(PreparedGradients, OfOneRankAreLookedAtAlone) {
  Plan plan = in_ranges(Sharding::kNone, true);
  plan.accelerators = plan.data = 1;
  plan.global_batch = 2 * plan.micro_batch;
  const std::vector<Done> all =
      done(lowered_buckets(plan), {"gradients.check.norm", "gradients.average"});
  EXPECT_EQ(elements(all, "gradients.check.norm"), parameter_count(model_for_buckets()));
  EXPECT_TRUE(named(all, "gradients.average").empty());
}

// Experts that no other rank holds are divided by as many ranks as all else, and reduced with none.
TEST(PreparedGradients, OfExpertsThatNobodyShares) {
  const Model model = small_moe();
  for (const DType travels : {DType::kFp32, DType::kBf16}) {
    Plan plan = small_plan(model, {1, 1, 1, 4}, 1);
    plan.experts.expert = 4;
    plan.buckets.averages = true;
    plan.precision.gradients = DType::kFp32;
    plan.units.reduce = travels;
    const Workload workload = lower(model, plan);
    ASSERT_TRUE(verify(workload).ok()) << verify(workload).error().message;
    const std::vector<Done> all = done(workload, {"gradients.average", "gradients.reduce"});
    std::int64_t held = 0;
    for (const Done& one : done(workload, {"gradients.zero"})) held += one.count;
    EXPECT_EQ(elements(all, "gradients.average"), held);
    EXPECT_GT(named(all, "gradients.average").size(), named(all, "gradients.reduce").size());
  }
}

// FSDP's and ZeRO-3's units: on the stream of the reduction, which follows, every microbatch.
TEST(PreparedGradients, OfUnitsOnTheStreamThatReducesThem) {
  Plan plan = small_plan(model_for_buckets(), {1, 1, 1, kBucketRanks}, 2);
  plan.sharding = Sharding::kParameters;
  plan.units.reduce = DType::kBf16;
  for (const bool divides : {false, true}) {
    plan.buckets.averages = divides;
    const std::vector<Done> all =
        done(lowered_buckets(plan), {"gradients.average", "gradients.reduce"});
    const std::vector<Done> reductions = named(all, "gradients.reduce");
    ASSERT_EQ(all.size(), reductions.size() * (divides ? 2 : 1));
    if (!divides) continue;
    EXPECT_GE(elements(all, "gradients.average"), 2 * parameter_count(model_for_buckets()));
    for (std::size_t i = 0; i < all.size(); i += 2) {
      EXPECT_EQ(all[i].name, "gradients.average");
      EXPECT_EQ(all[i].stream, all[i + 1].stream);
      EXPECT_LE(all[i].end, all[i + 1].start);
    }
  }
}

// Megatron Core's _unscale_main_grads_and_check_for_nan, torch.amp's GradScaler: after the last
// reduction a pass over what a rank updates, all ranks agree, the host waits, and then the norm.
TEST(PreparedGradients, LoseTheScaleOfTheLossInFp16) {
  for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer, Sharding::kParameters}) {
    Plan plan = in_ranges(sharding, true);
    plan.buckets.checks = false;
    for (const bool unscales : {false, true}) {
      plan.unscales = unscales;
      const std::vector<Done> all =
          done(lowered_buckets(plan), {"gradients.unscale", "gradients.finite", "gradients.reduce",
                                       "gradients.norm", "gradients.clip"});
      const std::vector<Done> passes = named(all, "gradients.unscale");
      const std::vector<Done> waits = named(all, "gradients.finite");
      EXPECT_EQ(elements(all, "gradients.unscale"), unscales ? elements(all, "gradients.clip") : 0);
      ASSERT_EQ(waits.size(), unscales ? 1U : 0U);
      const bool shared = unscales && sharding != Sharding::kNone;
      EXPECT_EQ(named(all, "gradients.finite.reduce").size(), shared ? 1U : 0U);
      if (!unscales) continue;
      for (const Done& one : all) {
        if (one.name == "gradients.reduce") {
          EXPECT_LE(one.end, passes.front().start);
        }
        if (one.name == "gradients.norm") {
          EXPECT_LE(waits[0].end, one.start);
        }
      }
      EXPECT_LE(passes.back().end, waits[0].start);
    }
  }
}

// Two stages hold the same two chunks; compute that waits for the sum of one must not do so before
// the other stage's compute is there.
TEST(NarrowedGradients, OfTwoCopiesComeInOneOrder) {
  Model model = small_llama();
  model.tied_embeddings = false;
  for (const Schedule schedule : {Schedule::kChimera, Schedule::kDualPipe}) {
    Plan plan = small_plan(model, {1, 4, 1, 1}, 8);
    plan.schedule = schedule;
    plan.units.reduce = DType::kBf16;
    ASSERT_TRUE(plan.narrows_gradients());
    TestPrices prices(plain_rates());
    const Result<Replayed> result = replay_all(lower(model, plan), prices, true);
    EXPECT_TRUE(result.ok()) << result.error().message;
  }
}

// The gathers of a step wait for the zeroes, which a framework gives its compute stream first.
TEST(GatheredParameters, ComeAfterTheZeroes) {
  for (const Sharding sharding : {Sharding::kOptimizer, Sharding::kGradients}) {
    Plan plan = in_ranges(sharding, true);
    plan.buckets.averages = plan.buckets.checks = false;
    plan.overlap.parameter_gather = true;
    const std::vector<Done> all =
        done(lowered_buckets(plan), {"gradients.zero", "loss.zero", "parameters.gather"});
    Time zeroed;
    std::size_t gathers = 0;
    for (const Done& one : all) {
      if (one.name != "parameters.gather") zeroed = max(zeroed, one.end);
    }
    for (const Done& one : named(all, "parameters.gather")) {
      EXPECT_GE(one.start, zeroed);
      ++gathers;
    }
    EXPECT_GT(gathers, 1U);
  }
}

}  // namespace
}  // namespace foretrain
