#include "models/plan/plan_recompute.h"

#include <string>
#include <utility>
#include <vector>

#include "models/plan/expert_plan.h"
#include "models/plan/plan_reading.h"
#include "models/plan/request.h"

namespace foretrain {
namespace {

bool knows_operations(const Model& model, const Plan& plan) {
  return model.gated() && model.position == Position::kRope && !model.has_experts() &&
         !model.is_latent() && !model.is_hybrid() && model.attention.plain() &&
         plan.attention != AttentionKernel::kUnfused && plan.context == 1 && !plan.in_grid();
}

/// A layer in parts.
void check_parts(const Model& model, const Plan& plan, Violations& out) {
  const Recompute& again = plan.recompute;
  if (again.parts == 1) return;
  constexpr const char* kKey = "recompute/co_shard";
  struct Divided {
    const char* name;
    std::int64_t width, context;
  };
  const std::int64_t context = plan.head_ranks();
  for (const Divided& cut : {Divided{"attention heads", model.heads, context},
                             Divided{"key-value heads", model.kv_heads, context},
                             Divided{"intermediate_size", model.intermediate, 1}}) {
    if (cut.width % (again.parts * plan.tensor * cut.context) == 0) continue;
    out.add(kKey, text(again.parts) + " parts" +
                      (plan.tensor > 1 ? " x tensor " + text(plan.tensor) : "") +
                      (cut.context > 1 ? " x context " + text(cut.context) : "") +
                      " do not divide the model's " + cut.name + " " + text(cut.width));
  }
  const bool modules = again.attention || again.mlp || again.operations || again.keeps();
  if (modules || again.layers >= 0 || again.layer_period > 1) {
    out.add(kKey,
            "parts are computed again in every layer: of the modules only layernorm and layer go "
            "with it, and neither keep, layers nor layer_period");
  }
  out.beside("recompute.co_shard",
             {{model.has_experts(), kKey, "experts"},
              {model.is_latent(), kKey, "latent attention"},
              {plan.in_grid(), "parallel/tensor_mode", "grids"},
              {plan.precision.low(), "precision", "less than 16 bits"},
              {plan.rings(), "overlap/tensor", "collectives in parts under their products"},
              {plan.overlap.tensor_slices > 1, "overlap/tensor_slices", "slices of a microbatch"}});
}

/// Blocks of layers that are computed again together.
void check_blocks(const Model& model, const Plan& plan, Violations& out) {
  const Recompute& again = plan.recompute;
  if (again.block_layers == 1 && !again.early) return;
  const bool blocks = again.block_layers != 1;
  const char* key = blocks ? "recompute/block_layers" : "recompute/early";
  const bool whole = again.layer && !again.attention && !again.norm && !again.mlp &&
                     !again.operations && !again.activation && !again.moe &&
                     !again.expert_activation && !again.shared_experts && !again.latent_up &&
                     !again.keeps();
  if (!whole) out.add(key, "goes with \"modules\": [\"layer\"] alone, and without keep");
  if (again.parts > 1 || again.layers >= 0 || again.layer_period > 1) {
    out.add(key, "goes with neither layers, layer_period nor co_shard");
  }
  out.beside(blocks ? "a block of recomputed layers" : "early recomputation",
             {{model.is_network(), key, "networks of layers"},
              {model.is_encoder_decoder(), key, "encoder-decoders"},
              {plan.precision.autocast, key, "kernels.autocast"},
              {plan.by_units(), key, "sharded gradients or parameters"},
              {plan.offload.activation_layers > 0, key, "offload.activation_layers"},
              {plan.overlap.tensor_slices > 1, key, "overlap.tensor_slices"},
              {plan.interleaves_pairs(), key, "passes that run as one"},
              {plan.forwards > 1, key, "passes that come back"}});
}

}  // namespace

void derive_recompute(const Request& request, const Model& model, Plan& plan) {
  Recompute& out = plan.recompute;
  const bool selective = request.recompute == NamedRecompute::kSelective;
  const bool operations =
      selective && request.selective_by_operations && knows_operations(model, plan);
  out.layer |= request.recompute == NamedRecompute::kFull || (out.keeps() && !out.any());
  out.operations |= operations;
  out.attention |= selective && !operations;
}

void check_recompute(const Model& model, const Plan& plan, Violations& out) {
  const Recompute& again = plan.recompute;
  check_parts(model, plan, out);
  check_blocks(model, plan, out);
  if ((again.layer_period > 1 || again.layers >= 0) && !again.any()) {
    out.add("recompute", "layers and layer_period need modules to recompute");
  }
  const bool parts = again.attention || again.norm || again.mlp || again.operations;
  if (again.keeps() && !again.layer) {
    out.add("recompute/keep", "needs \"layer\" among the modules");
  } else if (again.keeps() && parts) {
    out.add("recompute/keep", "goes with the module \"layer\" alone");
  }
  const bool other = model.has_experts() || model.is_latent() || model.is_hybrid() ||
                     !model.attention.plain() || plan.in_grid();
  if (again.keeps() && other) {
    out.add("recompute/keep",
            "is modelled for layers of attention and an MLP, without experts and latent "
            "attention, in tensor_mode 1d");
  }
  if (again.operations && !knows_operations(model, plan)) {
    out.add("recompute",
            "operations is modelled for layers with rotary positions, a gated MLP and fused "
            "attention, without experts, latent attention, context parallelism and grids");
  }
}

}  // namespace foretrain
