#include "models/plan/keys/keys.h"

namespace foretrain {
namespace {

const Sets& with_shared_experts() {
  static const Sets sets = {"model.preset=deepseek-v2", "model.num_hidden_layers=4",
                            "parallel.pipeline=1", "parallel.tensor=1", "parallel.expert=8"};
  return sets;
}

/// Collectives of a layer's linears go in parts under their GEMMs where tensor ranks cut tokens.
PlanKey::Idle if_no_sequence() {
  PlanKey::Idle out;
  out.why = "parallel.sequence is false";
  out.base = {"parallel.sequence=false"};
  out.holds = [](const KeyContext& c) { return !c.plan.sequence; };
  return out;
}

PlanKey idle_without_parts(PlanKey key) {
  return std::move(key)
      .idle_if([](const KeyContext& c) { return !c.plan.overlap.tensor; },
               "overlap.tensor is false", {}, key.type == KeyType::kFlag ? "true" : "4")
      .idle(if_no_tensor(with(kOneRankOfTwo, {"overlap.tensor=true"}),
                         key.type == KeyType::kFlag ? "true" : "4"));
}

}  // namespace

PlanKeys overlap_keys() {
  return {
      PlanKey::flag("overlap.tensor", [](Request& r, bool v) { r.plan.overlap.tensor = v; })
          .fallback_to(false)
          .says("With sequence: collectives of a layer's linears go in parts under their GEMMs.")
          .alias({"tp_comm_overlap"})
          .probe("true")
          .idle(if_no_tensor())
          .idle(if_no_sequence()),
      PlanKey::flag("overlap.tensor_backward",
                    [](Request& r, bool v) { r.plan.overlap.tensor_backward = v; })
          .fallback_to(true)
          .says("Collectives of a linear's backward pass run beside its GEMMs.")
          .probe("false")
          .idle(if_no_tensor()),
      asked_key("overlap.pipeline", [](Request& r, Asked v) { r.pipeline_overlap = v; })
          .fallback_to(true)
          .says("Messages between stages do not block, and receives are posted a pass early; "
                "auto: between several chunks of a stage.")
          .probe("true", {"launch.dispatch_us=1"})
          .idle(if_no_pipeline()),
      PlanKey::flag("overlap.gradient_reduce",
                    [](Request& r, bool v) { r.plan.overlap.gradient_reduce = v; })
          .fallback_to(false)
          .says("Gradients are reduced beside the backward pass.")
          .alias({"overlap_comm", "overlap_grad_reduce"})
          .probe("false")
          .idle_if([](const KeyContext& c) { return c.plan.by_units(); },
                   "the gradients of sharded units are reduced beside the passes, and waited for "
                   "with gradients.blocking",
                   kSharded),
      asked_key("overlap.parameter_gather", [](Request& r, Asked v) { r.parameter_gather = v; })
          .fallback_to(false)
          .says("What a sharded optimizer updated is gathered beside the next forward pass; auto: "
                "as gradient_reduce.")
          .alias({"overlap_param_gather"})
          .probe("false")
          .probe("auto", {"overlap.gradient_reduce=false", "overlap.parameter_gather=true"})
          .idle_if(
              [](const KeyContext& c) { return c.plan.shards_parameters() && !c.plan.persists(); },
              "sharded parameters are gathered for passes that need them", kSharded, "true")
          .idle_if([](const KeyContext& c) { return c.plan.sharding == Sharding::kNone; },
                   "sharding.level is none", {"sharding.level=none"}, "true"),
      PlanKey::flag("overlap.expert", [](Request& r, bool v) { r.plan.overlap.expert = v; })
          .fallback_to(false)
          .says("Shared experts run beside the exchanges of tokens.")
          .probe("true", with_shared_experts())
          .idle_if([](const KeyContext& c) { return c.model.experts.shared_width == 0; },
                   "the model has no shared experts")
          .idle_if(
              [](const KeyContext& c) {
                return c.plan.experts.dispatcher != Dispatcher::kAllToAll;
              },
              "moe.dispatcher is not alltoall",
              with(with_shared_experts(), {"moe.dispatcher=allgather"})),
      PlanKey::flag("overlap.passes", [](Request& r, bool v) { r.plan.overlap.passes = v; })
          .fallback_to(false)
          .says("The exchanges of tokens of one pass run beside another microbatch's.")
          .probe("true", with(with_shared_experts(), {"batch.global=64"})),
      PlanKey::count("overlap.tensor_slices",
                     [](Request& r, auto v) { r.plan.overlap.tensor_slices = v; })
          .range(1, 1024)
          .fallback_to(1)
          .says("Without sequence: parts of a microbatch that take turns in every layer.")
          .probe("2", {"parallel.sequence=false", "batch.micro=2"}),
      idle_without_parts(
          PlanKey::count("overlap.tensor_streams",
                         [](Request& r, auto v) { r.plan.overlap.tensor_streams = v; })
              .range(1, 64)
              .fallback_to(1)
              .says("Streams for the products of overlap.tensor's parts.")
              .probe("1", {"overlap.tensor=true"})),
      idle_without_parts(
          PlanKey::flag("overlap.tensor_copy_engines",
                        [](Request& r, bool v) { r.plan.overlap.tensor_copy_engines = v; })
              .fallback_to(false)
              .says("Copy engines move what overlap.tensor gathers.")
              .probe("false", {"overlap.tensor=true"})
              .idle_if([](const KeyContext& c) { return !c.nvidia; },
                       "messages hold no compute units on this device",
                       {"cluster.preset=mi300x", "overlap.tensor=true"}, "true")),
      PlanKey::flag("overlap.post_validation",
                    [](Request& r, bool v) { r.plan.overlap.post_validation = v; })
          .else_("false")
          .says("Stages hand the gradients' norm on and update; the next step validates.")
          .probe("true")
          .idle(if_no_pipeline())
          .idle_if(
              [](const KeyContext& c) {
                return c.plan.overlap.post_validation && !c.plan.validates_later();
              },
              "gradients are not clipped: there is nothing to validate", {"gradients.clip_norm=0"}),
      PlanKey::count("overlap.head_deferral",
                     [](Request& r, auto v) { r.plan.overlap.head_deferral = v; })
          .range(0, kMostCount)
          .else_("0")
          .says("Of the first so many microbatches the output matrix's gradients wait for the last "
                "stage's cool-down.")
          .probe("2")
          .idle(if_no_pipeline()),
  };
}

}  // namespace foretrain
