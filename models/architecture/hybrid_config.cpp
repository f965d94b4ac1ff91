// Hybrids of state spaces and attention: what config.json says of their layers.
#include <algorithm>
#include <array>
#include <utility>

#include "models/architecture/model_config.h"

namespace foretrain {
namespace {

/// How the files of a type call what a state space has, and what stands where a key is absent.
struct HybridType {
  const char* name;
  const char *heads, *head_dim, *state, *groups, *taps, *chunk, *conv_bias, *bias;
  StateSpace fallback;
  bool one_sublayer;  ///< a layer is a mixer or a feed-forward
};

constexpr std::array kHybrids = {
    HybridType{"nemotron_h", "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups",
               "conv_kernel", "chunk_size", "use_conv_bias", "mamba_proj_bias",
               StateSpace{128, 64, 128, 8, 4, 128}, true},
    HybridType{"granitemoehybrid", "mamba_n_heads", "mamba_d_head", "mamba_d_state",
               "mamba_n_groups", "mamba_d_conv", "mamba_chunk_size", "mamba_conv_bias",
               "mamba_proj_bias", StateSpace{128, 0, 256, 1, 4, 256}, false},
    HybridType{"bamba", "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups",
               "mamba_d_conv", "mamba_chunk_size", "mamba_conv_bias", "mamba_proj_bias",
               StateSpace{128, 0, 256, 1, 4, 256}, false}};

const HybridType* hybrid_type(const std::string& name) {
  for (const HybridType& type : kHybrids) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

/// A letter of `hybrid_override_pattern` or a word of `layer_types` or `layers_block_type`.
bool read_kind(const std::string& name, const Model& model, bool one_sublayer, LayerKind& out) {
  const FeedForward behind = one_sublayer          ? FeedForward::kNone
                             : model.has_experts() ? FeedForward::kExperts
                                                   : FeedForward::kMlp;
  if (name == "M" || name == "mamba") {
    out = {Mixer::kMamba2, behind};
  } else if (name == "*" || name == "attention" || name == "full_attention") {
    out = {Mixer::kAttention, behind};
  } else if (one_sublayer && (name == "-" || name == "mlp")) {
    out = {Mixer::kNone, FeedForward::kMlp};
  } else if (one_sublayer && (name == "E" || name == "moe")) {
    out = {Mixer::kNone, FeedForward::kExperts};
  } else {
    return false;
  }
  return true;
}

/// The names of the layers: letters of a text, or words of a list.
std::vector<std::string> names_in(const Json& json) {
  std::vector<std::string> out;
  if (const std::string* letters = json.string()) {
    for (const char letter : *letters) out.emplace_back(1, letter);
  }
  if (const Json::Array* words = json.array()) {
    for (const Json& word : *words) {
      out.push_back(word.string() == nullptr ? describe(word) : *word.string());
    }
  }
  return out;
}

/// Bamba's key: the layers of attention, by number.
void read_indices(JsonReader& reader, const char* key, Model& m) {
  const Json* json = reader.take(key);
  LayerKind plain;
  if (m.has_experts()) plain.feed_forward = FeedForward::kExperts;
  LayerKind mamba = plain;
  mamba.mixer = Mixer::kMamba2;
  m.hybrid.layers.assign(static_cast<std::size_t>(std::max<std::int64_t>(0, m.layers)), mamba);
  const Json::Array* list = json->array();
  bool good = list != nullptr || json->is_null();
  for (std::size_t i = 0; good && list != nullptr && i < list->size(); ++i) {
    const auto* index = std::get_if<std::int64_t>(&(*list)[i].value);
    good = index != nullptr && *index >= 0 && *index < m.layers;
    if (good) m.hybrid.layers[static_cast<std::size_t>(*index)] = plain;
  }
  if (!good) {
    reader.fail(key, "found " + describe(*json) + ", expected a list of layers, from 0 to " +
                         std::to_string(m.layers - 1));
  }
}

void read_pattern(const Json& json, JsonReader& reader, bool one_sublayer, Model& m) {
  constexpr const char* kIndices = "attn_layer_indices";
  if (m.layers > (1 << 16)) return;  // the rules of sizes name it
  if (json.find(kIndices) != nullptr) return read_indices(reader, kIndices, m);
  std::string key = "layer_types";
  for (const char* name : {"hybrid_override_pattern", "layers_block_type"}) {
    if (json.find(name) != nullptr) key = name;
  }
  const Json* pattern = reader.require(key, "the kind of every layer");
  if (pattern == nullptr) return;
  reader.take(key);
  const std::vector<std::string> names = names_in(*pattern);
  if (static_cast<std::int64_t>(names.size()) != m.layers) {
    reader.fail(key, "found " + std::to_string(names.size()) + " kinds of layers, expected one " +
                         "for each of " + std::to_string(m.layers) + " layers");
    return;
  }
  for (const std::string& name : names) {
    LayerKind kind;
    if (!read_kind(name, m, one_sublayer, kind)) {
      reader.fail(key, "found the kind of layer \"" + name + "\", expected " +
                           (one_sublayer ? "M (mamba), * (attention), - (mlp) or E (moe)"
                                         : "mamba or attention"));
      return;
    }
    m.hybrid.layers.push_back(kind);
  }
}

void read_state_space(JsonReader& reader, const HybridType& type, Model& m) {
  StateSpace& s = m.hybrid.state_space;
  s = type.fallback;
  const std::pair<const char*, std::int64_t*> sizes[] = {
      {type.heads, &s.heads},   {type.head_dim, &s.head_dim}, {type.state, &s.state},
      {type.groups, &s.groups}, {type.taps, &s.taps},         {type.chunk, &s.chunk}};
  std::int64_t expand = 2;
  for (const char* name : {"expand", "mamba_expand"}) reader.read(name, expand, kConfigSize);
  for (const auto& [name, out] : sizes) {
    if (out == &s.head_dim && s.head_dim == 0 && s.heads > 0)
      s.head_dim = expand * m.hidden / s.heads;
    reader.read(name, *out, kConfigSize);
  }
  reader.read(type.conv_bias, s.conv_bias);
  reader.read(type.bias, s.bias);
  if (s.heads % s.groups != 0) {
    reader.fail(type.groups, std::to_string(s.groups) + " groups do not divide " +
                                 std::to_string(s.heads) + " heads of the state space");
  }
}

}  // namespace

bool is_hybrid_type(const std::string& type) { return hybrid_type(type) != nullptr; }

void read_hybrid(const Json& json, JsonReader& reader, Model& m) {
  const HybridType& type = *hybrid_type(m.type);
  read_state_space(reader, type, m);
  read_pattern(json, reader, type.one_sublayer, m);
  reader.read("attention_head_dim", m.head_dim, kConfigSize);
  if (!m.has_experts()) reader.read("shared_intermediate_size", m.intermediate, kConfigSize);
  if (const Json* positions = reader.take("position_embedding_type")) {
    if (*positions == Json(std::string("nope"))) m.position = Position::kNone;
  }
  for (const char* name :
       {"mamba_hidden_act", "mamba_ssm_cache_dtype", "use_mamba_kernels", "residual_in_fp32",
        "rescale_prenorm_residual", "num_logits_to_keep", "time_step_floor", "time_step_max",
        "time_step_min", "time_step_limit", "time_step_rank", "use_bias", "normalization_function",
        "attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier",
        "moe_shared_expert_overlap"}) {
    reader.ignore(name);
  }
}

}  // namespace foretrain
