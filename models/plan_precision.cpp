#include "models/plan_precision.h"

namespace foretrain {
namespace {

void read_scaling(JsonReader& kernels, Precision& precision) {
  enum : int { kDelayed, kCurrent, kTensorwise, kRowwise, kBlockwise };
  const bool given = kernels.has("fp8_recipe");
  int recipe = kDelayed;
  kernels.read_choice("fp8_recipe", recipe,
                      {"delayed", "current", "tensorwise", "rowwise", "blockwise"});
  if (!given) return;
  if (!precision.keeps_copies()) return kernels.fail("fp8_recipe", "needs an fp8 precision");
  if (precision.linear != DType::kFp8 || (precision.blocks && recipe != kBlockwise)) {
    return kernels.fail("fp8_recipe",
                        "is a choice for precision fp8; fp8-blockwise, mxfp8 and nvfp4 say how "
                        "they are scaled");
  }
  precision.current_scaling = recipe == kCurrent || recipe == kTensorwise;
  // A scale along what a GEMM sums over, as that of a row is, does not do for the other GEMMs.
  precision.blocks |= recipe == kRowwise || recipe == kBlockwise;
}

}  // namespace

void read_recipe(JsonReader& kernels, Precision& precision) {
  kernels.read_enum("amax_reduction", precision.scales, {"none", "tensor", "stage"});
  read_scaling(kernels, precision);
  int maker = 0;
  kernels.read_choice("fp8_weight_gradient", maker, {"vendor", "cutlass"});
  precision.cutlass = maker == 1;
  if (maker == 1 && !(precision.blocks && precision.linear == DType::kFp8)) {
    kernels.fail("fp8_weight_gradient", "cutlass needs fp8 scaled by blocks (fp8-blockwise)");
  }
}

std::optional<Refusal> refused_precision(const Model& model, const Plan& plan) {
  if (!plan.precision.forward_only()) return std::nullopt;
  const auto no = [](const char* place, const std::string& what) {
    return Refusal{place, "int8 is not modelled with " + what, ErrorKind::kUnsupported};
  };
  if (model.has_experts()) return no("precision", "experts");
  if (model.is_latent()) return no("precision", "latent attention");
  if (plan.tensor > 1) return no("parallel/tensor", "tensor parallelism");
  return std::nullopt;
}

}  // namespace foretrain
