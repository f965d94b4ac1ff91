#include "models/plan/plan_recompute.h"

#include <string>
#include <utility>
#include <vector>

#include "models/plan/expert_plan.h"
#include "models/plan/plan_reading.h"

namespace foretrain {
namespace {

const Flags<Recompute>& modules() {
  static const Flags<Recompute> all = {{"core_attn", &Recompute::attention},
                                       {"layernorm", &Recompute::norm},
                                       {"mlp", &Recompute::mlp},
                                       {"layer", &Recompute::layer},
                                       {"operations", &Recompute::operations},
                                       {"moe_act", &Recompute::expert_activation},
                                       {"moe", &Recompute::moe},
                                       {"shared_experts", &Recompute::shared_experts},
                                       {"mla_up_proj", &Recompute::latent_up}};
  return all;
}

const Flags<Recompute>& results() {
  static const Flags<Recompute> all = {{"qkv", &Recompute::keep_heads},
                                       {"core_attn", &Recompute::keep_core},
                                       {"projection", &Recompute::keep_projection},
                                       {"up", &Recompute::keep_up}};
  return all;
}

bool knows_operations(const Model& model, const Plan& plan) {
  return model.gated() && model.position == Position::kRope && !model.has_experts() &&
         !model.is_latent() && plan.attention != AttentionKernel::kUnfused && plan.context == 1 &&
         !plan.in_grid();
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

void read_recompute(JsonReader& run, bool operations, const Model& model, Plan& plan) {
  Recompute& out = plan.recompute;
  const Json* json = run.take("recompute");
  if (json == nullptr) return;
  if (json->object() == nullptr) {
    int choice = 0;
    run.read_choice("recompute", choice, {"none", "selective", "full"});
    out.layer = choice == 2;
    out.operations = choice == 1 && operations && knows_operations(model, plan);
    out.attention = choice == 1 && !out.operations;
    return;
  }
  JsonReader reader(*json, run.source(), run.pointer("recompute"));
  read_flags(reader, "modules", modules(), out,
             [&](const std::string& name) { check_expert_module(reader, name, model); });
  read_flags(reader, "keep", results(), out, [](const std::string&) {});
  if (out.keeps() && !out.any()) out.layer = true;
  reader.read("co_shard", out.parts, JsonReader::IntRange{1, 65536});
  reader.read("layers", out.layers, JsonReader::IntRange{0, kAnyCount.high});
  reader.read("layer_period", out.layer_period, kAnyCount);
  const Json* block = json->find("block_layers");
  if (block != nullptr && block->is_string() && reader.take("block_layers") != nullptr) {
    if (!(*block == Json("stage"))) {
      reader.fail("block_layers",
                  "found " + describe(*block) + ", expected a number of layers or \"stage\"");
    }
    out.block_layers = 0;
  } else {
    reader.read("block_layers", out.block_layers, kAnyCount);
  }
  reader.read("early", out.early);
  run.adopt(reader.finish());
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
  const bool other = model.has_experts() || model.is_latent() || plan.in_grid();
  if (again.keeps() && other) {
    return Refusal{
        "recompute/keep",
        "is modelled for models without experts and latent attention, in tensor_mode 1d"};
  }
  if (again.operations && !knows_operations(model, plan)) {
    return Refusal{"recompute",
                   "operations is modelled for layers with rotary positions, a gated MLP and fused "
                   "attention, without experts, latent attention, context parallelism and grids"};
  }
  return std::nullopt;
}

}  // namespace foretrain
