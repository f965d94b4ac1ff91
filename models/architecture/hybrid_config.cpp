// Hybrids of state spaces and attention: what config.json says of their layers.
#include <algorithm>
#include <array>
#include <utility>

#include "models/architecture/model_config.h"

namespace foretrain {
namespace {

/// A letter of `hybrid_override_pattern` or a word of `layer_types` or `layers_block_type`.
bool read_kind(const std::string& name, const HybridForm& form, FeedForward behind,
               LayerKind& out) {
  if (name == "M" || name == "mamba" || name == "hybrid" || name == "recurrent") {
    out = {form.other, behind};
  } else if (name == "conv") {
    out = {Mixer::kConv, behind};
  } else if (name == "linear_attention") {
    out = {Mixer::kDelta, behind};
  } else if (name == "*" || name == "attention" || name == "full_attention") {
    out = {Mixer::kAttention, behind};
  } else if (form.one_sublayer && (name == "-" || name == "mlp")) {
    out = {Mixer::kNone, FeedForward::kMlp};
  } else if (form.one_sublayer && (name == "E" || name == "moe")) {
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

/// Layers of attention at a period: every so many-th, or those at a place of each period.
bool read_period(const Json& json, const HybridForm& form, JsonReader& reader, Model& m) {
  std::int64_t period = 0;
  std::int64_t place = 0;
  if (json.find("attn_layer_period") != nullptr) {
    reader.read("attn_layer_period", period, kConfigSize);
    reader.read("attn_layer_offset", place, JsonReader::IntRange{0, kConfigSize.high});
  } else if (json.find("full_attention_interval") != nullptr) {
    reader.read("full_attention_interval", period, kConfigSize);
    place = period - 1;
  }
  if (period == 0) return false;
  std::vector<LayerKind> layers;
  for (std::int64_t l = 0; l < m.layers; ++l) {
    const Mixer mixer = l % period == place ? Mixer::kAttention : form.other;
    layers.push_back({mixer, m.kind(l).feed_forward});
  }
  m.hybrid.layers = std::move(layers);
  return true;
}

/// The layers in the order in which the file lists them.
void read_listed(const std::string& key, const Json& pattern, const HybridForm& form,
                 JsonReader& reader, Model& m) {
  reader.take(key);
  const std::vector<std::string> names = names_in(pattern);
  if (static_cast<std::int64_t>(names.size()) != m.layers) {
    reader.fail(key, "found " + std::to_string(names.size()) + " kinds of layers, expected one " +
                         "for each of " + std::to_string(m.layers) + " layers");
    return;
  }
  std::vector<LayerKind> layers;
  for (std::size_t l = 0; l < names.size(); ++l) {
    const std::string& name = names[l];
    const FeedForward own = m.kind(static_cast<std::int64_t>(l)).feed_forward;
    LayerKind kind;
    if (!read_kind(name, form, form.one_sublayer ? FeedForward::kNone : own, kind)) {
      reader.fail(key, "found the kind of layer \"" + name + "\", expected " +
                           (form.one_sublayer ? "M (mamba), * (attention), - (mlp) or E (moe)"
                                              : "mamba, conv, linear_attention or attention"));
      return;
    }
    if (kind.sparse() && !m.has_experts()) {
      reader.fail(
          key, "layer " + std::to_string(l) + " is \"" + name + "\", and the model has no experts");
      return;
    }
    layers.push_back(kind);
  }
  m.hybrid.layers = std::move(layers);
}

void read_pattern(const Json& json, const HybridForm& form, JsonReader& reader, Model& m) {
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
    const Json* indices = json.find(key);
    if (indices == nullptr || (indices->is_null() && form.other == Mixer::kBeside)) continue;
    return read_indices(reader, key, other, m);
  }
  const auto* const found =
      std::find_if(kLayerLists.begin(), kLayerLists.end(), [&json](const char* name) {
        const Json* list = json.find(name);
        return list != nullptr && !list->is_null();
      });
  const std::string key = found == kLayerLists.end() ? kLayerLists.back() : *found;
  if (found == kLayerLists.end()) {
    if (read_period(json, form, reader, m)) return;
    const bool alike = form.one_sublayer || form.other == Mixer::kBeside;
    if (alike) {
      const FeedForward behind = form.one_sublayer ? FeedForward::kNone : FeedForward::kMlp;
      m.hybrid.layers.assign(static_cast<std::size_t>(m.layers), {form.other, behind});
      return;
    }
  }
  if (const Json* pattern = reader.require(key, "the kind of every layer")) {
    for (const char* period :
         {"attn_layer_period", "attn_layer_offset", "full_attention_interval"}) {
      reader.ignore(period);
    }
    read_listed(key, *pattern, form, reader, m);
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
  reader.read("mamba_rms_norm", s.norm);
  const std::string width = key_of(json, type, "mamba_width");
  std::int64_t stated = s.width();
  if (reader.read(width, stated, kConfigSize) && stated != s.width()) {
    reader.fail(width, "found " + std::to_string(stated) + ", which is not " +
                           std::to_string(s.heads) + " heads of " + std::to_string(s.head_dim));
  }
  if (s.heads % s.groups != 0) {
    reader.fail(key_of(json, type, "mamba_groups"),
                std::to_string(s.groups) + " groups do not divide " + std::to_string(s.heads) +
                    " heads of the state space");
  }
}

}  // namespace

void read_hybrid(const Json& json, const ModelType& type, HybridForm form, JsonReader& reader,
                 Model& m) {
  if (!m.has_experts()) {
    reader.read(key_of(json, type, "shared_expert_intermediate_size"), m.intermediate, kConfigSize);
  }
  const Json* nested = json.find("linear_attn_config");
  if (nested != nullptr && !nested->is_null()) {
    read_nested_delta(reader, m);
  } else {
    read_pattern(json, form, reader, m);
  }
  const bool listed = static_cast<std::int64_t>(m.hybrid.layers.size()) == m.layers;
  const bool scans = m.has_mixer(Mixer::kMamba2) || m.has_mixer(Mixer::kBeside) ||
                     (!listed && form.other == Mixer::kMamba2);
  if (scans) read_state_space(json, type, reader, m);
  if (m.has_mixer(Mixer::kMamba1)) read_selective(json, type, form.step_norms, reader, m);
  if (m.has_mixer(Mixer::kDelta) && nested == nullptr) read_delta(json, type, reader, m);
  if (form.shared_block) read_shared_block(reader, m);
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
