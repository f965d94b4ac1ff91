#include <algorithm>
#include <array>

#include "models/model_config.h"

namespace foretrain {
namespace {

/// Keys of hub files that choose among experts or weigh losses, but cost nothing.
constexpr std::array kRouting = {"norm_topk_prob",
                                 "scoring_func",
                                 "topk_method",
                                 "routed_scaling_factor",
                                 "aux_loss_alpha",
                                 "seq_aux",
                                 "ep_size",
                                 "router_aux_loss_coef",
                                 "router_jitter_noise",
                                 "output_router_logits",
                                 "rope_interleave",
                                 "experts_per_token",
                                 "swiglu_limit",
                                 "initial_context_length"};

/// Routing limited to groups of experts. Without the keys deepseek_v3 has 8 groups, 4 of which a
/// token reaches: the defaults of Hugging Face's configuration class.
void read_groups(const Json& json, JsonReader& reader, const std::string& type, Experts& e) {
  const auto given = [&](const char* key) {
    const Json* value = json.find(key);
    if (value != nullptr && value->is_null()) reader.ignore(key);
    return value != nullptr && !value->is_null();
  };
  const bool stated = given("n_group");
  if (!stated && type == "deepseek_v3" && e.count % 8 == 0) {
    e.groups = 8;
    e.group_top_k = 4;
  }
  if (stated) {
    reader.read("n_group", e.groups, kConfigSize);
    e.group_top_k = e.groups;
  }
  if (given("topk_group")) reader.read("topk_group", e.group_top_k, kConfigSize);
  if (e.groups > e.count || e.count % e.groups != 0) {
    reader.fail("n_group", std::to_string(e.groups) + " groups do not divide " +
                               std::to_string(e.count) + " experts");
  }
  if (e.group_top_k > e.groups) {
    reader.fail("topk_group", std::to_string(e.group_top_k) + " of " + std::to_string(e.groups) +
                                  " groups (n_group)");
  }
  if (e.top_k > e.group_top_k * (e.count / std::max<std::int64_t>(1, e.groups))) {
    reader.fail("topk_group", "the groups of a token hold fewer experts than num_experts_per_tok");
  }
}

void read_experts(const Json& json, JsonReader& reader, Model& m) {
  Experts& e = m.experts;
  const char* key = "n_routed_experts";
  for (const char* name : {"num_experts", "num_local_experts"}) {
    if (json.find(name) != nullptr) key = name;
  }
  reader.require(key, "a number of experts");
  reader.read(key, e.count, JsonReader::IntRange{1, 1 << 16});
  reader.require("num_experts_per_tok", "the experts of a token");
  reader.read("num_experts_per_tok", e.top_k, kConfigSize);
  e.width = m.intermediate;
  e.router_bias = m.attention_sinks = m.type == "gpt_oss";
  e.bias = e.router_bias || m.mlp_bias;
  const bool one_width = m.type == "mixtral" || m.type == "gpt_oss" || m.type == "gpt2";
  if (!one_width) reader.require("moe_intermediate_size", "the width of an expert");
  reader.read("moe_intermediate_size", e.width, kConfigSize);
  std::int64_t shared = 0;
  reader.read("n_shared_experts", shared, JsonReader::IntRange{0, 1 << 16});
  if (shared > 0 && m.type == "gpt2") {
    reader.fail("n_shared_experts", "shared experts with biases are not modelled",
                ErrorKind::kUnsupported);
  }
  e.shared_width = shared * e.width;
  reader.read("shared_expert_intermediate_size", e.shared_width,
              JsonReader::IntRange{0, kConfigSize.high});
  reader.read("first_k_dense_replace", e.first_dense, JsonReader::IntRange{0, kConfigSize.high});
  for (const char* name : {"decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step"}) {
    reader.read(name, e.step, kConfigSize);
  }
  reader.read("num_nextn_predict_layers", m.predict_layers, JsonReader::IntRange{0, 1 << 10});
  if (const Json* dense = reader.take("mlp_only_layers")) {
    if (dense->array() == nullptr || !dense->array()->empty()) {
      reader.fail("mlp_only_layers", "single layers without experts are not modelled yet",
                  ErrorKind::kUnsupported);
    }
  }
  if (e.top_k > e.count) {
    reader.fail("num_experts_per_tok",
                std::to_string(e.top_k) + " experts of " + std::to_string(e.count));
    return;
  }
  read_groups(json, reader, m.type, e);
}

void read_latent(const Json& json, JsonReader& reader, Model& m) {
  LatentAttention& l = m.latent;
  const Json* rank = json.find("q_lora_rank");
  if (rank != nullptr && rank->is_null()) reader.ignore("q_lora_rank");
  if (rank != nullptr && !rank->is_null()) reader.read("q_lora_rank", l.q_rank, kConfigSize);
  reader.require("kv_lora_rank", "the rank of keys and values");
  reader.read("kv_lora_rank", l.kv_rank, kConfigSize);
  l.nope = l.value = 128;
  l.rope = 64;
  reader.read("qk_nope_head_dim", l.nope, kConfigSize);
  reader.read("qk_rope_head_dim", l.rope, kConfigSize);
  reader.read("v_head_dim", l.value, kConfigSize);
  m.head_dim = l.nope + l.rope;
  m.kv_heads = m.heads;
}

}  // namespace

bool has_experts(const Json& json, const std::string& type) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    const Json* experts = json.find(key);
    if (type == "gpt2" && experts != nullptr) return true;
  }
  return type == "mixtral" || type == "qwen3_moe" || type == "deepseek_v2" ||
         type == "deepseek_v3" || type == "gpt_oss";
}

void read_sparse(const Json& json, JsonReader& reader, Model& model) {
  read_experts(json, reader, model);
  if (model.type.starts_with("deepseek")) read_latent(json, reader, model);
  for (const char* key : kRouting) reader.ignore(key);
  if (!model.gated() && model.type != "gpt2") {
    reader.fail("hidden_act", "experts that are not gated (silu) are not modelled yet",
                ErrorKind::kUnsupported);
  }
}

}  // namespace foretrain
