// Hybrids of state spaces and attention: what config.json says of their layers.
#include <algorithm>
#include <array>
#include <utility>

#include "models/architecture/model_config.h"

namespace foretrain {
namespace {

/// A letter of `hybrid_override_pattern` or a word of `layer_types` or `layers_block_type`.
bool read_kind(const std::string& name, FeedForward behind, bool one_sublayer, LayerKind& out) {
  if (name == "M" || name == "mamba") {
    out = {Mixer::kMamba2, behind};
  } else if (name == "conv") {
    out = {Mixer::kConv, behind};
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

/// The layers of attention, by number; all others have the mixer `other`.
void read_indices(JsonReader& reader, const char* key, Mixer other, Model& m) {
  const Json* json = reader.take(key);
  std::vector<LayerKind> layers;
  for (std::int64_t l = 0; l < m.layers; ++l) layers.push_back({other, m.kind(l).feed_forward});
  m.hybrid.layers = std::move(layers);
  const Json::Array* list = json->array();
  bool good = list != nullptr || json->is_null();
  for (std::size_t i = 0; good && list != nullptr && i < list->size(); ++i) {
    const auto* index = std::get_if<std::int64_t>(&(*list)[i].value);
    good = index != nullptr && *index >= 0 && *index < m.layers;
    if (good) m.hybrid.layers[static_cast<std::size_t>(*index)].mixer = Mixer::kAttention;
  }
  if (!good) {
    reader.fail(key, "found " + describe(*json) + ", expected a list of layers, from 0 to " +
                         std::to_string(m.layers - 1));
  }
}

void read_pattern(const Json& json, JsonReader& reader, bool one_sublayer, Model& m) {
  constexpr std::int64_t kMostListed = 1 << 16;
  if (m.layers > kMostListed) {
    reader.fail("num_hidden_layers", "found " + std::to_string(m.layers) +
                                         " layers of several mixers, expected at most " +
                                         std::to_string(kMostListed));
    return;
  }
  constexpr std::pair<const char*, Mixer> kIndices[] = {{"attn_layer_indices", Mixer::kMamba2},
                                                        {"full_attn_idxs", Mixer::kConv}};
  for (const auto& [key, other] : kIndices) {
    if (json.find(key) != nullptr) return read_indices(reader, key, other, m);
  }
  const auto* const found =
      std::find_if(kLayerLists.begin(), kLayerLists.end(),
                   [&json](const char* name) { return json.find(name) != nullptr; });
  const std::string key = found == kLayerLists.end() ? kLayerLists.back() : *found;
  if (found == kLayerLists.end() && one_sublayer) {
    m.hybrid.layers.assign(static_cast<std::size_t>(m.layers),
                           {Mixer::kMamba2, FeedForward::kNone});
    return;  // a state space and nothing else
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
  for (std::size_t l = 0; l < names.size(); ++l) {
    const std::string& name = names[l];
    const FeedForward own = m.kind(static_cast<std::int64_t>(l)).feed_forward;
    LayerKind kind;
    if (!read_kind(name, one_sublayer ? FeedForward::kNone : own, one_sublayer, kind)) {
      reader.fail(key, "found the kind of layer \"" + name + "\", expected " +
                           (one_sublayer ? "M (mamba), * (attention), - (mlp) or E (moe)"
                                         : "mamba, conv or attention"));
      return;
    }
    m.hybrid.layers.push_back(kind);
  }
}

void read_state_space(const Json& json, const ModelType& type, JsonReader& reader, Model& m) {
  StateSpace& s = m.hybrid.state_space;
  double expand = 2;
  reader.read(key_of(json, type, "mamba_expand"), expand, JsonReader::Range{1.0 / 64, 64});
  const std::pair<const char*, std::int64_t*> sizes[] = {{"mamba_num_heads", &s.heads},
                                                         {"ssm_state_size", &s.state},
                                                         {"mamba_groups", &s.groups},
                                                         {"mamba_conv", &s.taps},
                                                         {"mamba_chunk_size", &s.chunk}};
  for (const auto& [name, out] : sizes) {
    const std::string key = key_of(json, type, name);
    reader.require(key, "a size of the state space");
    constexpr JsonReader::IntRange kTaps{1, 1 << 10};
    reader.read(key, *out, out == &s.taps ? kTaps : kConfigSize);
  }
  if (s.heads > 0)
    s.head_dim = static_cast<std::int64_t>(expand * static_cast<double>(m.hidden)) / s.heads;
  reader.read(key_of(json, type, "mamba_head_dim"), s.head_dim, kConfigSize);
  reader.read(key_of(json, type, "mamba_conv_bias"), s.conv_bias);
  reader.read(key_of(json, type, "mamba_proj_bias"), s.bias);
  if (s.heads % s.groups != 0) {
    reader.fail(key_of(json, type, "mamba_groups"),
                std::to_string(s.groups) + " groups do not divide " + std::to_string(s.heads) +
                    " heads of the state space");
  }
}

}  // namespace

void read_hybrid(const Json& json, const ModelType& type, bool one_sublayer, JsonReader& reader,
                 Model& m) {
  if (!m.has_experts()) {
    reader.read(key_of(json, type, "shared_expert_intermediate_size"), m.intermediate, kConfigSize);
  }
  read_pattern(json, reader, one_sublayer, m);
  const bool listed = static_cast<std::int64_t>(m.hybrid.layers.size()) == m.layers;
  if (!listed || m.has_mixer(Mixer::kMamba2)) read_state_space(json, type, reader, m);
  reader.read(key_of(json, type, "conv_taps"), m.hybrid.conv_taps,
              JsonReader::IntRange{1, 1 << 10});
  reader.read("conv_bias", m.hybrid.conv_bias);
  std::vector<LayerKind>& layers = m.hybrid.layers;
  const bool alike = std::all_of(layers.begin(), layers.end(), [](const LayerKind& kind) {
    return kind.mixer == Mixer::kAttention && kind.feeds();
  });
  if (!alike) return;
  layers.clear();  // a file of a hybrid's type that has none
}

}  // namespace foretrain
