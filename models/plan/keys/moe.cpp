#include "models/plan/expert_plan.h"
#include "models/plan/keys/keys.h"

namespace foretrain {
namespace {

const Sets& of_deepseek() {
  static const Sets sets = {"model.preset=deepseek-v2", "model.num_hidden_layers=4",
                            "parallel.pipeline=1", "parallel.tensor=1", "parallel.expert=8"};
  return sets;
}

PlanKey::Idle if_no_capacity() {
  PlanKey::Idle out;
  out.why = "moe.routing is not capacity";
  out.base = {"model=qwen3-30b-a3b", "parallel.tensor=1", "parallel.pipeline=1",
              "parallel.expert=8"};
  out.holds = [](const KeyContext& c) { return c.plan.experts.routing != Routing::kCapacity; };
  return out;
}

}  // namespace

PlanKeys moe_keys() {
  return {
      PlanKey::choice<Routing>("moe.routing", kRoutingNames,
                               [](Request& r, auto v) { r.experts.routing = v; })
          .else_("natural")
          .says("How tokens choose experts: all get the same, as training leaves it, each a "
                "capacity that is padded or dropped.")
          .probe("balanced", of_deepseek()),
      PlanKey::choice<Dispatcher>("moe.dispatcher", kDispatcherNames,
                                  [](Request& r, auto v) { r.plan.experts.dispatcher = v; })
          .else_("alltoall")
          .says("Who brings tokens to their experts.")
          .alias({"moe_token_dispatcher_type"})
          .probe("allgather", of_deepseek())
          .probe("deepep", of_deepseek()),
      PlanKey::choice<int>("moe.dispatch_dtype", {"compute", "fp8"},
                           [](Request& r, int v) { r.plan.experts.cast_first = v == 1; })
          .else_("compute")
          .says("The type in which tokens travel.")
          .probe("fp8", with(of_deepseek(), {"cluster.preset=dgx-h100", "precision=fp8",
                                             "moe.dispatcher=deepep"})),
      PlanKey::count("moe.dispatcher_sms", [](Request& r, auto v) { r.experts.sms = v; })
          .range(1, 1024)
          .else_("20 of deepep, 16 of hybridep")
          .says("SMs that deepep and hybridep hold.")
          .probe("32", with(of_deepseek(), {"cluster.preset=dgx-h100", "moe.dispatcher=deepep",
                                            "overlap.passes=true", "batch.global=64"})),
      PlanKey::count("moe.min_capacity",
                     [](Request& r, auto v) { r.plan.experts.least_capacity = v; })
          .range(0, 1e6)
          .else_("0")
          .says("Least tokens of an expert under routing capacity.")
          .probe("100000", with(of_deepseek(), {"moe.routing=capacity"}))
          .idle(if_no_capacity()),
      PlanKey::choice<int>("moe.gate", {"indices", "masks"},
                           [](Request& r, int v) { r.plan.experts.masks = v == 1; })
          .else_("indices")
          .says("Whether tokens are picked by index or by products with dense masks.")
          .probe("masks", with(of_deepseek(), {"moe.routing=capacity"}))
          .idle(if_no_capacity()),
      PlanKey::flag("moe.router_fusion",
                    [](Request& r, bool v) { r.plan.experts.fused_router = v; })
          .else_("false")
          .says("One kernel scores tokens and chooses their experts, where PyTorch runs a row of "
                "them (Megatron-LM's --moe-router-fusion).")
          .alias({"moe_router_fusion"})
          .probe("true", of_deepseek()),
      PlanKey::number("moe.imbalance", [](Request& r, double v) { r.experts.imbalance = v; })
          .range(1, 1e3)
          .else_("what training with an auxiliary loss leaves")
          .says("Of routing natural: tokens of the busiest rank over the mean.")
          .probe("2", of_deepseek()),
      PlanKey::number("moe.capacity_factor",
                      [](Request& r, double v) { r.experts.capacity_factor = v; })
          .range(1e-3, 1e3)
          .else_("1")
          .says("Of routing capacity: tokens of every expert over the mean.")
          .probe("1.5", with(of_deepseek(), {"moe.routing=capacity"})),
      PlanKey("moe.load", KeyType::kAny,
              [](const PlanKey& key, JsonReader& reader, Request& out) {
                if (const Json* json = reader.take(key.name)) out.experts.load = *json;
              })
          .else_("none")
          .says("Of routing natural, in place of imbalance: shares of all experts, or {\"zipf\": "
                "a}.")
          .probe("{\"zipf\":0.3}", of_deepseek()),
  };
}

}  // namespace foretrain
