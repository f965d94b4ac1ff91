// Do kernels meet the holds of communication that lie beside them, and no others?
#include "sim/engine/holds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "sim/base/rng.h"

namespace foretrain {
namespace {

constexpr int kSms = 100;
constexpr std::int32_t kCompute = 0;

/// A hold of `stream`, from `begin` until `end`.
struct Held {
  std::int32_t stream = 0;
  Time begin, end;
};

Cost holding(std::int32_t sms) {
  Cost cost;
  cost.sms_held = sms;
  return cost;
}

/// Untiled arithmetic, which takes 1 / (1 - held) times as long on the SMs that are left.
Cost kernel(std::int64_t us) {
  Cost cost;
  cost.duration = cost.compute = Time::from_us(static_cast<double>(us));
  return cost;
}

/// Holds of three streams, one after another on each, in a drawn order over the streams.
std::vector<Held> draw(Rng& rng) {
  std::vector<Held> out;
  std::vector<Time> free(4);
  for (int i = 0; i < 60; ++i) {
    const auto stream = static_cast<std::int32_t>(1 + rng.below(3));
    Time& at = free[static_cast<std::size_t>(stream)];
    const Time begin = at + Time{rng.below(3'000'000)};
    at = begin + Time{1 + rng.below(5'000'000)};
    out.push_back({stream, begin, at});
  }
  return out;
}

Holds opened(const std::vector<Held>& list) {
  Holds out;
  for (const Held& held : list) {
    out.open(held.stream, held.begin, holding(10 * held.stream));
    EXPECT_TRUE(out.is_open(held.stream));
    out.close(held.stream, held.end);
    EXPECT_FALSE(out.is_open(held.stream));
  }
  return out;
}

// What has ended before a kernel starts, begins after it has ended or is of its own stream changes
// nothing, however much of it there is; neither does the order in which streams are listed, nor
// forgetting.
TEST(Holds, ThatLieElsewhereChangeNothing) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Rng rng(seed);
    std::vector<Held> list = draw(rng);
    const Holds all = opened(list);
    const Time ready{rng.below(150'000'000)};
    const Cost cost = kernel(1 + rng.below(40));
    RatesBeside rates;
    const auto [end, certain] = all.end_beside(cost, kSms, kCompute, ready, rates);
    EXPECT_TRUE(certain) << seed;
    EXPECT_GE(end, ready + cost.duration) << seed;
    Holds forgotten = all;
    forgotten.forget(ready);
    EXPECT_EQ(forgotten.end_beside(cost, kSms, kCompute, ready, rates).end, end) << seed;
    std::erase_if(list,
                  [&, last = end](const Held& h) { return h.end <= ready || h.begin >= last; });
    std::stable_sort(list.begin(), list.end(),
                     [](const Held& a, const Held& b) { return a.stream < b.stream; });
    EXPECT_EQ(opened(list).end_beside(cost, kSms, kCompute, ready, rates).end, end) << seed;
  }
}

// Two streams that hold 10 and 20 of 100 SMs for the first 7 us: 10 us of work have 70 of them.
TEST(Holds, AddUp) {
  Holds holds;
  RatesBeside rates;
  holds.open(2, Time(), holding(20));
  holds.open(1, Time(), holding(10));
  holds.open(3, Time::from_us(500), holding(90));
  EXPECT_FALSE(holds.end_beside(kernel(10), kSms, kCompute, Time(), rates).certain);
  holds.close(1, Time::from_us(7));
  holds.close(2, Time::from_us(7));
  const auto [end, certain] = holds.end_beside(kernel(10), kSms, kCompute, Time(), rates);
  EXPECT_TRUE(certain);
  EXPECT_NEAR(end.seconds(), (7 + (10 - 7 * 0.7)) * 1e-6, 1e-10);
}

}  // namespace
}  // namespace foretrain
