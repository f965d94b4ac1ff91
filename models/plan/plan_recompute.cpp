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
         !model.is_latent() && !model.is_hybrid() && plan.attention != AttentionKernel::kUnfused &&
         plan.context == 1 && !plan.in_grid();
}

/// What a layer in parts does not go with.
std::optional<Refusal> refused_parts(const Model& model, const Plan& plan) {
  const Recompute& again = plan.recompute;
  if (again.parts == 1) return std::nullopt;
  constexpr const char* kPlace = "recompute/co_shard";
  struct Divided {
    const char* name;
    std::int64_t width, context;
  };
  const std::int64_t context = plan.head_ranks();
  for (const Divided& cut : {Divided{"attention heads", model.heads, context},
                             Divided{"key-value heads", model.kv_heads, context},
                             Divided{"intermediate_size", model.intermediate, 1}}) {
    if (cut.width % (again.parts * plan.tensor * cut.context) == 0) continue;
    return Refusal{kPlace, text(again.parts) + " parts" +
                               (plan.tensor > 1 ? " x tensor " + text(plan.tensor) : "") +
                               (cut.context > 1 ? " x context " + text(cut.context) : "") +
                               " do not divide the model's " + cut.name + " " + text(cut.width)};
  }
  const bool modules = again.attention || again.mlp || again.operations || again.keeps();
  if (modules || again.layers >= 0 || again.layer_period > 1) {
    return Refusal{kPlace,
                   "parts are computed again in every layer: of the modules only layernorm and "
                   "layer go with it, and neither keep, layers nor layer_period"};
  }
  const auto no = [](const char* place, const std::string& what) {
    return Refusal{place, "recompute.co_shard is not modelled with " + what,
                   ErrorKind::kUnsupported};
  };
  if (model.has_experts()) return no(kPlace, "experts");
  if (model.is_latent()) return no(kPlace, "latent attention");
  if (plan.in_grid()) return no("parallel/tensor_mode", "grids");
  if (plan.precision.low()) return no("precision", "less than 16 bits");
  if (plan.rings()) return no("overlap/tensor", "collectives in parts under their products");
  if (plan.overlap.tensor_slices > 1) return no("overlap/tensor_slices", "slices of a microbatch");
  return std::nullopt;
}

/// What blocks of layers that are computed again together do not go with.
std::optional<Refusal> refused_blocks(const Model& model, const Plan& plan) {
  const Recompute& again = plan.recompute;
  if (again.block_layers == 1 && !again.early) return std::nullopt;
  const bool blocks = again.block_layers != 1;
  const char* place = blocks ? "recompute/block_layers" : "recompute/early";
  const bool whole = again.layer && !again.attention && !again.norm && !again.mlp &&
                     !again.operations && !again.activation && !again.moe &&
                     !again.expert_activation && !again.shared_experts && !again.latent_up &&
                     !again.keeps();
  if (!whole) {
    return Refusal{place, "goes with \"modules\": [\"layer\"] alone, and without keep"};
  }
  if (again.parts > 1 || again.layers >= 0 || again.layer_period > 1) {
    return Refusal{place, "goes with neither layers, layer_period nor co_shard"};
  }
  struct Case {
    bool found;
    const char* what;
  };
  const Case cases[] = {
      {model.is_network(), "networks of layers"},
      {model.is_encoder_decoder(), "encoder-decoders"},
      {plan.precision.autocast, "kernels.autocast"},
      {plan.by_units(), "sharded gradients or parameters"},
      {plan.offload.activation_layers > 0, "offload.activation_layers"},
      {plan.overlap.tensor_slices > 1, "overlap.tensor_slices"},
      {plan.weaves(), "passes that run as one"},
      {plan.forwards > 1, "passes that come back"},
  };
  for (const Case& c : cases) {
    if (!c.found) continue;
    return Refusal{place, std::string("is not modelled with ") + c.what, ErrorKind::kUnsupported};
  }
  return std::nullopt;
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

std::optional<Refusal> refused_recompute(const Model& model, const Plan& plan) {
  const Recompute& again = plan.recompute;
  if (auto no = refused_parts(model, plan)) return no;
  if (auto no = refused_blocks(model, plan)) return no;
  if ((again.layer_period > 1 || again.layers >= 0) && !again.any()) {
    return Refusal{"recompute", "layers and layer_period need modules to recompute"};
  }
  if (again.keeps() && !again.layer) {
    return Refusal{"recompute/keep", "needs \"layer\" among the modules"};
  }
  const bool parts = again.attention || again.norm || again.mlp || again.operations;
  if (again.keeps() && parts) {
    return Refusal{"recompute/keep", "goes with the module \"layer\" alone"};
  }
  const bool other =
      model.has_experts() || model.is_latent() || model.is_hybrid() || plan.in_grid();
  if (again.keeps() && other) {
    return Refusal{"recompute/keep",
                   "is modelled for layers of attention and an MLP, without experts and latent "
                   "attention, in tensor_mode "
                   "1d"};
  }
  if (again.operations && !knows_operations(model, plan)) {
    return Refusal{"recompute",
                   "operations is modelled for layers with rotary positions, a gated MLP and fused "
                   "attention, without experts, latent attention, context parallelism and grids"};
  }
  return std::nullopt;
}

}  // namespace foretrain
