#include "models/plan/keys/keys.h"

namespace foretrain {
namespace {

const Sets& in_fp8() {
  static const Sets sets = {"cluster.preset=dgx-h100", "precision=fp8"};
  return sets;
}

const Sets& of_latent_attention() {
  static const Sets sets = {"model.preset=deepseek-v2", "model.num_hidden_layers=4",
                            "parallel.pipeline=1", "parallel.tensor=1", "parallel.expert=8"};
  return sets;
}

/// Whether fused kernels are asked for and none of the model's attention is among what they lack.
bool has_fused_attention(const KeyContext& c) {
  return !c.model.is_latent() && !c.model.attention.sinks;
}

PlanKey::Idle if_not_by_tensor(std::string value) {
  PlanKey::Idle out;
  out.why = "nothing is in fp8 with one scale for a matrix";
  out.value = std::move(value);
  out.holds = [](const KeyContext& c) { return !c.plan.precision.by_tensor(); };
  return out;
}

bool differs_in_norms_alone(const KeyContext& c) {
  const bool differs = c.model.position == Position::kRope || c.model.gated();
  const Json* kernels = c.usual.find("kernels");
  const Json* usual = kernels == nullptr ? nullptr : kernels->find("fusion");
  return c.asks("kernels", "fusion", Json("norms")) && !differs && usual != nullptr &&
         *usual == Json("fused");
}

bool has_no_copies(const KeyContext& c) {
  const Plan& p = c.plan;
  return !(p.by_units() ? p.master_shards() : p.precision.master);
}

bool asks_for_fp8_weights(const KeyContext& c) {
  return !c.plan.precision.fp8_primary_weights && !c.asks("kernels", "fp8_weights", Json(false));
}

bool asks_for_autocast(const KeyContext& c) {
  return !c.plan.precision.autocast && !c.asks("kernels", "autocast", Json(false));
}

PlanKeys attention_keys() {
  return {
      PlanKey::choice<AttentionKernel>("kernels.attention", {"flash", "cudnn", "unfused"},
                                       [](Request& r, auto v) { r.attention = v; })
          .fallback_to("flash")
          .says("The attention kernel; a system's default that the device does not have gives way "
                "to flash, else to unfused.")
          .alias({"attn_implementation"})
          .alias({"use_flash_attn"}, ": flash")
          .value("fused", "cudnn")
          .probe("unfused"),
      PlanKey::choice<FlashKernel>("kernels.flash", {"newest", "flash2", "flash1", "triton"},
                                   [](Request& r, auto v) { r.flash = v; })
          .fallback_to("newest")
          .says("The generation of flash attention.")
          .probe("flash1"),
      PlanKey::names("kernels.fused_attention_lacks", {"sinks", "latent"},
                     [](Request& r, std::size_t index) {
                       static constexpr bool StoredScores::*kKinds[] = {&StoredScores::of_sinks,
                                                                        &StoredScores::of_latent};
                       r.plan.stored_scores.*kKinds[index] = true;
                     })
          .else_("none")
          .says("Kinds of attention that a release's fused kernels do not have: where nothing else "
                "is said such models store their scores.")
          .probe("[\"latent\"]", of_latent_attention())
          .idle_if(has_fused_attention, "the model's attention is none that such kernels lack"),
      PlanKey::choice<int>("kernels.attention_products", {"tensor-cores", "plain"},
                           [](Request& r, int v) { r.plain_products = v == 1; })
          .fallback_to("tensor-cores")
          .says("What an unfused attention's products run on; plain: batches of pointers in "
                "cuBLAS 11.0 (docs/prices.md).")
          .probe("plain", {"kernels.attention=unfused"})
          .idle_if(
              [](const KeyContext& c) { return c.plan.attention != AttentionKernel::kUnfused; },
              "kernels.attention is not unfused")
          .idle_if([](const KeyContext& c) { return c.plan.precision.matrix == DType::kFp32; },
                   "fp32 has no tensor cores", {"precision=fp32", "kernels.attention=unfused"}),
      PlanKey::choice<int>("kernels.image_layout", {"channels-last", "channels-first"},
                           [](Request& r, int v) { r.channels_first = v == 1; })
          .fallback_to("channels-last")
          .says("Order of images in memory; channels-first: 16-bit convolutions transpose.")
          .probe("channels-first",
                 {"model=resnet-50", "parallel.tensor=1", "parallel.pipeline=1",
                  R"(batch={"global":64})", "precision=fp16", "cluster.preset=dgx-1v"})
          .idle_if([](const KeyContext& c) { return !c.model.is_network(); },
                   "the model has no convolutions")
          .idle_if([](const KeyContext& c) { return c.plan.fusion == Fusion::kCompiled; },
                   "under kernels.compile compilers choose it",
                   {"model=resnet-50", "parallel.tensor=1", "parallel.pipeline=1",
                    R"(batch={"global":64})", "kernels.compile=true"})
          .idle_if([](const KeyContext& c) { return bits_of(c.plan.precision.matrix) != 16; },
                   "the precision is not one of 16 bits",
                   {"model=resnet-50", "parallel.tensor=1", "parallel.pipeline=1",
                    R"(batch={"global":64})", "precision=fp32"}),
      PlanKey::choice<Fusion>("kernels.fusion", {"fused", "eager", "norms"},
                              [](Request& r, auto v) { r.plan.fusion = v; })
          .fallback_to("fused")
          .says("How elementwise work is composed; norms: rotary embedding and gated activation "
                "alone are eager.")
          .probe("eager")
          .probe("norms", {"model=llama-3-8b"})
          .idle_if(differs_in_norms_alone,
                   "the model has no rotary embedding and no gated activation", {}, "norms"),
      PlanKey::choice<LossForm>("kernels.loss", {"fused", "parallel", "torch"},
                                [](Request& r, auto v) { r.plan.loss.form = v; })
          .fallback_to("fused")
          .says("The loss: one kernel a pass, Megatron-LM's operations, PyTorch's cross_entropy.")
          .probe("parallel")
          .probe("torch"),
      PlanKey::count("kernels.loss_chunks", [](Request& r, auto v) { r.plan.loss.chunks = v; })
          .range(0, 256)
          .else_("0")
          .says("Parts of a microbatch's tokens that head and loss take one after another, with "
                "their gradients, so that no more logits are stored; 0: whole.")
          .probe("4", {"parallel.pipeline=1"}),
      PlanKey::flag("kernels.compile", [](Request& r, bool v) { r.compile = v; })
          .fallback_to(false)
          .says("A compiler fuses elementwise work.")
          .alias({"compile", "torch_compile"})
          .probe("true"),
      asked_key("kernels.autocast", [](Request& r, Asked v) { r.autocast = v; })
          .fallback_to(false)
          .says("Linears compute in 16 bits on copies that are cast, all else in fp32; auto: where "
                "it is modelled (docs/plans.md).")
          .probe("true", {"parallel.tensor=1"})
          .probe("\"auto\"", {"parallel.tensor=1"})
          .idle_if(
              [](const KeyContext& c) {
                return asks_for_autocast(c) && bits_of(c.plan.precision.compute) > 16;
              },
              "the precision is not one of 16 bits",
              {"precision=fp32", "kernels.attention=unfused"})
          .idle_if(asks_for_autocast, "the plan is not one that it is modelled for", {}, "auto"),
      PlanKey::choice<int>("kernels.projections", {"packed", "separate"},
                           [](Request& r, int v) { r.plan.separate_projections = v == 1; })
          .else_("packed")
          .says("Whether queries, keys and values, and a gated MLP's halves, are linears of their "
                "own.")
          .probe("separate"),
      PlanKey::choice<int>("kernels.selective", {"attention", "operations"},
                           [](Request& r, int v) { r.selective_by_operations = v == 1; })
          .else_("attention")
          .says("What recompute selective means.")
          .probe("operations", {"model=llama-3-8b", "recompute=selective"}),
      PlanKey::choice<ContextExchange>("kernels.context",
                                       {"ring", "allgather", "alltoall", "ring_self"},
                                       [](Request& r, auto v) { r.context_exchange = v; })
          .else_("ring")
          .says("How queries meet the keys of other context ranks; ring_self: with attention "
                "unfused.")
          .probe("allgather", {"parallel.context=2"})
          .probe("alltoall", {"parallel.context=2"})
          .probe_set(R"(kernels={"context":"ring_self","attention":"unfused"})",
                     {"parallel.context=2"}),
  };
}

PlanKeys low_precision_keys() {
  return {
      asked_key("kernels.fp8_weights", [](Request& r, Asked v) { r.fp8_primary_weights = v; })
          .fallback_to(false)
          .says("Matrices scaled by tensor have no 16-bit values; auto: where it is modelled.")
          .probe("false", in_fp8())
          .probe("true", with(in_fp8(), {"system=megascale"}))
          .probe("\"auto\"", with(in_fp8(), {"system=megascale"}))
          .idle_if(
              [](const KeyContext& c) {
                return asks_for_fp8_weights(c) && !c.plan.precision.by_tensor();
              },
              "nothing is in fp8 with one scale for a matrix", {}, "auto")
          .idle_if(asks_for_fp8_weights, "the plan is not one that it is modelled for",
                   with(in_fp8(), {"gradients.bucketing=parameters", "gradients.bucket_mib=1",
                                   "sharding.level=none"}),
                   "auto"),
      PlanKey::choice<int>("kernels.fp8_copies", {"two", "one"},
                           [](Request& r, int v) { r.one_copy = v == 1; })
          .fallback_to("two")
          .says("Copies of an fp8 operand; one: products take it in either order.")
          .probe("one", in_fp8())
          .idle(if_not_by_tensor("one")),
      PlanKey::choice<int>("kernels.grouped_gemm", {"streams", "single"},
                           [](Request& r, int v) { r.plan.experts.single_kernel = v == 1; })
          .fallback_to("streams")
          .says("Whether the products of a rank's experts are GEMMs of their own or one kernel.")
          .probe("single",
                 {"model.preset=deepseek-v2", "model.num_hidden_layers=4", "parallel.pipeline=1",
                  "parallel.tensor=1", "parallel.expert=8", "cluster.preset=dgx-b200"})
          .idle(if_no_experts()),
      PlanKey::choice<int>("kernels.fp8_weight_gradient", {"vendor", "cutlass"},
                           [](Request& r, int v) { r.cutlass = v == 1; })
          .fallback_to("vendor")
          .says("Who makes the fp8 gradients of weights; cutlass: scaled by block, slower on "
                "Hopper.")
          .probe("cutlass", {"cluster.preset=dgx-h100", "precision=fp8-blockwise"}),
      PlanKey::flag("kernels.early_stop",
                    [](Request& r, bool v) { r.plan.recompute.early_stop = v; })
          .fallback_to(false)
          .says("Recomputing a layer ends at what gradients read.")
          .probe("true", {"recompute=full"})
          .idle_if([](const KeyContext& c) { return !c.plan.recompute.any(); },
                   "nothing is computed again"),
      PlanKey::choice<ScaleSharing>("kernels.amax_reduction", {"none", "tensor", "stage"},
                                    [](Request& r, auto v) { r.plan.precision.scales = v; })
          .fallback_to("none")
          .says("Who shares delayed scales of fp8.")
          .probe("none", in_fp8())
          .idle_if([](const KeyContext& c) { return !c.plan.precision.delayed(); },
                   "there are no delayed scales of fp8", {}, "stage"),
      PlanKey::choice<Optimizer>("kernels.optimizer",
                                 {"adam", "fused_adam", "lamb", "adafactor", "adam8bit", "sgd"},
                                 [](Request& r, auto v) { r.plan.optimizer = v; })
          .fallback_to("fused_adam")
          .says("The rule of the update; adam: PyTorch's for-each form.")
          .alias({"optimizer"})
          .value("adamw", "fused_adam")
          .value("AdamW", "fused_adam")
          .probe("adam")
          .probe("lamb")
          .probe("sgd")
          .probe("adam8bit")
          .probe("adafactor", {"sharding.level=none"}),
      PlanKey::choice<Fp8Recipe>("kernels.fp8_recipe",
                                 {"delayed", "current", "tensorwise", "rowwise", "blockwise"},
                                 [](Request& r, auto v) { r.recipe = v; })
          .else_("delayed")
          .says("How tensors of precision fp8 are scaled.")
          .probe("current", in_fp8()),
      PlanKey::choice<int>("kernels.weights_copy", {"fused", "apart"},
                           [](Request& r, int v) { r.plan.copies_master_to_model = v == 1; })
          .else_("fused")
          .says("Who writes the 16-bit weights: the update, or a copy from the fp32 ones after "
                "it.")
          .probe("fused")
          .idle_if(has_no_copies, "no fp32 copies of the weights are kept",
                   {"precision=fp32", "kernels.attention=unfused"})
          .idle_if(
              [](const KeyContext& c) {
                return c.plan.updates_on_host() && c.plan.offload.device_share == 0;
              },
              "the host writes both as it updates",
              with(kShardedGradients, {"offload.optimizer=cpu"})),
  };
}

}  // namespace

PlanKeys kernels_keys() {
  PlanKeys out = attention_keys();
  for (PlanKey& key : low_precision_keys()) out.push_back(std::move(key));
  return out;
}

}  // namespace foretrain
