#include "models/plan/plan_precision.h"

#include <string>

#include "models/plan/request.h"

namespace foretrain {
namespace {

void settle_scaling(JsonReader& run, Fp8Recipe recipe, Precision& precision) {
  if (!precision.keeps_copies()) return run.fail("kernels/fp8_recipe", "needs an fp8 precision");
  if (precision.linear != DType::kFp8 || (precision.blocks && recipe != Fp8Recipe::kBlockwise)) {
    return run.fail("kernels/fp8_recipe",
                    "is a choice for precision fp8; fp8-blockwise, mxfp8 and nvfp4 say how they "
                    "are scaled");
  }
  precision.current_scaling = recipe == Fp8Recipe::kCurrent || recipe == Fp8Recipe::kTensorwise;
  // A scale along what a GEMM sums over, as that of a row is, does not do for the other GEMMs.
  precision.blocks |= recipe == Fp8Recipe::kRowwise || recipe == Fp8Recipe::kBlockwise;
}

}  // namespace

void settle_compute(NamedPrecision name, Precision& p) {
  using Name = NamedPrecision;
  const bool integers = name == Name::kInt8;
  p.compute = name <= Name::kTf32               ? DType::kFp32
              : name == Name::kFp16 || integers ? DType::kFp16
                                                : DType::kBf16;
  p.matrix = name == Name::kTf32 ? DType::kTf32 : p.compute;
  p.linear = name <= Name::kBf16    ? p.matrix
             : name == Name::kNvfp4 ? DType::kFp4
             : integers             ? DType::kInt8
                                    : DType::kFp8;
  p.blocks = name > Name::kFp8 && !integers;
  p.current_scaling = name == Name::kNvfp4;  // its blocks have a scale of the whole tensor above
  p.master = name > Name::kTf32;
}

void settle_recipe(JsonReader& run, const Request& request, Precision& precision) {
  if (request.recipe) settle_scaling(run, *request.recipe, precision);
  precision.one_copy = request.one_copy && precision.by_tensor();
  precision.cutlass = request.cutlass;
  if (request.cutlass && !(precision.blocks && precision.linear == DType::kFp8)) {
    run.fail("kernels/fp8_weight_gradient", "cutlass needs fp8 scaled by blocks (fp8-blockwise)");
  }
}

AttentionKernel attention_of(const Request& request) {
  const int generation = static_cast<int>(request.flash);
  if (request.attention != AttentionKernel::kFlash || generation == 0) return request.attention;
  return static_cast<AttentionKernel>(static_cast<int>(AttentionKernel::kFlash2) + generation - 1);
}

std::optional<Refusal> refused_autocast(const Model& model, const Plan& p) {
  const Recompute& again = p.recompute;
  const bool modules = again.attention || again.norm || again.mlp || again.activation ||
                       again.operations || again.parts > 1 || again.keeps();
  struct Case {
    bool found;
    const char* what;
  };
  const Case cases[] = {
      {p.precision.linear != p.precision.matrix, "linears in less than 16 bits"},
      {model.is_network(), "networks of layers"},
      {model.is_encoder_decoder(), "encoder-decoders"},
      {model.has_experts(), "experts"},
      {model.is_latent(), "latent attention"},
      {model.qk_norm, "norms of queries and keys"},
      {model.attention_sinks, "attention sinks"},
      {model.shared_norm, "one norm for both branches"},
      {model.predict_layers > 0, "multi-token prediction"},
      {p.tensor > 1, "tensor parallelism"},
      {p.context > 1, "context parallelism"},
      {p.sharding > Sharding::kOptimizer, "sharded gradients or parameters"},
      {p.shares_vocabulary(), "a vocabulary that all stages share"},
      {p.forwards > 1, "passes that come back"},
      {modules, "recomputation of less than whole layers"},
  };
  for (const Case& one : cases) {
    if (!one.found) continue;
    return Refusal{"kernels/autocast", std::string("is not modelled with ") + one.what,
                   ErrorKind::kUnsupported};
  }
  return std::nullopt;
}

std::optional<Refusal> settle_autocast(Asked asked, const Model& model, Plan& plan) {
  Precision& p = plan.precision;
  if (asked == Asked::kNo || bits_of(p.compute) > 16) return std::nullopt;
  if (auto no = refused_autocast(model, plan)) {
    return asked == Asked::kYes ? no : std::nullopt;
  }
  p.autocast = true;
  p.fuses_casts = plan.fusion == Fusion::kCompiled;
  p.compute = p.gradients = DType::kFp32;
  p.master = false;
  return std::nullopt;
}

namespace {

std::optional<Refusal> refused_low_weights(const Model& model, const Plan& plan) {
  const auto needs = [](const char* what) {
    return Refusal{"kernels/fp8_weights", std::string("needs ") + what};
  };
  const auto unsupported = [](const char* what) {
    return Refusal{"kernels/fp8_weights", std::string("is not modelled with ") + what,
                   ErrorKind::kUnsupported};
  };
  if (!plan.precision.by_tensor()) {
    return needs(
        "precision fp8, with kernels.fp8_recipe delayed, current or tensorwise: one scale "
        "for a matrix");
  }
  if (!plan.precision.master) return needs("precision.master_weights, of which the update casts");
  if (plan.by_units()) return unsupported("sharding.level gradients and parameters");
  if (plan.offload.states()) return unsupported("offload.optimizer");
  if (plan.to_owners()) return unsupported("gradients.reduction reduce");
  if (plan.buckets.cut != Bucketing::kRanges) {
    return unsupported("gradients.bucketing other than ranges");
  }
  if (model.is_network() || model.is_encoder_decoder()) {
    return unsupported("networks of layers and encoder-decoders");
  }
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> settle_low_weights(Asked asked, const Model& model, Plan& plan) {
  if (asked == Asked::kNo) return std::nullopt;
  if (auto no = refused_low_weights(model, plan)) return asked == Asked::kYes ? no : std::nullopt;
  plan.precision.low_weights = true;
  return std::nullopt;
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
