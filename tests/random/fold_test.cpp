// Does a folded replay equal the full one, op by op, on plans that nobody thought of?
#include <gtest/gtest.h>

#include <algorithm>

#include "models/lower.h"
#include "models/plan/layout/plan_stages.h"
#include "sim/program/verify.h"
#include "tests/support/recording.h"
#include "tests/support/sanitized.h"
#include "tests/support/small_plans.h"
#include "tests/support/test_prices.h"

namespace foretrain {
namespace {

constexpr std::uint64_t kFirstSeed = 20260;
constexpr int kPlans = cases(300, 20);
constexpr int kShardedPlans = cases(120, 12);
constexpr int kSparsePlans = cases(160, 10);
constexpr int kGridPlans = cases(80, 6);

/// Every op of every rank runs exactly when its actor's does.
void expect_equal(const Replayed& folded, const Replayed& full) {
  ASSERT_EQ(folded.replay.end.ps, full.replay.end.ps);
  const Quotient& quotient = folded.prepared.quotient;
  std::vector<std::vector<OpTimes>> of_actor;
  for (std::size_t a = 0; a < quotient.actors.size(); ++a) {
    of_actor.push_back(folded.sink.of(static_cast<std::int32_t>(a)));
  }
  for (std::size_t r = 0; r < quotient.actor_of.size(); ++r) {
    const std::vector<OpTimes>& actor = of_actor[static_cast<std::size_t>(quotient.actor_of[r])];
    const std::vector<OpTimes> rank = full.sink.of(static_cast<std::int32_t>(r));
    ASSERT_EQ(actor.size(), rank.size());
    for (std::size_t i = 0; i < rank.size(); ++i) {
      ASSERT_EQ(actor[i].call, rank[i].call);
      ASSERT_EQ(actor[i].op, rank[i].op);
      ASSERT_EQ(actor[i].begin.ps, rank[i].begin.ps) << "rank " << r << " op " << i;
      ASSERT_EQ(actor[i].start.ps, rank[i].start.ps) << "rank " << r << " op " << i;
      ASSERT_EQ(actor[i].end.ps, rank[i].end.ps) << "rank " << r << " op " << i;
    }
  }
}

/// The same workload with its ranks numbered anew: rank r of `workload` is `renamed[r]`.
Workload rename(const Workload& workload, const std::vector<RankId>& renamed) {
  Workload out = workload;
  for (std::size_t r = 0; r < renamed.size(); ++r) {
    out.ranks[renamed[r].index()] = workload.ranks[r];
  }
  for (std::vector<RankId>& group : out.groups) {
    for (RankId& rank : group) rank = renamed[rank.index()];
  }
  for (Channel& channel : out.channels) {
    channel.source = renamed[channel.source.index()];
    channel.destination = renamed[channel.destination.index()];
  }
  return out;
}

/// Ranks are processed in order of their numbers: other numbers, another order, the same times.
void expect_order_irrelevant(const Workload& workload, const Rates& rates, const Replayed& full,
                             Rng& rng) {
  std::vector<RankId> renamed;
  for (std::size_t r = 0; r < workload.ranks.size(); ++r) renamed.emplace_back(r);
  for (std::size_t r = renamed.size(); r > 1; --r) {
    std::swap(renamed[r - 1],
              renamed[static_cast<std::size_t>(rng.below(static_cast<std::int64_t>(r)))]);
  }
  std::vector<RankId> original(renamed.size());
  for (std::size_t r = 0; r < renamed.size(); ++r) original[renamed[r].index()] = RankId(r);
  TestPrices base(rates);
  DerivedPrices prices(base, original, 1);
  const Result<Replayed> other = replay_all(rename(workload, renamed), prices, true);
  ASSERT_TRUE(other.ok()) << other.error().message;
  ASSERT_EQ(other.value().replay.end.ps, full.replay.end.ps);
  for (std::size_t r = 0; r < renamed.size(); ++r) {
    const std::vector<OpTimes> here = other.value().sink.of(renamed[r].value);
    const std::vector<OpTimes> there = full.sink.of(static_cast<std::int32_t>(r));
    ASSERT_EQ(here.size(), there.size());
    for (std::size_t i = 0; i < here.size(); ++i) {
      ASSERT_EQ(here[i].begin.ps, there[i].begin.ps) << "rank " << r << " op " << i;
      ASSERT_EQ(here[i].start.ps, there[i].start.ps) << "rank " << r << " op " << i;
      ASSERT_EQ(here[i].end.ps, there[i].end.ps) << "rank " << r << " op " << i;
    }
  }
}

class Folding : public ::testing::TestWithParam<int> {};

void expect_folds(std::uint64_t seed, Drawn (*draw)(Rng&)) {
  Rng rng(seed);
  Drawn drawn = draw(rng);
  if (!drawn.plan.tensors.any()) add_rare(rng, drawn);
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(drawn.model, drawn.plan));
  const Workload workload = lower(drawn.model, drawn.plan);
  const Status status = verify(workload);
  ASSERT_TRUE(status.ok()) << status.error().message;
  for (int kind = 0; kind < 4; ++kind) {
    SCOPED_TRACE(kind);
    const Rates rates = draw_rates(rng, (kind & 1) != 0, (kind & 2) != 0);
    TestPrices of_folded(rates);
    TestPrices of_full(rates);
    const Result<Replayed> folded = replay_all(workload, of_folded, false);
    ASSERT_TRUE(folded.ok()) << folded.error().message;
    const Result<Replayed> full = replay_all(workload, of_full, true);
    ASSERT_TRUE(full.ok()) << full.error().message;
    expect_equal(folded.value(), full.value());
    expect_order_irrelevant(workload, rates, full.value(), rng);
  }
}

TEST_P(Folding, EqualsFull) {
  expect_folds(kFirstSeed + static_cast<std::uint64_t>(GetParam()), draw_plan);
}

class ShardedFolding : public ::testing::TestWithParam<int> {};

// Gathered parameters and reduced gradients, in units, groups and replicas.
TEST_P(ShardedFolding, EqualsFull) {
  expect_folds(kFirstSeed + 1000 + static_cast<std::uint64_t>(GetParam()), draw_sharded_plan);
}

class SparseFolding : public ::testing::TestWithParam<int> {};

// Experts over expert, tensor and data ranks; latent attention; multi-token prediction.
TEST_P(SparseFolding, EqualsFull) {
  expect_folds(kFirstSeed + 2000 + static_cast<std::uint64_t>(GetParam()), draw_sparse_plan);
}

class GridFolding : public ::testing::TestWithParam<int> {};

// Broadcasts and reductions over rows and columns of tensor ranks.
TEST_P(GridFolding, EqualsFull) {
  expect_folds(kFirstSeed + 3000 + static_cast<std::uint64_t>(GetParam()),
               [](Rng& rng) { return draw_grid_plan(rng, 32); });
}

/// A plan with a tensor degree for every stage.
Drawn draw_degrees(Rng& rng) {
  while (true) {
    Drawn out = draw_plan(rng);
    add_rare(rng, out);
    Plan& plan = out.plan;
    if (plan.pipeline == 1) continue;
    plan.stages.resize(static_cast<std::size_t>(plan.pipeline));
    plan.tensors.sequence = rng.below(2) == 0;
    for (std::int64_t s = 0; s < plan.pipeline; ++s) {
      plan.tensors.degrees.push_back(std::int64_t{1} << rng.below(3));
    }
    plan.tensor = *std::max_element(plan.tensors.degrees.begin(), plan.tensors.degrees.end());
    plan.sequence = plan.tensors.sequence && plan.tensor > 1;
    plan.scatter_gather = false;
    plan.accelerators = model_ranks(plan) * plan.data;
    Violations found;
    check_stages(out.model, plan, found);
    if (found.empty() && plan.accelerators <= 64) return out;
  }
}

class StageFolding : public ::testing::TestWithParam<int> {};

// Messages between stages of several tensor degrees.
TEST_P(StageFolding, EqualsFull) {
  expect_folds(kFirstSeed + 4000 + static_cast<std::uint64_t>(GetParam()), draw_degrees);
}

INSTANTIATE_TEST_SUITE_P(Plans, StageFolding, ::testing::Range(0, kGridPlans));
INSTANTIATE_TEST_SUITE_P(Plans, GridFolding, ::testing::Range(0, kGridPlans));
INSTANTIATE_TEST_SUITE_P(Plans, SparseFolding, ::testing::Range(0, kSparsePlans));
INSTANTIATE_TEST_SUITE_P(Plans, Folding, ::testing::Range(0, kPlans));
INSTANTIATE_TEST_SUITE_P(Plans, ShardedFolding, ::testing::Range(0, kShardedPlans));

}  // namespace
}  // namespace foretrain
