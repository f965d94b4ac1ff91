// Plans as documents: DeepSpeed's JSON, torchtitan's TOML, MaxText's and Composer's YAML.
#include <algorithm>
#include <cmath>

#include "tools/import/export.h"

namespace foretrain {
namespace {

bool needs_quotes(const std::string& text) {
  return text.empty() || !(value_of_word(text) == Json(text)) ||
         text.find_first_of(":#{}[],&*!|>'\"%@`") != std::string::npos || text == "no" ||
         text == "yes" || text == "on" || text == "off";
}

std::string scalar_of(const Json& value, bool quotes) {
  const std::string* text = value.string();
  if (text != nullptr && !quotes && !needs_quotes(*text)) return *text;
  return dump_json(value, -1);
}

void add_yaml(const Json& at, const std::string& indent, std::string& out) {
  for (const auto& [key, value] : *at.object()) {
    out += indent + key + ":";
    if (value.object() != nullptr) {
      out += "\n";
      add_yaml(value, indent + "  ", out);
    } else {
      out += " " + scalar_of(value, false) + "\n";
    }
  }
}

void add_toml(const Json& at, const std::string& path, std::string& out) {
  for (const auto& [key, value] : *at.object()) {
    if (value.object() == nullptr) out += key + " = " + scalar_of(value, true) + "\n";
  }
  for (const auto& [key, value] : *at.object()) {
    if (value.object() == nullptr) continue;
    const std::string name = path.empty() ? key : path + "." + key;
    out += "\n[" + name + "]\n";
    add_toml(value, name, out);
  }
}

constexpr const char* kHead = "# Written by `foretrain export`.\n";

/// Fewest data-parallel ranks that hold the same states: those of a group, or all.
std::int64_t group_of(const Plan& plan) {
  return plan.shard_group > 0 ? plan.shard_group : plan.data;
}

/// FSDP's strategy by its name in PyTorch.
const char* strategy_of(const Plan& plan) {
  switch (plan.sharding) {
    case Sharding::kNone:
      return "NO_SHARD";
    case Sharding::kOptimizer:
    case Sharding::kGradients:
      return "SHARD_GRAD_OP";
    case Sharding::kParameters:
      break;
  }
  return plan.shard_group > 0 && plan.shard_group < plan.data ? "HYBRID_SHARD" : "FULL_SHARD";
}

}  // namespace

Json nested(const Json& settings) {
  Json out{Json::Object{}};
  for (const auto& [key, value] : *settings.object()) set_path(out, key, value);
  return out;
}

std::string yaml_of(const Json& settings) {
  std::string out = kHead;
  add_yaml(nested(settings), "", out);
  return out;
}

std::string toml_of(const Json& settings) {
  std::string out = kHead;
  add_toml(nested(settings), "", out);
  return out;
}

std::vector<LaunchFile> export_deepspeed(Sheet& sheet) {
  const Run& run = sheet.run;
  const Plan& plan = run.plan;
  put(sheet, "batch.global", "train_batch_size", Json(plan.global_batch));
  put(sheet, "batch.micro", "train_micro_batch_size_per_gpu", Json(plan.micro_batch));
  sheet.settings.erase("gradient_accumulation_steps");
  const std::string compute = compute_of(run);
  put(sheet, "precision", "bf16.enabled", Json(compute == "bf16"));
  put(sheet, "precision", "fp16.enabled", Json(compute == "fp16"));
  if (plan.sharding == Sharding::kParameters) {
    put(sheet, "overlap.gradient_reduce", "zero_optimization.overlap_comm",
        Json(true_at(run.resolved, "overlap.gradient_reduce")));
  }
  const Json* share = find_path(run.resolved, "offload.device_share");
  if (text_at(run.resolved, "offload.optimizer", "none") != "none" && share != nullptr &&
      share->number() > 0) {
    put(sheet, "offload.device_share", "zero_optimization.offload_optimizer.ratio",
        Json(1 - share->number()));
  }
  // What the script that DeepSpeed starts is told, by the names of Hugging Face's arguments.
  Json arguments{Json::Object{}};
  Json document{Json::Object{}};
  for (const auto& [key, value] : *sheet.settings.object()) {
    const Json* row = sheet.table.row(key);
    const bool argument = row != nullptr && true_at(*row, "argument");
    (argument ? arguments : document).set(key, value);
  }
  arguments.set("model_max_length", Json(plan.sequence_length));
  const std::int64_t each =
      std::min<std::int64_t>(run.cluster.accelerators, run.cluster.accelerators_per_node);
  std::string text = "#!/bin/bash\n" + std::string(kHead) +
                     "# train.py is a script of Hugging Face's Trainer.\ndeepspeed --num_gpus " +
                     std::to_string(each) + " --num_nodes " +
                     std::to_string((run.cluster.accelerators + each - 1) / each) + " train.py";
  for (const auto& [key, value] : *arguments.object()) {
    text += " \\\n  --" + key + " " + scalar_of(value, false);
  }
  text += " \\\n  --deepspeed ds_config.json --model_name_or_path . \"$@\"\n";
  return {{"ds_config.json", dump_json(nested(document)) + "\n"},
          {"config.json", dump_json(config_of(run)) + "\n"},
          {"train.sh", text}};
}

std::vector<LaunchFile> export_torchtitan(Sheet& sheet) {
  const Run& run = sheet.run;
  const Plan& plan = run.plan;
  const std::string name = name_of_model(sheet);
  const std::size_t space = std::min(name.find(' '), name.size());
  put(sheet, "model", "model.name", Json(name.empty() ? "none" : name.substr(0, space)));
  put(sheet, "model", "model.flavor",
      Json(name.empty() ? "debugmodel" : name.substr(std::min(space + 1, name.size()))));
  const bool pipelined = plan.pipeline > 1;
  const std::int64_t ranks = plan.batch_ranks();
  put(sheet, "batch.micro", "training.local_batch_size",
      Json(pipelined ? plan.global_batch / ranks : plan.micro_batch));
  put(sheet, "batch.global", "training.global_batch_size", Json(plan.global_batch));
  const bool sharded = plan.sharding == Sharding::kParameters;
  const std::int64_t shard = sharded ? std::max<std::int64_t>(1, group_of(plan) / plan.context) : 1;
  put(sheet, "sharding.group_size", "parallelism.data_parallel_shard_degree", Json(shard));
  put(sheet, "sharding.group_size", "parallelism.data_parallel_replicate_degree",
      Json(std::max<std::int64_t>(1, ranks / shard)));
  if (pipelined) {
    put(sheet, "batch.micro", "parallelism.pipeline_parallel_microbatch_size",
        Json(plan.micro_batch));
    const std::string schedule = text_at(run.resolved, "schedule");
    const bool two = plan.virtual_pipeline == 2;
    put(sheet, "schedule", "parallelism.pipeline_parallel_schedule",
        Json(schedule == "gpipe"       ? "GPipe"
             : schedule == "zb-v"      ? "ZBVZeroBubble"
             : schedule == "dualpipev" ? "DualPipeV"
             : schedule == "bfs"       ? "LoopedBFS"
             : two                     ? "Interleaved1F1B"
                                       : "1F1B"));
  }
  const std::string recompute = recompute_of(run);
  put(sheet, "recompute", "activation_checkpoint.mode",
      Json(recompute.empty() ? "selective" : recompute));
  const Recompute& r = plan.recompute;
  if (recompute == "selective") {
    put(sheet, "recompute", "activation_checkpoint.selective_ac_option", Json("op"));
  } else if (recompute.empty() && r.layer) {
    put(sheet, "recompute", "activation_checkpoint.selective_ac_option",
        Json(std::to_string(r.layer_period)));
  }
  const std::string compute = compute_of(run);
  if (compute == "fp8") {
    put(sheet, "precision", "model.converters", Json(Json::Array{Json("float8")}));
    put(sheet, "kernels.fp8_recipe", "float8.recipe_name",
        Json(text_at(run.resolved, "kernels.fp8_recipe", "tensorwise")));
    if (text_at(run.resolved, "sharding.gather_dtype") == "fp8") {
      put(sheet, "sharding.gather_dtype", "float8.enable_fsdp_float8_all_gather", Json(true));
    }
  }
  if (compute == "mxfp8") {
    put(sheet, "precision", "model.converters", Json(Json::Array{Json("mx")}));
  }
  if (text_at(run.resolved, "kernels.optimizer") == "adam") {
    put(sheet, "kernels.optimizer", "optimizer.implementation", Json("foreach"));
  }
  if (text_at(run.resolved, "offload.parameters", "none") == "cpu") {
    put(sheet, "offload.parameters", "training.enable_cpu_offload", Json(true));
  }
  std::vector<LaunchFile> out = {{"train.toml", toml_of(sheet.settings)}};
  if (name.empty()) out.push_back({"config.json", dump_json(config_of(run)) + "\n"});
  return out;
}

namespace {

void put_mesh(Sheet& sheet) {
  const Plan& plan = sheet.run.plan;
  const std::int64_t fsdp = plan.sharding == Sharding::kNone ? 1 : group_of(plan);
  const std::int64_t expert = plan.experts.expert;
  std::int64_t data = plan.batch_ranks() * plan.context / std::max<std::int64_t>(1, fsdp);
  if (data % expert == 0) data /= expert;
  put(sheet, "parallel.tensor", "ici_tensor_parallelism", Json(plan.tensor));
  if (plan.context > 1)
    put(sheet, "parallel.context", "ici_context_parallelism", Json(plan.context));
  if (plan.pipeline > 1) {
    put(sheet, "parallel.pipeline", "ici_pipeline_parallelism", Json(plan.pipeline));
  }
  if (expert > 1) put(sheet, "parallel.expert", "ici_expert_parallelism", Json(expert));
  const bool open = plan.sharding != Sharding::kNone && plan.shard_group == 0;
  put(sheet, "sharding.group_size", "ici_fsdp_parallelism", Json(open ? -1 : fsdp));
  put(sheet, "sharding.group_size", "dcn_data_parallelism", Json(data));
}

void put_maxtext_model(Sheet& sheet) {
  const std::string name = name_of_model(sheet);
  if (!name.empty()) return put(sheet, "model", "model_name", Json(name));
  const Model& m = sheet.run.model;
  const std::pair<const char*, std::int64_t> sizes[] = {{"base_emb_dim", m.hidden},
                                                        {"base_num_query_heads", m.heads},
                                                        {"base_num_kv_heads", m.kv_heads},
                                                        {"base_mlp_dim", m.intermediate},
                                                        {"base_num_decoder_layers", m.layers},
                                                        {"head_dim", m.head_dim},
                                                        {"vocab_size", m.vocabulary}};
  for (const auto& [key, value] : sizes) put(sheet, "model", key, Json(value));
  const char* act = m.activation == Activation::kRelu                  ? "relu"
                    : m.gated() && m.activation == Activation::kSwiglu ? "silu"
                                                                       : "gelu";
  Json::Array acts{Json(act)};
  if (m.gated()) acts.emplace_back("linear");
  put(sheet, "model", "mlp_activations", Json(std::move(acts)));
  put(sheet, "model", "logits_via_embedding", Json(m.tied_embeddings));
  if (m.norm == Norm::kLayerNorm) put(sheet, "model", "decoder_block", Json("gpt3"));
  if (m.qk_norm) put(sheet, "model", "use_qk_norm", Json(true));
  if (!m.has_experts()) return;
  put(sheet, "model", "num_experts", Json(m.experts.count));
  put(sheet, "model", "num_experts_per_tok", Json(m.experts.top_k));
  put(sheet, "model", "base_moe_mlp_dim", Json(m.experts.width));
}

void put_remat(Sheet& sheet) {
  const std::string name = recompute_of(sheet.run);
  if (!name.empty()) return put(sheet, "recompute", "remat_policy", Json(name));
  const Recompute& r = sheet.run.plan.recompute;
  const bool up = r.keep_up;
  const char* policy = "full";
  if (r.keep_heads && r.keep_projection) {
    policy = up ? (r.keep_core ? "minimal_with_context" : "minimal")
                : (r.keep_core ? "save_dot_with_context_except_mlp" : "save_dot_except_mlp");
  } else if (r.keep_heads) {
    policy = "save_qkv_proj";
  } else if (r.keep_projection) {
    policy = "save_out_proj";
  }
  put(sheet, "recompute", "remat_policy", Json(policy));
}

}  // namespace

std::vector<LaunchFile> export_maxtext(Sheet& sheet) {
  const Plan& plan = sheet.run.plan;
  put_maxtext_model(sheet);
  put_mesh(sheet);
  const double each =
      static_cast<double>(plan.micro_batch) / static_cast<double>(plan.tensor * plan.context);
  put(sheet, "batch.micro", "per_device_batch_size", Json(each));
  const double all = each * static_cast<double>(plan.accelerators);
  const auto steps = static_cast<std::int64_t>(
      std::round(static_cast<double>(plan.global_batch) / std::max(all, 1e-9)));
  sheet.settings.erase("gradient_accumulation_steps");
  if (steps > 1) put(sheet, "batch.global", "gradient_accumulation_steps", Json(steps));
  put_remat(sheet);
  const std::string compute = compute_of(sheet.run);
  if (compute == "fp32" || compute == "fp16") {
    put(sheet, "precision", "dtype", Json(compute == "fp32" ? "float32" : "float16"));
  }
  if (compute == "int8" || compute == "fp8") put(sheet, "precision", "quantization", Json(compute));
  if (compute == "mxfp8") put(sheet, "precision", "quantization", Json("te_mxfp8"));
  const Json* factor = find_path(sheet.run.resolved, "moe.capacity_factor");
  if (plan.experts.routing == Routing::kCapacity && factor != nullptr) {
    put(sheet, "moe.capacity_factor", "capacity_factor", *factor);
  }
  return {{"train.yml", yaml_of(sheet.settings)}};
}

std::vector<LaunchFile> export_composer(Sheet& sheet) {
  const Run& run = sheet.run;
  const Model& m = run.model;
  put(sheet, "batch.micro", "device_train_microbatch_size", Json(run.plan.micro_batch));
  put(sheet, "batch.global", "global_train_batch_size", Json(run.plan.global_batch));
  put(sheet, "sharding.level", "fsdp_config.sharding_strategy", Json(strategy_of(run.plan)));
  std::vector<LaunchFile> out = {{"train.yaml", ""}};
  const bool gelu = m.activation == Activation::kGelu || m.activation == Activation::kGeluNew;
  const bool mpt = m.norm == Norm::kLayerNorm && gelu && !m.has_experts() &&
                   m.position != Position::kNone && !m.bidirectional && m.norms.plain();
  if (mpt) {
    put(sheet, "model", "model.name", Json("mpt_causal_lm"));
    put(sheet, "model", "model.d_model", Json(m.hidden));
    put(sheet, "model", "model.n_heads", Json(m.heads));
    put(sheet, "model", "model.n_layers", Json(m.layers));
    put(sheet, "model", "model.expansion_ratio",
        Json(static_cast<double>(m.intermediate) / static_cast<double>(m.hidden)));
    put(sheet, "model", "model.max_seq_len", Json(std::max(m.positions, run.plan.sequence_length)));
    put(sheet, "model", "model.vocab_size", Json(m.vocabulary));
    put(sheet, "model", "model.no_bias", Json(!m.biases.projection));
    put(sheet, "model", "model.tie_word_embeddings", Json(m.tied_embeddings));
    put(sheet, "model", "model.attn_config.alibi", Json(m.position == Position::kAlibi));
    put(sheet, "model", "model.attn_config.rope", Json(m.position == Position::kRope));
    if (m.kv_heads != m.heads) {
      put(sheet, "model", "model.attn_config.kv_n_heads", Json(m.kv_heads));
    }
  } else {
    put(sheet, "model", "model.name", Json("hf_causal_lm"));
    put(sheet, "model", "model.config_overrides.path", Json("config.json"));
    out.push_back({"config.json", dump_json(config_of(run)) + "\n"});
  }
  const std::string kernel = text_at(run.resolved, "kernels.attention", "flash");
  const std::string flash = text_at(run.resolved, "kernels.flash");
  put(sheet, "kernels.attention", "model.attn_config.attn_impl",
      Json(kernel == "unfused" ? "torch"
           : flash == "triton" ? "triton"
                               : "flash"));
  out.front().text = yaml_of(sheet.settings);
  return out;
}

}  // namespace foretrain
