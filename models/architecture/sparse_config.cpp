#include <algorithm>
#include <array>

#include "models/architecture/model_config.h"

namespace foretrain {
namespace {

/// What the code of a type with experts fixes rather than its file.
struct SparseType {
  const char* name;
  bool one_width = false;      ///< an expert is as wide as `intermediate_size` says
  bool always_shared = false;  ///< one expert more, which all tokens share
};
constexpr SparseType kTypes[] = {{"gpt2", true},
                                 {"mixtral", true},
                                 {"gpt_oss", true},
                                 {"grok-1", true},
                                 {"qwen2_moe"},
                                 {"qwen3_moe"},
                                 {"deepseek_v2"},
                                 {"deepseek_v3"},
                                 {"llama4_text", true, true},
                                 {"nemotron_h"},
                                 {"granitemoehybrid", true}};

const SparseType* sparse_type(const std::string& name) {
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&name](const SparseType& type) { return name == type.name; });
  return found == std::end(kTypes) ? nullptr : found;
}

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

/// Layers named one by one: those that keep their MLP, or those that have experts.
void read_layers(JsonReader& reader, Model& m) {
  for (const bool sparse : {false, true}) {
    const char* key = sparse ? "moe_layers" : "mlp_only_layers";
    const Json* json = reader.take(key);
    if (json == nullptr) continue;
    std::vector<bool> layers;
    for (std::int64_t l = 0; l < m.layers; ++l) layers.push_back(!sparse && m.sparse(l));
    bool good = json->array() != nullptr;
    for (std::size_t i = 0; good && i < json->array()->size(); ++i) {
      const auto* index = std::get_if<std::int64_t>(&(*json->array())[i].value);
      good = index != nullptr && *index >= 0 && *index < m.layers;
      if (good) layers[static_cast<std::size_t>(*index)] = sparse;
    }
    if (!good) {
      reader.fail(key, "found " + describe(*json) + ", expected a list of layers, from 0 to " +
                           std::to_string(m.layers - 1));
      return;
    }
    if (sparse || !json->array()->empty()) m.experts.layers = std::move(layers);
  }
}

void read_experts(const Json& json, JsonReader& reader, Model& m) {
  Experts& e = m.experts;
  const char* key = kExpertCounts.back();
  for (const char* name : kExpertCounts) {
    if (json.find(name) != nullptr) key = name;
  }
  reader.require(key, "a number of experts");
  reader.read(key, e.count, JsonReader::IntRange{1, 1 << 16});
  reader.require("num_experts_per_tok", "the experts of a token");
  reader.read("num_experts_per_tok", e.top_k, kConfigSize);
  e.width = m.intermediate;
  e.router_bias = m.attention_sinks = m.type == "gpt_oss";
  e.bias = e.router_bias || m.mlp_bias;
  const SparseType& type = *sparse_type(m.type);
  if (!type.one_width) reader.require("moe_intermediate_size", "the width of an expert");
  reader.read("moe_intermediate_size", e.width, kConfigSize);
  reader.read("intermediate_size_mlp", m.intermediate, kConfigSize);
  std::int64_t shared = type.always_shared ? 1 : 0;
  reader.read("n_shared_experts", shared, JsonReader::IntRange{0, 1 << 16});
  if (shared > 0 && m.type == "gpt2") {
    reader.fail("n_shared_experts", "shared experts with biases are not modelled",
                ErrorKind::kUnsupported);
  }
  e.shared_width = shared * e.width;
  for (const char* name : {"shared_expert_intermediate_size", "shared_intermediate_size",
                           "moe_shared_expert_intermediate_size"}) {
    reader.read(name, e.shared_width, JsonReader::IntRange{0, kConfigSize.high});
  }
  reader.read("first_k_dense_replace", e.first_dense, JsonReader::IntRange{0, kConfigSize.high});
  for (const char* name : {"decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step"}) {
    reader.read(name, e.step, kConfigSize);
  }
  reader.read("num_nextn_predict_layers", m.predict_layers, JsonReader::IntRange{0, 1 << 10});
  read_layers(reader, m);
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
  const bool by_key = type == "gpt2" || is_hybrid_type(type);
  if (!by_key) return sparse_type(type) != nullptr;
  const auto stated = [&](const char* key) {
    const Json* count = json.find(key);
    return count != nullptr && !(is_hybrid_type(type) && *count == Json(0));
  };
  return sparse_type(type) != nullptr &&
         std::any_of(kExpertCounts.begin(), kExpertCounts.end(), stated);
}

void read_sparse(const Json& json, JsonReader& reader, Model& model) {
  read_experts(json, reader, model);
  if (model.type.starts_with("deepseek")) read_latent(json, reader, model);
  if (model.type == "qwen2_moe") {
    model.notes.left_out.emplace_back("the gate of the shared experts, a number for each token");
  }
  for (const char* key : kRouting) reader.ignore(key);
  if (!model.gated() && model.activation != Activation::kRelu2 && model.type != "gpt2") {
    reader.fail("hidden_act",
                "experts of this activation are not modelled yet, but for silu and relu2",
                ErrorKind::kUnsupported);
  }
}

}  // namespace foretrain
