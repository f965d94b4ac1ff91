#include "models/plan/keys/keys.h"

namespace foretrain {
namespace {

const std::vector<std::string>& names() {
  static const std::vector<std::string> all = {"fp32",          "tf32",  "fp16",  "bf16", "fp8",
                                               "fp8-blockwise", "mxfp8", "nvfp4", "int8"};
  return all;
}

PlanKey later_key(const std::string& path) {
  return PlanKey(path, KeyType::kAny, [](const PlanKey& key, JsonReader& reader, Request&) {
    const Json* found = reader.take(key.name);
    if (found == nullptr) return;
    reader.fail(key.name, "found " + describe(*found) + ", which is not modelled yet",
                ErrorKind::kUnsupported);
  });
}

bool autocasts(const KeyContext& c) { return c.plan.precision.autocast; }

const char* const kWideUnderAutocast = "under kernels.autocast parameters and gradients are fp32";
const Sets kAutocast = {"parallel.tensor=1", "kernels.autocast=true"};

}  // namespace

PlanKeys precision_keys() {
  const auto set = [](Request& r, NamedPrecision v) { r.precision = v; };
  return {
      PlanKey::choice<NamedPrecision>("precision", names(), set)
          .object_too()
          .fallback_to("bf16")
          .says("A name is the precision's compute; the other keys stay as the system has them.")
          .alias({"bf16"}, ": bf16")
          .alias({"fp16"}, ": fp16")
          .alias({"fp8"}, ": fp8")
          .alias({"dtype", "mixed_precision"})
          .value("bfloat16", "bf16")
          .value("float16", "fp16")
          .value("half", "fp16")
          .value("float32", "fp32")
          .value("bf16-mixed", "bf16")
          .value("16-mixed", "fp16")
          .value("fp4", "nvfp4")
          .value("e4m3", "fp8")
          .probe("fp32", {"kernels.attention=unfused"})
          .probe("tf32", {"kernels.attention=unfused", "precision=fp32"})
          .probe("fp8", {"cluster.preset=dgx-h100"}),
      PlanKey::choice<NamedPrecision>("precision.compute", names(), set)
          .else_("bf16")
          .says("The type that weights and activations are computed in; int8: forward products of "
                "8-bit integers, the rest in fp16.")
          .probe("fp16"),
      PlanKey::choice<int>("precision.gradients", {"fp32", "compute"},
                           [](Request& r, int v) { r.compute_gradients = v == 1; })
          .else_("as gradients.dtype says")
          .says("The type of gradients.")
          .probe("compute")
          .idle_if(
              [](const KeyContext& c) {
                return autocasts(c) && c.asks("precision", "gradients", Json("compute"));
              },
              kWideUnderAutocast, kAutocast),
      PlanKey::flag("precision.master_weights", [](Request& r, bool v) { r.master = v; })
          .else_("true in 16 bits and less")
          .says("An fp32 copy of the weights stands beside them.")
          .probe("false")
          .idle_if(autocasts, kWideUnderAutocast, kAutocast, "true"),
      later_key("precision.optimizer_states").says("Not modelled yet."),
      later_key("precision.communication").says("Not modelled yet."),
  };
}

}  // namespace foretrain
