#include "models/plan_network.h"

#include <array>

namespace foretrain {

std::optional<Refusal> refused_network(const Model& model, const Plan& plan) {
  if (!model.is_network()) return std::nullopt;
  const auto unsupported = [](const char* place, const std::string& message) {
    return Refusal{place, message, ErrorKind::kUnsupported};
  };
  struct Degree {
    const char* place;
    std::int64_t value;
  };
  const std::array degrees = {Degree{"parallel/tensor", plan.tensor},
                              Degree{"parallel/pipeline", plan.pipeline},
                              Degree{"parallel/virtual_pipeline", plan.virtual_pipeline},
                              Degree{"parallel/context", plan.context}};
  for (const Degree& degree : degrees) {
    if (degree.value == 1) continue;
    return unsupported(degree.place, "found " + std::to_string(degree.value) +
                                         "; a model of layers is lowered for data parallelism "
                                         "alone, expected 1");
  }
  if (plan.by_units()) {
    return unsupported("sharding/level",
                       "a model of layers is lowered with level none and optimizer");
  }
  if (plan.precision.low()) {
    return unsupported("precision", "a model of layers is lowered in fp32, tf32, fp16 and bf16");
  }
  if (plan.recompute.any()) {
    return unsupported("recompute", "is not modelled for a model of layers; expected none");
  }
  if (plan.offload.activation_layers > 0) {
    return unsupported("offload/activation_layers", "is not modelled for a model of layers");
  }
  if (plan.splits_backward()) {
    return unsupported("schedule",
                       "gradients of weights in passes of their own are not modelled for a model "
                       "of layers; expected 1f1b or gpipe");
  }
  return std::nullopt;
}

}  // namespace foretrain
