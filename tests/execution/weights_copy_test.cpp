// Weights that are copied from their fp32 copies after the update are those that it would write.
#include <gtest/gtest.h>

#include "models/lower.h"
#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

Plan with_copies(Sharding sharding) {
  const Model model = narrowed(small_llama(), 2);
  Plan plan = in_fp32(small_plan(model, {1, 1, 1, 2}, 2));
  plan.sharding = sharding;
  plan.units.narrow_shards = true;
  plan.precision.master = true;
  return plan;
}

std::int64_t count(const Workload& workload, const std::string& name) {
  std::int64_t out = 0;
  for (const Call& call : workload.programs[0].calls) {
    for (const Op& op : workload.programs[0].segments[call.segment.index()].ops) {
      if (op.name == name) ++out;
    }
  }
  return out;
}

TEST(WeightsCopy, TrainsAsOneKernelForBoth) {
  const Model model = narrowed(small_llama(), 2);
  for (const Sharding sharding :
       {Sharding::kNone, Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
    Plan plan = with_copies(sharding);
    EXPECT_EQ(count(lower(model, plan), "optimizer.weights"), 0);
    const auto fused = train<double>(model, plan);
    plan.copies_master_to_model = true;
    const Workload workload = lower(model, plan);
    EXPECT_GT(count(workload, "optimizer.weights"), 0);
    EXPECT_EQ(count(workload, "optimizer.weights"), count(workload, "optimizer.adam"));
    const auto apart = train<double>(model, plan);
    ASSERT_TRUE(fused.ok()) << fused.error().message;
    ASSERT_TRUE(apart.ok()) << apart.error().message;
    expect_same(fused.value(), apart.value(), 1e-12);
  }
}

// Without fp32 copies there is nothing to copy.
TEST(WeightsCopy, NeedsAnFp32Copy) {
  Plan plan = with_copies(Sharding::kOptimizer);
  plan.precision.master = false;
  plan.copies_master_to_model = true;
  EXPECT_EQ(count(lower(narrowed(small_llama(), 2), plan), "optimizer.weights"), 0);
}

// 16 bits: gradients in fp32, moments and copies read and written, 28 bytes; the copy 6 more.
TEST(WeightsCopy, MovesFourBytesMore) {
  const Model model = narrowed(small_llama(), 2);
  const auto bytes = [&](bool apart) {
    Plan plan = small_plan(model, {}, 1);
    plan.copies_master_to_model = apart;
    const Workload workload = lower(model, plan);
    Bytes out = 0;
    std::int64_t updated = 0;
    for (const Call& call : workload.programs[0].calls) {
      for (const Op& op : workload.programs[0].segments[call.segment.index()].ops) {
        if (op.name.rfind("optimizer.", 0) != 0) continue;
        if (op.name == "optimizer.adam") updated += op.reads[0].bytes / 4;
        for (const View& view : op.reads) out += view.bytes;
        for (const View& view : op.writes) out += view.bytes;
      }
    }
    return static_cast<double>(out) / static_cast<double>(updated);
  };
  EXPECT_DOUBLE_EQ(bytes(false), 30);
  EXPECT_DOUBLE_EQ(bytes(true), 34);
}

}  // namespace
}  // namespace foretrain
