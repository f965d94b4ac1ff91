#include "models/plan/plan_precision.h"

#include <string>

#include "models/plan/request.h"

namespace foretrain {
namespace {

void derive_scaling(JsonReader& run, Fp8Recipe recipe, Precision& precision) {
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

void derive_compute(NamedPrecision name, Precision& p) {
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

void derive_recipe(JsonReader& run, const Request& request, Precision& precision) {
  if (request.recipe) derive_scaling(run, *request.recipe, precision);
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

void check_autocast(const Model& model, const Plan& p, Violations& out) {
  const Recompute& again = p.recompute;
  const bool modules = again.norm || again.mlp || again.activation || again.operations ||
                       again.parts > 1 || again.keeps();
  constexpr const char* kKey = "kernels/autocast";
  out.beside("torch.autocast",
             {{p.precision.linear != p.precision.matrix, kKey, "linears in less than 16 bits"},
              {model.is_network(), kKey, "networks of layers"},
              {model.is_encoder_decoder(), kKey, "encoder-decoders"},
              {model.has_experts(), kKey, "experts"},
              {model.is_latent(), kKey, "latent attention"},
              {model.qk_norm, kKey, "norms of queries and keys"},
              {model.attention.sinks, kKey, "attention sinks"},
              {!model.attention.plain(), kKey, "gates of attention"},
              {model.ends.transform, kKey, "a transform before the output matrix"},
              {model.ends.embedding_width > 0, kKey, "tables narrower than the hidden width"},
              {model.ends.patch > 0, kKey, "patches of images"},
              {model.shared_norm, kKey, "one norm for both branches"},
              {model.predict_layers > 0, kKey, "multi-token prediction"},
              {p.tensor > 1, kKey, "tensor parallelism"},
              {p.context > 1, kKey, "context parallelism"},
              {p.sharding > Sharding::kOptimizer, kKey, "sharded gradients or parameters"},
              {p.shares_vocabulary(), kKey, "a vocabulary that all stages share"},
              {p.forwards > 1, kKey, "passes that come back"},
              {modules, kKey, "recomputation of parts of a layer other than attention's core"}});
}

void derive_autocast(Asked asked, const Model& model, Plan& plan, Violations& out) {
  Precision& p = plan.precision;
  if (asked == Asked::kNo || bits_of(p.compute) > 16) return;
  Violations why_not;
  check_autocast(model, plan, why_not);
  if (!why_not.empty()) {
    if (asked == Asked::kYes) out.append(why_not);
    return;
  }
  p.autocast = true;
  p.fuses_casts = plan.fusion == Fusion::kCompiled;
  p.compute = p.gradients = DType::kFp32;
  p.master = false;
}

namespace {

void check_fp8_primary_weights(const Model& model, const Plan& plan, Violations& out) {
  constexpr const char* kKey = "kernels/fp8_weights";
  if (!plan.precision.by_tensor()) {
    out.add(kKey,
            "needs precision fp8, with kernels.fp8_recipe delayed, current or tensorwise: one "
            "scale for a matrix");
  }
  if (!plan.precision.master) {
    out.add(kKey, "needs precision.master_weights, of which the update casts");
  }
  out.beside(
      "a copy of weights in fp8 alone",
      {{plan.by_units(), kKey, "sharding.level gradients and parameters"},
       {plan.offload.states(), kKey, "offload.optimizer"},
       {plan.reduces_to_owner(), kKey, "gradients.reduction reduce"},
       {plan.buckets.cut != Bucketing::kRanges, kKey, "gradients.bucketing other than ranges"},
       {model.is_network() || model.is_encoder_decoder(), kKey,
        "networks of layers and encoder-decoders"}});
}

}  // namespace

void derive_fp8_primary_weights(Asked asked, const Model& model, Plan& plan, Violations& out) {
  if (asked == Asked::kNo) return;
  Violations why_not;
  check_fp8_primary_weights(model, plan, why_not);
  plan.precision.fp8_primary_weights = why_not.empty();
  if (asked == Asked::kYes) out.append(why_not);
}

void check_precision(const Model& model, const Plan& plan, Violations& out) {
  if (!plan.precision.forward_only()) return;
  out.beside("int8", {{model.has_experts(), "precision", "experts"},
                      {model.is_latent(), "precision", "latent attention"},
                      {plan.tensor > 1, "parallel/tensor", "tensor parallelism"}});
}

}  // namespace foretrain
