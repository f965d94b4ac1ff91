// Does a step get shorter, or no longer, when the machine gets faster?
#include <gtest/gtest.h>

#include "models/lower.h"
#include "tests/support/recording.h"
#include "tests/support/small_plans.h"
#include "tests/support/test_prices.h"

namespace foretrain {
namespace {

Time step(const Workload& workload, CostModel& prices) {
  const Result<Replayed> result = replay_all(workload, prices, false);
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? result.value().replay.end : Time{};
}

Time step(const Workload& workload, const Rates& rates) {
  TestPrices prices(rates);
  return step(workload, prices);
}

// Without sharing a step is a max-plus sum of its prices, so halving any price cannot lengthen it.
TEST(Rates, FasterIsNeverSlower) {
  Rng rng(77);
  for (int i = 0; i < 40; ++i) {
    const Drawn drawn = draw_plan(rng);
    SCOPED_TRACE("plan " + std::to_string(i) + ": " + describe(drawn.model, drawn.plan));
    const Workload workload = lower(drawn.model, drawn.plan);
    const Time before = step(workload, plain_rates());
    Rates faster[6];
    for (Rates& rates : faster) rates = plain_rates();
    faster[0].launch.ps /= 2;
    faster[1].latency.ps /= 2;
    faster[2].kiloflop /= 2;
    faster[3].kilobyte /= 2;
    faster[4].link_kilobyte /= 2;
    faster[5].nic_kilobyte /= 2;
    for (int f = 0; f < 6; ++f) EXPECT_LE(step(workload, faster[f]).ps, before.ps) << "rate " << f;
    // What every step has, it feels.
    EXPECT_LT(step(workload, faster[3]).ps, before.ps);
  }
}

// Max-plus sums are homogeneous: k times every price, k times the step. Host delays of the plan are
// prices too.
TEST(Rates, ScalingScales) {
  Rng rng(78);
  for (int i = 0; i < 20; ++i) {
    const Drawn drawn = draw_plan(rng);
    SCOPED_TRACE("plan " + std::to_string(i) + ": " + describe(drawn.model, drawn.plan));
    const Workload workload = lower(drawn.model, drawn.plan);
    std::vector<RankId> same;
    for (std::size_t r = 0; r < workload.ranks.size(); ++r) same.emplace_back(r);
    TestPrices base(plain_rates());
    const Time before = step(workload, base);
    for (const std::int64_t factor : {2, 3, 1000}) {
      DerivedPrices scaled(base, same, factor);
      EXPECT_EQ(step(workload, scaled).ps, factor * before.ps);
    }
  }
}

// Communication that holds SMs and bandwidth, or shares ports, can only make a step longer.
TEST(Rates, SharingNeverHelps) {
  Rng rng(79);
  int longer = 0;
  for (int i = 0; i < 40; ++i) {
    const Drawn drawn = draw_plan(rng);
    SCOPED_TRACE("plan " + std::to_string(i) + ": " + describe(drawn.model, drawn.plan));
    const Workload workload = lower(drawn.model, drawn.plan);
    Rates tiled = plain_rates();
    tiled.tiles = true;
    const Time alone = step(workload, tiled);
    const Time held = step(workload, holding_rates());
    EXPECT_GE(held.ps, alone.ps);
    const Time plain = step(workload, plain_rates());
    const Time shared = step(workload, sharing_rates());
    EXPECT_GE(shared.ps, plain.ps);
    longer += (held > alone ? 1 : 0) + (shared > plain ? 1 : 0);
  }
  EXPECT_GT(longer, 10);
}

}  // namespace
}  // namespace foretrain
