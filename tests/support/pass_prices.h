// Prices under which a pass of a layer takes a given time and nothing else takes any.
#pragma once

#include <algorithm>
#include <vector>

#include "sim/engine/replay.h"
#include "tests/support/small_plans.h"
#include "tests/support/test_prices.h"

namespace foretrain {

/// Of one layer: forward, gradients of inputs, of weights; of a message between stages.
struct PassDurations {
  Time forward, input_gradients, weight_gradients, transfer;
};

/// A vocabulary that no other matrix has, so that its gradient can be told from a layer's.
inline Model pass_model() {
  Model model = small_llama();
  model.vocabulary = 3072;
  return model;
}

/// The cores of attention make F and B cost something, the four gradients of a layer's matrices W.
class PassPrices : public TestPrices {
 public:
  explicit PassPrices(PassDurations d) : TestPrices(rates_of(d)), x_durations(d) {}
  Result<Cost> price(const Work& work, std::span<const PlacementId> placements) const override {
    Result<Cost> cost = TestPrices::price(work, placements);
    const auto* gemm = std::get_if<Gemm>(&work);
    if (gemm != nullptr && gemm->transpose_a && gemm->m != pass_model().vocabulary) {
      cost.value().compute = cost.value().duration = Time{x_durations.weight_gradients.ps / 4};
    }
    if (std::holds_alternative<P2PBatch>(work)) {
      cost.value().duration = cost.value().latency = x_durations.transfer;
    }
    return cost;
  }

 private:
  static Rates rates_of(const PassDurations& d) {
    Rates rates;
    rates.attention_forward = d.forward;
    rates.attention_backward = d.input_gradients;
    return rates;
  }
  PassDurations x_durations;
};

/// Time from the start of a rank's first op that takes at least `least` to the end of its last.
inline std::int64_t span_of(const std::vector<OpTimes>& ops, std::int64_t least) {
  std::int64_t first = -1;
  std::int64_t last = 0;
  for (const OpTimes& op : ops) {
    if (op.end.ps - op.start.ps < least) continue;
    first = first < 0 ? op.start.ps : std::min(first, op.start.ps);
    last = std::max(last, op.end.ps);
  }
  return last - first;
}

}  // namespace foretrain
