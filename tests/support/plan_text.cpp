// What tests print of plans and read from Programs.
#include <initializer_list>

#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

std::string text(std::int64_t value) { return std::to_string(value); }

std::string numbers(std::initializer_list<std::int64_t> values) {
  std::string out;
  for (const std::int64_t value : values) out += " " + text(value);
  return out;
}

std::string flags(std::initializer_list<bool> values) {
  std::string out;
  for (const bool value : values) out += value ? " 1" : " 0";
  return out;
}

std::string describe_experts(const Model& model, const Plan& plan) {
  if (!model.has_experts()) return "";
  const Experts& e = model.experts;
  const Recompute& r = plan.recompute;
  return " experts" +
         numbers({e.count, e.top_k, e.width, e.shared_width, e.first_dense, e.step,
                  plan.experts.expert, plan.experts.tensor,
                  static_cast<std::int64_t>(plan.experts.dispatcher),
                  static_cast<std::int64_t>(plan.experts.routing), model.predict_layers}) +
         (model.is_latent() ? " latent " + text(model.latent.q_rank) : "") +
         flags({r.moe, r.expert_activation, r.shared_experts, r.latent_up});
}

}  // namespace

std::vector<std::int64_t> collective_sizes(const Workload& workload, const std::string& name) {
  std::vector<std::int64_t> out;
  const Program& program = workload.programs[0];
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      if (op.name != name) continue;
      out.push_back(std::get<Collective>(program.works[op.work.index()]).count);
    }
  }
  return out;
}

std::string describe(const Model& model, const Plan& plan) {
  const auto n = text;
  std::string out =
      model.type + " layers " + n(model.layers) + " tensor " + n(plan.tensor) +
      (plan.in_grid() ? " in " + std::string(name_of(plan.tensor_mode)) : "") +
      (plan.sequence ? " sequence" : "") + " pipeline " + n(plan.pipeline) + " x " +
      n(plan.virtual_pipeline) + " context " + n(plan.context) +
      (plan.context_inner > 1 ? " inner " + n(plan.context_inner) : "") + " data " + n(plan.data) +
      " microbatches " + n(plan.microbatches()) + " schedule " +
      n(static_cast<int>(plan.schedule)) + " sharding " + n(static_cast<int>(plan.sharding)) +
      " reduction " + n(static_cast<int>(plan.reduction)) + " bucket " + n(plan.bucket_elements) +
      " cut " + n(static_cast<int>(plan.buckets.cut)) + (plan.buckets.copy ? " copied" : "") +
      (plan.buckets.last_pass_only ? "" : " every pass") +
      (plan.buckets.averages ? " divided" : "") + (plan.buckets.checks ? " checked" : "") +
      flags({plan.flat_update, plan.copies_master_to_model, plan.unscales, plan.sums_after_pass,
             plan.retain_outputs}) +
      " inner " + n(plan.buckets.inner_group) + " compression " +
      n(static_cast<int>(plan.buckets.compression)) + " order " + plan.rank_order.front() +
      " dropout " + (plan.dropout > 0 ? "on" : "off") + " overlap " + n(plan.overlap.tensor_slices);
  const Overlap& o = plan.overlap;
  out += flags({o.tensor, o.tensor_backward, o.pipeline, o.gradient_reduce, o.parameter_gather,
                o.expert, o.passes, o.post_validation});
  const Recompute& r = plan.recompute;
  out += " recompute" + flags({r.layer, r.attention, r.norm, r.mlp, r.activation, r.early_stop,
                               r.keep_heads, r.keep_core, r.keep_projection, r.keep_up});
  out += " parts " + n(r.parts) + " forwards " + n(plan.forwards) + " layout";
  for (const std::int64_t layers : plan.pipeline_layout) out += " " + n(layers);
  const Units& u = plan.units;
  out += " group " + n(plan.shards()) + " units" +
         numbers({u.layers, u.gathers_in_flight, static_cast<std::int64_t>(u.backward_prefetch),
                  u.persist_elements, u.reuse_elements, u.live_elements, u.inner_group,
                  u.chunk_elements, u.gather_elements}) +
         flags({u.reshard, u.reshard_last, u.forward_prefetch, u.narrow_shards, u.reduce_each,
                u.reduce_waits});
  out += describe_experts(model, plan);
  const Offload& away = plan.offload;
  out += " offload " + n(static_cast<int>(away.optimizer)) + " " +
         n(static_cast<int>(away.parameters)) + " " + n(away.activation_layers) +
         (away.activations == Memory::kStorage ? " stored" : "") +
         (away.delayed_update ? " delayed" : "") + (away.pageable ? " pageable" : "");
  return out + (model.tied_embeddings ? " tied" : "");
}

}  // namespace foretrain
