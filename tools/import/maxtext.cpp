// MaxText's YAML and flags, as src/maxtext/configs/base.yml has them.
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "tools/import/frameworks.h"

namespace foretrain {
namespace {

/// The product of a mesh's axes of these names, those that are open (-1) taken as 1.
std::int64_t axes(const Json& run, std::initializer_list<const char*> names) {
  std::int64_t out = 1;
  for (const char* name : names) {
    const std::int64_t one = whole_at(run, std::string("job.") + name, 1);
    if (one > 1 && out < (1 << 20)) out *= one;
  }
  return out;
}

struct Mesh {
  std::int64_t tensor, context, expert, pipeline, data, fsdp;
};

Mesh mesh_of(const Json& run) {
  return {axes(run, {"ici_tensor", "ici_tensor_transpose", "ici_tensor_sequence", "dcn_tensor"}),
          axes(run, {"ici_sequence", "ici_context", "dcn_context", "dcn_sequence"}),
          axes(run, {"ici_expert", "dcn_expert"}),
          axes(run, {"ici_pipeline", "dcn_pipeline"}),
          axes(run, {"ici_data", "dcn_data"}),
          axes(run, {"ici_fsdp", "ici_fsdp_transpose", "dcn_fsdp"})};
}

void finish_axes(const FinishContext& context, Draft& draft) {
  Json& run = draft.run;
  const Mesh mesh = mesh_of(run);
  conclude(draft, "ici_tensor_parallelism", "parallel.tensor", Json(mesh.tensor));
  conclude(draft, "ici_context_parallelism", "parallel.context", Json(mesh.context));
  conclude(draft, "ici_pipeline_parallelism", "parallel.pipeline", Json(mesh.pipeline));
  if (mesh.expert > 1) {
    conclude(draft, "ici_expert_parallelism", "parallel.expert", Json(mesh.expert));
  }
  if (mesh.pipeline == 1) erase_path(run, "parallel.virtual_pipeline");
  if (mesh.context == 1) {
    erase_path(run, "kernels.context");
  } else if (find_path(run, "kernels.context") == nullptr) {
    conclude(draft, "default of MaxText, without context_parallel_strategy", "kernels.context",
             Json("allgather"));
  }
  const std::int64_t ranks = data_ranks(draft, context.accelerators);
  // The fsdp axis is open unless it is given; what is left are replicas.
  std::int64_t fsdp = mesh.fsdp;
  const bool open = whole_at(run, "job.ici_fsdp", -1) <= 0;
  if (open)
    fsdp = std::max<std::int64_t>(1, ranks / std::max<std::int64_t>(1, mesh.data * mesh.expert));
  conclude(draft, "ici_fsdp_parallelism", "sharding.level", Json(fsdp > 1 ? "parameters" : "none"));
  if (fsdp > 1 && (!open || fsdp < ranks)) {
    conclude(draft, "ici_fsdp_parallelism", "sharding.group_size", Json(fsdp));
  }
}

void finish_batch_sizes(const FinishContext& context, Draft& draft) {
  Json& run = draft.run;
  const Json* value = find_path(run, "job.per_device");
  const double each = value == nullptr ? 1 : std::clamp(value->number(), 1e-6, 1e6);
  const double together = static_cast<double>(whole_at(run, "parallel.tensor", 1) *
                                              whole_at(run, "parallel.context", 1));
  const auto whole = [](double number) {
    return static_cast<std::int64_t>(std::max(1.0, std::round(std::min(number, 1e9))));
  };
  conclude(draft, "per_device_batch_size", "batch.micro", Json(whole(each * together)));
  const auto steps = static_cast<double>(whole_at(run, "batch.accumulation", 1));
  conclude(draft, "per_device_batch_size, gradient_accumulation_steps", "batch.global",
           Json(whole(each * static_cast<double>(context.accelerators) * std::max(1.0, steps))));
  erase_path(run, "batch.accumulation");
}

void finish_remat(Draft& draft) {
  const std::string policy = text_at(draft.run, "job.remat", "full");
  const std::pair<const char*, std::vector<const char*>> kept[] = {
      {"minimal", {"qkv", "projection", "up"}},
      {"minimal_with_context", {"qkv", "core_attn", "projection", "up"}},
      {"save_dot_with_context_except_mlp", {"qkv", "core_attn", "projection"}},
      {"save_dot_except_mlp", {"qkv", "projection"}},
      {"save_dot_except_mlpwi", {"qkv", "projection"}},
      {"save_qkv_proj", {"qkv"}},
      {"save_out_proj", {"projection"}}};
  for (const auto& [name, keep] : kept) {
    if (policy != name) continue;
    Json::Array list;
    for (const char* one : keep) list.emplace_back(one);
    return conclude(draft, "remat_policy", "recompute",
                    Json(Json::Object{{"modules", Json(Json::Array{Json("layer")})},
                                      {"keep", Json(std::move(list))}}));
  }
  if (policy != "full" && policy != "none") {
    draft.not_modelled.push_back(
        {"remat_policy: " + policy, "taken as full; recompute.keep lists what stays"});
  }
  conclude(draft, "remat_policy", "recompute", Json(policy == "none" ? "none" : "full"));
}

void finish_types(Draft& draft) {
  const std::string quantization = text_at(draft.run, "job.quantization", "none");
  const bool current = quantization == "fp8-current";
  std::string compute =
      quantization == "none" ? text_at(draft.run, "job.dtype", "bf16") : quantization;
  if (current) compute = "fp8";
  conclude(draft, "dtype, quantization", "precision", Json(compute));
  if (current) conclude(draft, "quantization", "kernels.fp8_recipe", Json("current"));
}

/// Sizes of base.yml, where neither a name nor a size is given.
void add_base_sizes(Json& run) {
  constexpr std::pair<const char*, int> kBase[] = {
      {"hidden_size", 2048},       {"num_attention_heads", 16}, {"num_key_value_heads", 16},
      {"intermediate_size", 7168}, {"num_hidden_layers", 16},   {"head_dim", 128},
      {"vocab_size", 32000}};
  for (const auto& [key, value] : kBase) {
    const std::string path = std::string("model.") + key;
    if (find_path(run, path) == nullptr) set_path(run, path, Json(value));
  }
}

void finish_model(Draft& draft) {
  Json& run = draft.run;
  add_base_sizes(run);
  const bool gpt3 = text_at(run, "job.block") == "gpt3";
  set_path(run, "model.norm", Json(gpt3 ? "layer-norm" : "rms-norm"));
  set_path(run, "model.position", Json(gpt3 ? "learned" : "rope"));
  set_path(run, "model.bias", Json(gpt3));
  if (gpt3 && find_path(run, "model.max_position_embeddings") == nullptr) {
    set_path(run, "model.max_position_embeddings", Json(whole_at(run, "batch.sequence", 2048)));
  }
  if (find_path(run, "model.tie_word_embeddings") == nullptr) {
    set_path(run, "model.tie_word_embeddings", Json(false));
  }
  const Json* list = find_path(run, "job.activations");
  const std::string acts = list == nullptr ? "silu,linear" : dump_json(*list, -1);
  const bool gated = acts.find("linear") != std::string::npos;
  const bool gelu = acts.find("gelu") != std::string::npos;
  const bool relu = acts.find("relu") != std::string::npos && !gelu;
  set_path(run, "model.activation",
           Json(gelu   ? (gated ? "geglu" : "gelu")
                : relu ? "relu"
                       : "swiglu"));
  if (whole_at(run, "model.num_experts", 1) <= 1) {
    erase_path(run, "model.num_experts");
    return;
  }
  if (whole_at(run, "model.moe_intermediate_size", -1) <= 0) {
    set_path(run, "model.moe_intermediate_size", *find_path(run, "model.intermediate_size"));
  }
  const std::int64_t shared = whole_at(run, "job.shared_experts", 0);
  if (shared > 0) {
    set_path(run, "model.shared_expert_intermediate_size",
             Json(shared * whole_at(run, "model.moe_intermediate_size", 1)));
  }
  const std::int64_t dense = whole_at(run, "job.dense_layers", 0);
  const std::int64_t layers = whole_at(run, "model.num_hidden_layers", 1);
  if (dense <= 0 || layers > (1 << 14)) return;
  Json::Array sparse;
  for (std::int64_t layer = 0; layer < layers; ++layer) sparse.emplace_back(layer >= dense ? 1 : 0);
  set_path(run, "model.moe_layers", Json(std::move(sparse)));
}

}  // namespace

void count_mesh(Draft& draft) {
  const Mesh mesh = mesh_of(draft.run);
  constexpr std::int64_t kMost = 1 << 20;
  std::int64_t ranks = 1;
  for (const std::int64_t axis :
       {mesh.tensor, mesh.context, mesh.pipeline, mesh.expert, mesh.data, mesh.fsdp}) {
    if (axis > kMost / ranks) return;
    ranks *= axis;
  }
  if (ranks > 1) set_path(draft.run, "job.world", Json(ranks));
}

Status finish_maxtext(const FinishContext& context, Draft& draft) {
  finish_axes(context, draft);
  finish_batch_sizes(context, draft);
  finish_remat(draft);
  finish_types(draft);
  const Json* factor = find_path(draft.run, "job.capacity_factor");
  if (factor != nullptr && factor->number() > 0) {
    const Json value = *factor;
    conclude(draft, "capacity_factor", "moe.capacity_factor", value);
    conclude(draft, "capacity_factor", "moe.routing", Json("capacity"));
  }
  const std::string name = text_at(draft.run, "job.model", "default");
  if (context.has_config || name == "default") {
    finish_model(draft);
    return ok_status();
  }
  return conclude_preset(context, name, draft);
}

}  // namespace foretrain
