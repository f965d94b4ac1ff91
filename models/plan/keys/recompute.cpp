#include "models/plan/keys/keys.h"

namespace foretrain {
namespace {

PlanKey set_key(const std::string& name, std::vector<std::string> names,
                std::vector<bool Recompute::*> flags) {
  return PlanKey::names("recompute." + name, std::move(names),
                        [flags = std::move(flags)](Request& r, std::size_t index) {
                          r.plan.recompute.*flags[index] = true;
                        });
}

void set_block(const PlanKey& key, JsonReader& reader, Request& out) {
  const Json* block = reader.take(key.name);
  if (block != nullptr && block->is_string()) {
    out.plan.recompute.block_layers = 0;
    if (*block == Json("stage")) return;
    return reader.fail(key.name,
                       "found " + describe(*block) + ", expected a number of layers or \"stage\"");
  }
  reader.read(key.name, out.plan.recompute.block_layers, JsonReader::IntRange{1, 1'000'000'000});
}

}  // namespace

PlanKeys recompute_keys() {
  using R = Recompute;
  const Sets full = {"recompute=full"};
  const std::string layer = R"(recompute={"modules":["layer"],)";
  return {
      PlanKey::choice<NamedRecompute>("recompute", {"none", "selective", "full"},
                                      [](Request& r, auto v) { r.recompute = v; })
          .object_too()
          .fallback_to("none")
          .says("What the backward pass computes again: nothing, the core of attention (or as "
                "kernels.selective says), whole layers.")
          .alias({"activation_checkpointing", "gradient_checkpointing", "recompute_granularity"},
                 ": none, selective, full")
          .alias({"recompute_activations"}, ": selective")
          .alias({"remat_policy"},
                 ": full, selective, none, or {\"keep\": [...]} for what is saved")
          .value("true", "full")
          .value("false", "none")
          .probe("selective", {"kernels.attention=unfused"})
          .probe("full"),
      set_key("modules",
              {"core_attn", "layernorm", "mlp", "layer", "operations", "moe_act", "moe",
               "shared_experts", "mla_up_proj"},
              {&R::attention, &R::norm, &R::mlp, &R::layer, &R::operations, &R::expert_activation,
               &R::moe, &R::shared_experts, &R::latent_up})
          .else_("none")
          .says("Modules whose activations are computed again; operations: all but what "
                "torchtitan's policy saves.")
          .alias({"recompute_modules"})
          .probe(R"(["layernorm"])")
          .probe(R"(["mlp"])")
          .probe(R"(["operations"])", {"model=llama-3-8b"}),
      set_key("keep", {"qkv", "core_attn", "projection", "up"},
              {&R::keep_heads, &R::keep_core, &R::keep_projection, &R::keep_up})
          .else_("none")
          .says("Results of a layer that is computed again which stay.")
          .probe(R"(["qkv"])"),
      PlanKey::count("recompute.co_shard", [](Request& r, auto v) { r.plan.recompute.parts = v; })
          .range(1, 65536)
          .else_("1")
          .says("Parts of every layer, one after the other, each computed again alone.")
          .probe("2")
          .probe("6", {"parallel.tensor=1"}),
      PlanKey::count("recompute.layers", [](Request& r, auto v) { r.plan.recompute.layers = v; })
          .range(0, kMostCount)
          .else_("all")
          .says("Only the first so many layers of every stage are computed again.")
          .probe_set(layer + R"("layers":1})", full),
      PlanKey::count("recompute.layer_period",
                     [](Request& r, auto v) { r.plan.recompute.layer_period = v; })
          .else_("1")
          .says("Only every so many-th layer is computed again.")
          .probe_set(layer + R"("layer_period":2})", full),
      PlanKey("recompute.block_layers", KeyType::kAny, set_block)
          .else_("1")
          .says("Layers of a chunk that are computed again one after the other before any goes "
                "back: a number, or \"stage\".")
          .alias({"recompute_num_layers"},
                 " where the method is uniform, recompute.layers where it is block")
          .probe_set(layer + R"("block_layers":2})", full),
      PlanKey::flag("recompute.early", [](Request& r, bool v) { r.plan.recompute.early = v; })
          .else_("false")
          .says("The first block is computed again before the gradient arrives.")
          .probe_set(layer + R"("early":true})", full)
          .idle(if_no_pipeline({"parallel.pipeline=1", R"(recompute={"modules":["layer"]})"},
                               "true")),
  };
}

}  // namespace foretrain
