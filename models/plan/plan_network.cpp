#include "models/plan/plan_network.h"

#include <array>

namespace foretrain {

void check_network(const Model& model, const Plan& plan, Violations& out) {
  if (!model.is_network() && !model.is_encoder_decoder()) return;
  const std::string what = model.is_network() ? "a model of layers" : "an encoder-decoder";
  struct Degree {
    const char* key;
    std::int64_t value;
  };
  const std::array degrees = {Degree{"parallel/tensor", model.is_network() ? plan.tensor : 1},
                              Degree{"parallel/pipeline", plan.pipeline},
                              Degree{"parallel/virtual_pipeline", plan.virtual_pipeline},
                              Degree{"parallel/context", plan.context}};
  for (const Degree& degree : degrees) {
    if (degree.value == 1) continue;
    out.unsupported(degree.key, "found " + std::to_string(degree.value) + "; " + what +
                                    " is lowered for data parallelism" +
                                    (model.is_network() ? "" : " and tensor parallelism") +
                                    " alone, expected 1");
  }
  if (plan.sequence) {
    out.unsupported("parallel/sequence", "is not modelled for " + what + ", expected false");
  }
  if (plan.sharding > Sharding::kOptimizer && model.is_network()) {
    out.unsupported("sharding/level", what + " is lowered with level none and optimizer");
  }
  if (plan.precision.low()) {
    out.unsupported("precision", what + " is lowered in fp32, tf32, fp16 and bf16");
  }
  Recompute whole;
  whole.layer = true;
  whole.early_stop = plan.recompute.early_stop;
  const bool layers = model.is_encoder_decoder() && plan.recompute == whole;
  if (plan.recompute.any() && !layers) {
    out.unsupported("recompute", "is not modelled for " + what + "; expected none" +
                                     (model.is_network() ? "" : " or full"));
  }
  if (plan.offload.activation_layers > 0) {
    out.unsupported("offload/activation_layers", "is not modelled for " + what);
  }
  if (plan.splits_backward()) {
    out.unsupported("schedule",
                    "gradients of weights in passes of their own are not modelled for " + what +
                        "; expected 1f1b or gpipe");
  }
}

}  // namespace foretrain
