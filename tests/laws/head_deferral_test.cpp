// Do gradients of the output matrix that wait fill the last stage's cool-down?
#include <gtest/gtest.h>

#include <algorithm>

#include "models/lower.h"
#include "sim/program/memory.h"
#include "sim/program/verify.h"
#include "tests/support/pass_prices.h"
#include "tests/support/recording.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

using Ps = std::int64_t;

/// The gradient of the output matrix takes a given time as well.
class HeadPrices : public PassPrices {
 public:
  HeadPrices(PassDurations d, Time head) : PassPrices(d), x_head(head) {}
  Result<Cost> price(const Work& work, std::span<const PlacementId> placements) const override {
    Result<Cost> cost = PassPrices::price(work, placements);
    const auto* gemm = std::get_if<Gemm>(&work);
    if (gemm != nullptr && gemm->transpose_a && gemm->m == pass_model().vocabulary) {
      cost.value().compute = cost.value().duration = x_head;
    }
    return cost;
  }

 private:
  Time x_head;
};

Plan deferral_plan(const Model& model, std::int64_t p, std::int64_t m, std::int64_t deferral) {
  Plan plan = small_plan(model, {1, p, 1, 1}, m);
  plan.schedule = Schedule::k1F1B;
  plan.overlap.head_deferral = deferral;
  return plan;
}

Ps step_of(const Model& model, const Plan& plan, Ps f, Ps b, Ps head) {
  const Workload workload = lower(model, plan);
  const Status status = verify(workload);
  EXPECT_TRUE(status.ok()) << status.error().message;
  HeadPrices prices({Time{f / 2}, Time{b / 2}, Time{}, Time{}}, Time{head});
  const Result<Replayed> result = replay_all(workload, prices, true);
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? result.value().replay.end.ps : 0;
}

// With h of the matrix' gradient and d of m microbatches deferred the last stage gives its
// gradients at the pace F + B, then F + B + h; it ends when all of h is done, the first stage p - 1
// backward passes after the last gradients:
//     max((p - 1)(F + B) + m (F + B) + (m - d) h, (p - 1) F + m (F + B) + m h)
TEST(HeadDeferral, FillsTheCoolDown) {
  Model model = pass_model();
  constexpr Ps kF = 8'000'000;
  constexpr Ps kB = 16'000'000;
  for (const std::int64_t p : {2, 3, 4, 7}) {
    model.layers = 2 * p;
    for (const std::int64_t m : {p, 2 * p, 3 * p + 1}) {
      for (const Ps head : {0, 2'000'000, 6'000'000}) {
        for (const std::int64_t deferral : {std::int64_t{0}, std::int64_t{1}, m / 2, m, 5 * m}) {
          const std::int64_t now = m - std::min(deferral, m);
          const Ps first = (p - 1) * (kF + kB) + m * (kF + kB) + now * head;
          const Ps last = (p - 1) * kF + m * (kF + kB) + m * head;
          EXPECT_EQ(step_of(model, deferral_plan(model, p, m, deferral), kF, kB, head),
                    std::max(first, last))
              << p << " stages, " << m << " microbatches, " << deferral << " deferred";
        }
      }
    }
  }
}

// What waits are the logits' gradients and the head's input, for as many microbatches.
TEST(HeadDeferral, KeepsTheGradientsOfLogits) {
  const Model model = pass_model();
  const auto peak = [&model](std::int64_t deferral) {
    const Workload workload = lower(model, deferral_plan(model, 2, 8, deferral));
    return memory_peak(workload.programs.back()).bytes;
  };
  const Bytes all = peak(8);
  const Plan plan = deferral_plan(model, 2, 8, 0);
  const Bytes logits = 2 * plan.tokens() * model.vocabulary;
  EXPECT_GE(all - peak(4), 3 * logits);
  EXPECT_LE(all - peak(4), 5 * (logits + 2 * 2 * plan.tokens() * model.hidden));
}

}  // namespace
}  // namespace foretrain
