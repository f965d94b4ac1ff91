// Megatron-LM's script of a plan.
#include <algorithm>

#include "models/layers/layer.h"
#include "tools/import/export.h"

namespace foretrain {
namespace {

void put_experts(const Model& m, Sheet& sheet) {
  const Experts& e = m.experts;
  put(sheet, "model", "num_experts", Json(e.count));
  put(sheet, "model", "moe_router_topk", Json(e.top_k));
  put(sheet, "model", "moe_ffn_hidden_size", Json(e.width));
  put(sheet, "", "moe_grouped_gemm", Json(true));
  if (e.shared_width > 0) {
    put(sheet, "model", "moe_shared_expert_intermediate_size", Json(e.shared_width));
  }
  if (e.groups > 1) {
    put(sheet, "model", "moe_router_num_groups", Json(e.groups));
    put(sheet, "model", "moe_router_group_topk", Json(e.group_top_k));
  }
  std::string pattern;
  for (std::int64_t layer = 0; layer < m.layers;) {  // runs of layers that are alike
    std::int64_t end = layer;
    while (end < m.layers && m.sparse(end) == m.sparse(layer)) ++end;
    pattern += (pattern.empty() ? "" : "+") + std::string(m.sparse(layer) ? "[1]*" : "[0]*") +
               std::to_string(end - layer);
    layer = end;
  }
  if (m.sparse_layers() < m.layers) put(sheet, "model", "moe_layer_freq", Json(pattern));
  put(sheet, "parallel.expert_tensor", "expert_tensor_parallel_size",
      Json(sheet.run.plan.experts.tensor));
}

void put_attention(const Model& m, Sheet& sheet) {
  put(sheet, "model", "num_attention_heads", Json(m.heads));
  if (m.is_latent()) {
    put(sheet, "model", "multi_latent_attention", Json(true));
    if (m.latent.q_rank > 0) put(sheet, "model", "q_lora_rank", Json(m.latent.q_rank));
    put(sheet, "model", "kv_lora_rank", Json(m.latent.kv_rank));
    put(sheet, "model", "qk_head_dim", Json(m.latent.nope));
    put(sheet, "model", "qk_pos_emb_head_dim", Json(m.latent.rope));
    put(sheet, "model", "v_head_dim", Json(m.latent.value));
  } else {
    if (m.kv_heads != m.heads) {
      put(sheet, "model", "group_query_attention", Json(true));
      put(sheet, "model", "num_query_groups", Json(m.kv_heads));
    }
    if (m.head_dim * m.heads != m.hidden) put(sheet, "model", "kv_channels", Json(m.head_dim));
  }
  if (m.qk_norm) put(sheet, "model", "qk_layernorm", Json(true));
  const bool rope = m.position == Position::kRope;
  if (rope) put(sheet, "model", "position_embedding_type", Json("rope"));
  if (m.position == Position::kNone) put(sheet, "model", "position_embedding_type", Json("none"));
  if (rope && m.attention.rotary_share < 1) {
    put(sheet, "model", "rotary_percent", Json(m.attention.rotary_share));
  }
}

void put_model(Sheet& sheet) {
  const Model& m = sheet.run.model;
  put(sheet, "model", "num_layers", Json(m.layers));
  put(sheet, "model", "hidden_size", Json(m.hidden));
  put(sheet, "model", "ffn_hidden_size", Json(m.intermediate));
  put_attention(m, sheet);
  put(sheet, "model", "max_position_embeddings",
      Json(std::max(m.positions, sheet.run.plan.sequence_length)));
  put(sheet, "model", "tokenizer_type", Json("NullTokenizer"));
  put(sheet, "model", "vocab_size", Json(m.vocabulary));
  if (m.norm == Norm::kRmsNorm) put(sheet, "model", "normalization", Json("RMSNorm"));
  if (m.activation == Activation::kSwiglu) put(sheet, "model", "swiglu", Json(true));
  if (m.activation == Activation::kRelu2) put(sheet, "model", "squared_relu", Json(true));
  if (m.activation == Activation::kGeglu) put(sheet, "model", "quick_geglu", Json(true));
  const bool biases = m.biases.projection || m.biases.mlp;
  if (!biases) put(sheet, "model", "disable_bias_linear", Json(true));
  if (!biases && m.biases.qkv) put(sheet, "model", "add_qkv_bias", Json(true));
  if (!m.tied_embeddings) {
    put(sheet, "model", "untie_embeddings_and_output_weights", Json(true));
  }
  if (m.has_experts()) put_experts(m, sheet);
  if (m.predict_layers > 0) put(sheet, "model", "mtp_num_layers", Json(m.predict_layers));
  const DropoutRates rates = dropout_of(m, sheet.run.plan);
  put(sheet, "dropout", "hidden_dropout", Json(rates.hidden));
  put(sheet, "dropout", "attention_dropout", Json(rates.attention));
}

void put_precision(Sheet& sheet) {
  const std::string compute = compute_of(sheet.run);
  const bool fp16 = compute == "fp16";
  if (fp16) put(sheet, "precision", "fp16", Json(true));
  if (!fp16 && compute != "fp32" && compute != "tf32") put(sheet, "precision", "bf16", Json(true));
  const Precision& precision = sheet.run.plan.precision;
  if (compute == "fp8") {
    const std::string recipe = text_at(sheet.run.resolved, "kernels.fp8_recipe", "delayed");
    put(sheet, "precision", "fp8_format", Json("hybrid"));
    put(sheet, "kernels.fp8_recipe", "fp8_recipe",
        Json(recipe == "current" || recipe == "tensorwise" ? "tensorwise" : recipe));
    if (precision.fp8_primary_weights) {
      put(sheet, "kernels.fp8_weights", "fp8_param_gather", Json(true));
    }
  }
  if (compute == "fp8-blockwise" || compute == "mxfp8") {
    put(sheet, "precision", "fp8_format", Json("e4m3"));
    put(sheet, "precision", "fp8_recipe", Json(compute == "mxfp8" ? "mxfp8" : "blockwise"));
  }
  if (compute == "nvfp4") put(sheet, "precision", "fp4_format", Json("e2m1"));
  const bool wide = precision.gradients == DType::kFp32;
  if (!fp16 && !wide) put(sheet, "gradients.dtype", "grad_reduce_in_bf16", Json(true));
  if (fp16 && wide) {
    put(sheet, "gradients.dtype", "accumulate_allreduce_grads_in_fp32", Json(true));
  }
}

void put_recompute(Sheet& sheet) {
  const std::string name = recompute_of(sheet.run);
  if (name == "selective") {
    return put(sheet, "recompute", "recompute_granularity", Json("selective"));
  }
  if (name == "full") {
    put(sheet, "recompute", "recompute_granularity", Json("full"));
    put(sheet, "recompute", "recompute_method", Json("uniform"));
    return put(sheet, "recompute", "recompute_num_layers", Json(1));
  }
  if (name == "none") return;
  const Recompute& r = sheet.run.plan.recompute;
  if (r.layer) {
    put(sheet, "recompute", "recompute_granularity", Json("full"));
    const bool some = r.layers >= 0;
    put(sheet, "recompute", "recompute_method", Json(some ? "block" : "uniform"));
    return put(sheet, "recompute", "recompute_num_layers",
               Json(some ? r.layers / sheet.run.plan.virtual_pipeline
                         : std::max<std::int64_t>(1, r.block_layers)));
  }
  const Json* modules = find_path(sheet.run.resolved, "recompute.modules");
  if (modules == nullptr) return;
  put(sheet, "recompute", "recompute_granularity", Json("selective"));
  put(sheet, "recompute", "recompute_modules", *modules);
}

void put_dispatcher(Dispatcher dispatcher, Sheet& sheet) {
  const bool fused = dispatcher == Dispatcher::kDeepEp || dispatcher == Dispatcher::kHybridEp;
  const char* unfused = dispatcher == Dispatcher::kAllGather ? "allgather" : "alltoall";
  put(sheet, "moe.dispatcher", "moe_token_dispatcher_type", Json(fused ? "flex" : unfused));
  if (dispatcher == Dispatcher::kHybridEp) {
    put(sheet, "moe.dispatcher", "moe_flex_dispatcher_backend", Json("hybridep"));
  }
}

void put_parallel(Sheet& sheet) {
  const Run& run = sheet.run;
  const Plan& plan = run.plan;
  if (plan.sequence) put(sheet, "parallel.sequence", "sequence_parallel", Json(true));
  put(sheet, "batch.global", "global_batch_size", Json(plan.global_batch));
  if (plan.virtual_pipeline > 1) {
    const std::int64_t chunks = plan.chunks();
    sheet.settings.erase("num_virtual_stages_per_pipeline_rank");
    if (run.model.layers % chunks == 0) {
      put(sheet, "parallel.virtual_pipeline", "num_layers_per_virtual_pipeline_stage",
          Json(run.model.layers / chunks));
    } else {
      put(sheet, "parallel.virtual_pipeline", "num_virtual_stages_per_pipeline_rank",
          Json(plan.virtual_pipeline));
    }
  }
  const bool ends =
      run.model.layers % plan.chunks() != 0 && (run.model.layers + 2) % plan.chunks() == 0;
  if (ends) {
    for (const char* key :
         {"account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"}) {
      put(sheet, "parallel.pipeline_layout", key, Json(true));
    }
  }
  if (plan.sharding == Sharding::kGradients) {
    put(sheet, "sharding.level", "use_megatron_fsdp", Json(true));
    put(sheet, "sharding.level", "data_parallel_sharding_strategy", Json("optim_grads"));
  }
  if (plan.shard_group > 0 && plan.sharding != Sharding::kNone) {
    put(sheet, "sharding.group_size", "num_distributed_optimizer_instances",
        Json(plan.data / plan.shard_group));
  }
  if (run.model.has_experts()) put_dispatcher(plan.experts.dispatcher, sheet);
  const Json* share = find_path(run.resolved, "offload.device_share");
  const bool offloads = text_at(run.resolved, "offload.optimizer", "none") != "none";
  if (offloads && share != nullptr && share->number() > 0) {
    put(sheet, "offload.device_share", "optimizer_offload_fraction", Json(1 - share->number()));
  }
}

std::string dashed(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return key;
}

std::string words_of(const Json& value) {
  if (value.string() != nullptr) return *value.string();
  if (value.array() == nullptr) return dump_json(value, -1);
  std::string out;
  for (const Json& one : *value.array()) out += (out.empty() ? "" : " ") + words_of(one);
  return out;
}

}  // namespace

std::vector<LaunchFile> export_megatron(Sheet& sheet) {
  put_model(sheet);
  put_parallel(sheet);
  put_precision(sheet);
  put_recompute(sheet);
  const Cluster& cluster = sheet.run.cluster;
  const std::int64_t each =
      std::min<std::int64_t>(cluster.accelerators, cluster.accelerators_per_node);
  const std::int64_t nodes = (cluster.accelerators + each - 1) / each;
  std::string text =
      "#!/bin/bash\n# Written by `foretrain export`. Give the data, the tokenizer and "
      "where to save as arguments.\n";
  text += "GPUS_PER_NODE=" + std::to_string(each) + "\nNNODES=" + std::to_string(nodes) + "\n";
  text += "export CUDA_DEVICE_MAX_CONNECTIONS=1\n\nARGS=(\n";
  for (const auto& [key, value] : *sheet.settings.object()) {
    if (value == Json(false)) continue;  // flags that are absent
    text += "  --" + dashed(key) + (value == Json(true) ? "" : " " + words_of(value)) + "\n";
  }
  text +=
      ")\n\ntorchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py "
      "\"${ARGS[@]}\" \"$@\"\n";
  return {{"train.sh", text}};
}

}  // namespace foretrain
