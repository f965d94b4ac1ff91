// Mixers of layers other than attention: what config.json says of their sizes.
#include <algorithm>
#include <utility>

#include "models/architecture/model_config.h"

namespace foretrain {
namespace {

constexpr JsonReader::IntRange kTaps{1, 1 << 10};

/// A number of steps' inputs, or "auto": a sixteenth of the hidden width.
void read_step_rank(const Json& json, const ModelType& type, JsonReader& reader, Model& m) {
  const std::string key = key_of(json, type, "mamba_dt_rank");
  SelectiveScan& s = m.hybrid.selective;
  s.step_rank = (m.hidden + 15) / 16;
  const Json* stated = json.find(key);
  if (stated != nullptr && stated->string() != nullptr && *stated->string() == "auto") {
    reader.take(key);
  } else {
    reader.read(key, s.step_rank, kConfigSize);
  }
}

/// Layers by number, from 1.
void read_places(JsonReader& reader, const char* key, Mixer mixer, Model& m) {
  const Json* json = reader.require(key, "a list of layers");
  if (json == nullptr) return;
  reader.take(key);
  const Json::Array* list = json->array();
  bool good = list != nullptr;
  for (std::size_t i = 0; good && i < list->size(); ++i) {
    const auto* place = std::get_if<std::int64_t>(&(*list)[i].value);
    good = place != nullptr && *place >= 1 && *place <= m.layers;
    if (good) m.hybrid.layers[static_cast<std::size_t>(*place - 1)].mixer = mixer;
  }
  if (good) return;
  reader.fail(key, "found " + describe(*json) + ", expected a list of layers, from 1 to " +
                       std::to_string(m.layers));
}

}  // namespace

void read_selective(const Json& json, const ModelType& type, bool norms, JsonReader& reader,
                    Model& m) {
  SelectiveScan& s = m.hybrid.selective;
  double expand = 2;
  reader.read(key_of(json, type, "mamba_expand"), expand, JsonReader::Range{1.0 / 64, 64});
  s.width = static_cast<std::int64_t>(expand * static_cast<double>(m.hidden));
  reader.read(key_of(json, type, "mamba_width"), s.width, kConfigSize);
  reader.read(key_of(json, type, "ssm_state_size"), s.state, kConfigSize);
  reader.read(key_of(json, type, "mamba_conv"), s.taps, kTaps);
  reader.read(key_of(json, type, "mamba_conv_bias"), s.conv_bias);
  reader.read(key_of(json, type, "mamba_proj_bias"), s.bias);
  s.norms = norms;
  read_step_rank(json, type, reader, m);
}

void read_delta(const Json& json, const ModelType& type, JsonReader& reader, Model& m) {
  DeltaNet& d = m.hybrid.delta;
  const std::pair<const char*, std::int64_t*> sizes[] = {{"linear_num_key_heads", &d.key_heads},
                                                         {"linear_num_value_heads", &d.value_heads},
                                                         {"linear_key_head_dim", &d.key_dim},
                                                         {"linear_value_head_dim", &d.value_dim}};
  for (const auto& [name, out] : sizes) {
    const std::string key = key_of(json, type, name);
    reader.require(key, "a size of the gated delta net");
    reader.read(key, *out, kConfigSize);
  }
  reader.read(key_of(json, type, "linear_conv_kernel_dim"), d.taps, kTaps);
  if (d.key_heads > 0 && d.value_heads % d.key_heads != 0) {
    reader.fail("linear_num_value_heads", std::to_string(d.value_heads) +
                                              " is no multiple of linear_num_key_heads " +
                                              std::to_string(d.key_heads));
  }
}

void read_nested_delta(JsonReader& reader, Model& m) {
  constexpr const char* kKey = "linear_attn_config";
  const Json* json = reader.take(kKey);
  JsonReader nested(*json, reader.source(), reader.pointer(kKey));
  DeltaNet& d = m.hybrid.delta;
  for (const auto& [key, out] : {std::pair{"num_heads", &d.key_heads}, {"head_dim", &d.key_dim}}) {
    nested.require(key, "a size of the delta attention");
    nested.read(key, *out, kConfigSize);
  }
  d.value_heads = d.key_heads;
  d.value_dim = d.gate_rank = d.key_dim;
  nested.read("short_conv_kernel_size", d.taps, kTaps);
  std::vector<LayerKind> layers;
  for (std::int64_t l = 0; l < std::min<std::int64_t>(m.layers, 1 << 16); ++l) {
    layers.push_back({Mixer::kAttention, m.kind(l).feed_forward});
  }
  m.hybrid.layers = std::move(layers);
  nested.ignore("full_attn_layers");  // all others
  read_places(nested, "kda_layers", Mixer::kDelta, m);
  reader.adopt(nested.finish());
}

void read_shared_block(JsonReader& reader, Model& m) {
  SharedBlock& s = m.hybrid.shared;
  s.blocks = 1;
  reader.read("num_mem_blocks", s.blocks, JsonReader::IntRange{1, 255});
  reader.read("adapter_rank", s.rank, JsonReader::IntRange{0, kConfigSize.high});
  reader.read("use_shared_attention_adapter", s.attention_adapters);
  for (const char* key : {"hybrid_layer_ids", "attention_hidden_size"}) reader.ignore(key);
  if (m.kv_heads != m.heads) {
    reader.fail("num_key_value_heads", "found " + std::to_string(m.kv_heads) +
                                           ": heads of a shared block have keys and values of "
                                           "their own, expected " +
                                           std::to_string(m.heads));
  }
  const Json* list = reader.require("layers_block_type", "mamba or hybrid for each layer");
  if (list == nullptr || list->array() == nullptr) return;
  std::int64_t uses = 0;
  LayerKind* last = nullptr;
  for (std::size_t l = 0; l < std::min(list->array()->size(), m.hybrid.layers.size()); ++l) {
    const std::string* kind = (*list->array())[l].string();
    if (kind == nullptr || *kind != "hybrid") continue;
    last = &m.hybrid.layers[l];
    last->shared = static_cast<std::uint8_t>(1 + uses++ % s.blocks);
  }
  if (last != nullptr) {
    last->last_use = true;
  } else if (!reader.failed()) {
    reader.fail("layers_block_type", "no layer is hybrid, so that nothing uses the shared block");
  }
}

}  // namespace foretrain
