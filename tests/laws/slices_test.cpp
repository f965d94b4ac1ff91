// Do tensor-parallel collectives of one slice travel under the products of the others?
#include <gtest/gtest.h>

#include "models/lower.h"
#include "sim/program/verify.h"
#include "tests/support/recording.h"
#include "tests/support/small_plans.h"
#include "tests/support/test_prices.h"

namespace foretrain {
namespace {

/// GEMMs and attention by their FLOPs, 1 ps each; a collective so long; all else free.
class SlicePrices : public TestPrices {
 public:
  explicit SlicePrices(Time collective) : TestPrices(by_flops()), x_collective(collective) {}
  Result<Cost> price(const Work& work, std::span<const PlacementId> places) const override {
    Result<Cost> cost = TestPrices::price(work, places);
    if (std::holds_alternative<Collective>(work)) {
      cost.value().duration = cost.value().latency = x_collective;
    }
    return cost;
  }

 private:
  static Rates by_flops() {
    Rates out;
    out.kiloflop = 1000;
    return out;
  }
  Time x_collective;
};

Plan plan_of(const Model& model, std::int64_t slices) {
  Plan plan = small_plan(model, {2, 1, 1, 1}, 2);
  plan.micro_batch = 4;
  plan.global_batch = 8;
  plan.overlap.tensor_slices = slices;
  return plan;
}

std::int64_t step_of(Model model, std::int64_t layers, std::int64_t slices, Time collective) {
  model.layers = layers;
  const Workload workload = lower(model, plan_of(model, slices));
  const Status status = verify(workload);
  EXPECT_TRUE(status.ok()) << status.error().message;
  SlicePrices prices(collective);
  const Result<Replayed> result = replay_all(workload, prices, true);
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? result.value().replay.end.ps : 0;
}

// A layer more takes its products' time: no collective is seen that is as long as one product of
// the MLP on a slice, which is less than what the other slices do meanwhile. Without slices all are
// seen but the part of the backward pass' that travels beside gradients of weights.
TEST(TensorSlices, CollectivesAreHidden) {
  for (const Model& model : {small_gpt(), small_llama()}) {
    for (const std::int64_t slices : {2, 4}) {
      const std::int64_t tokens = plan_of(model, slices).tokens() / slices;
      const Time some{2 * tokens * model.hidden * model.intermediate / 2};
      const auto two_layers = [&](std::int64_t n, Time collective) {
        return step_of(model, 6, n, collective) - step_of(model, 4, n, collective);
      };
      const std::int64_t work = two_layers(slices, Time{});
      EXPECT_EQ(two_layers(slices, some), work);
      EXPECT_EQ(two_layers(1, Time{}), work);
      EXPECT_GE(two_layers(1, some), work + 2 * 2 * 2 * some.ps);
    }
  }
}

// The same bytes in n times as many collectives.
TEST(TensorSlices, Volume) {
  const Model model = small_llama();
  for (const std::int64_t slices : {2, 4}) {
    const Workload whole = lower(model, plan_of(model, 1));
    const Workload cut = lower(model, plan_of(model, slices));
    for (const char* name :
         {"attention.reduce", "mlp.reduce", "attention.qkv.reduce", "mlp.up.reduce"}) {
      const std::vector<std::int64_t> sizes = collective_sizes(whole, name);
      EXPECT_EQ(sizes.size(), static_cast<std::size_t>(2 * model.layers));
      EXPECT_EQ(collective_sizes(cut, name),
                std::vector<std::int64_t>(sizes.size() * static_cast<std::size_t>(slices),
                                          sizes.front() / slices));
    }
  }
}

// Forward through two layers, slice and layer behind each name: what stands between a collective
// and the op that waits for it.
TEST(TensorSlices, Order) {
  Model model = small_llama();
  model.layers = 2;
  const Workload workload = lower(model, plan_of(model, 2));
  const Program& program = workload.programs[0];
  std::string out;
  for (const Call& call : program.calls) {
    const Segment& segment = program.segments[call.segment.index()];
    if (call.layer < 0 || call.microbatch > 0 || !segment.name.starts_with("layer forward")) {
      continue;
    }
    for (const Op& op : segment.ops) {
      for (const char* name : {"attention.core", "attention.reduce", "mlp.down", "mlp.reduce"}) {
        if (op.name != name) continue;
        out += op.name + " " + segment.name.back() + std::to_string(call.layer) + ", ";
      }
    }
  }
  EXPECT_EQ(out,
            "attention.core 00, attention.reduce 00, attention.core 10, attention.reduce 10, "
            "mlp.down 00, mlp.reduce 00, mlp.down 10, mlp.reduce 10, "
            "attention.core 01, attention.reduce 01, attention.core 11, attention.reduce 11, "
            "mlp.down 01, mlp.reduce 01, mlp.down 11, mlp.reduce 11, ");
}

}  // namespace
}  // namespace foretrain
