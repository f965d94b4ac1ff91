// Is what stages, or prices, have in common taken over without a change?
#include <gtest/gtest.h>

#include <algorithm>

#include "models/lower.h"
#include "sim/engine/step_ends.h"
#include "sim/program/allocator.h"
#include "sim/program/memory.h"
#include "tests/support/sanitized.h"
#include "tests/support/small_plans.h"
#include "tests/support/test_prices.h"

namespace foretrain {
namespace {

constexpr int kSharedPlans = cases(300, 30);

Drawn draw_any(Rng& rng, int i) {
  return i % 3 == 0 ? draw_sharded_plan(rng) : i % 3 == 1 ? draw_plan(rng) : draw_sparse_plan(rng);
}

void expect_same_walks(const Program& a, const Program& b) {
  const MemoryPeak peak = memory_peak(a);
  const MemoryPeak other = memory_peak(b);
  EXPECT_EQ(peak.bytes, other.bytes);
  EXPECT_EQ(peak.by_kind, other.by_kind);
  EXPECT_EQ(std::pair(peak.call, peak.op), std::pair(other.call, other.op));
  EXPECT_EQ(std::pair(peak.saved, peak.persistent), std::pair(other.saved, other.persistent));
  for (const bool records : {false, true}) {
    AllocatorRules rules;
    rules.records_streams = records;
    const Bytes most = caching_allocator(a, rules, 0).reserved;
    for (const Bytes limit : {Bytes{0}, most - most / 8}) {
      const AllocatorUse use = caching_allocator(a, rules, limit);
      const AllocatorUse found = caching_allocator(b, rules, limit);
      EXPECT_EQ(use.reserved, found.reserved);
      EXPECT_EQ(use.allocated, found.allocated);
      EXPECT_EQ(use.retries, found.retries);
      EXPECT_EQ(use.fits, found.fits);
    }
  }
}

// Stages that are called alike differ in their layers, and in nothing that memory depends on.
TEST(Sharing, StagesOfTheSameMemoryAreWalkedAlike) {
  int alike = 0;
  for (int i = 0; i < kSharedPlans; ++i) {
    Rng rng(91000 + static_cast<std::uint64_t>(i));
    const Drawn drawn = draw_any(rng, i);
    const Workload workload = lower(drawn.model, drawn.plan);
    for (std::size_t p = 0; p + 1 < workload.programs.size(); ++p) {
      if (!same_memory(workload.programs[p], workload.programs[p + 1])) continue;
      ++alike;
      expect_same_walks(workload.programs[p], workload.programs[p + 1]);
    }
    if (HasFailure()) return;
  }
  // The few plans that sanitizers take may have none.
  if (!kSanitized) {
    EXPECT_GT(alike, kSharedPlans / 30);
  }
}

// Each change of one thing that memory depends on is seen.
TEST(Sharing, ChangedMemoryIsNotTheSame) {
  Rng rng(5);
  const Drawn drawn = draw_plan(rng);
  const Program program = lower(drawn.model, drawn.plan).programs.front();
  EXPECT_TRUE(same_memory(program, program));
  const auto some_buffer = [](Program& p) -> Buffer& {
    return std::find_if(p.layouts.begin(), p.layouts.end(),
                        [](const FrameLayout& layout) { return !layout.buffers.empty(); })
        ->buffers.back();
  };
  const auto differs = [&program](const auto& change) {
    Program changed = program;
    change(changed);
    return !same_memory(program, changed);
  };
  EXPECT_TRUE(differs([&](Program& p) { ++some_buffer(p).count; }));
  EXPECT_TRUE(differs([&](Program& p) { some_buffer(p).pool = 2; }));
  EXPECT_TRUE(differs([&](Program& p) { some_buffer(p).memory = Memory::kHost; }));
  EXPECT_TRUE(differs([&](Program& p) { some_buffer(p).saved ^= true; }));
  EXPECT_TRUE(differs([](Program& p) { p.calls.pop_back(); }));
  EXPECT_TRUE(differs([](Program& p) { p.calls.back().waits.push_back({}); }));
  EXPECT_TRUE(differs([](Program& p) { p.frames.emplace_back(); }));
  EXPECT_TRUE(differs([](Program& p) { p.segments.back().ops.back().frees.push_back({}); }));
  EXPECT_FALSE(differs([](Program& p) { ++p.calls.back().layer; }));
}

// A step that was folded for some prices is priced again as one that is folded for the others.
TEST(Sharing, AFoldedStepIsPricedAgainAsAFreshOne) {
  for (int i = 0; i < kSharedPlans; ++i) {
    Rng rng(92000 + static_cast<std::uint64_t>(i));
    const Drawn drawn = draw_any(rng, i);
    const Workload workload = lower(drawn.model, drawn.plan);
    const auto drawn_rates = [&rng] {
      const bool one = rng.below(2) == 0;
      const bool other = rng.below(2) == 0;
      return draw_rates(rng, one, other);
    };
    const Rates rates = drawn_rates();
    Rates others = drawn_rates();
    others.node = rates.node;
    others.ranks_per_nic = rates.ranks_per_nic;
    TestPrices first(rates);
    TestPrices again(others);
    TestPrices fresh(others);
    const Result<Prepared> prepared = prepare(workload, first, false);
    const Result<Prepared> expected = prepare(workload, fresh, false);
    ASSERT_TRUE(prepared.ok() && expected.ok());
    const Result<Prepared> found = price_again(workload, again, prepared.value());
    ASSERT_TRUE(found.ok());
    ASSERT_EQ(found.value().prices.size(), expected.value().prices.size());
    for (std::size_t p = 0; p < found.value().prices.size(); ++p) {
      EXPECT_EQ(found.value().prices[p].costs, expected.value().prices[p].costs);
      EXPECT_EQ(found.value().prices[p].message_costs, expected.value().prices[p].message_costs);
    }
    EXPECT_EQ(found.value().group_shares, expected.value().group_shares);
    EXPECT_EQ(found.value().channel_shares, expected.value().channel_shares);
    const Result<Time> time = step_time(workload, found.value(), 1);
    const Result<Time> other = step_time(workload, expected.value(), 1);
    ASSERT_TRUE(time.ok() && other.ok());
    EXPECT_EQ(time.value().ps, other.value().ps);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace foretrain
