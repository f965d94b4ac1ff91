// Layers of several sizes: what config.json says of each.
#include <algorithm>
#include <utility>

#include "models/architecture/model_config.h"

namespace foretrain {
namespace {

/// The model's own sizes.
LayerShape shape_of(const Model& m) {
  return {m.heads, m.kv_heads,        m.head_dim,      m.intermediate,
          false,   m.attention.sinks, m.attention.gate};
}

/// The kind `like` in this shape, which is added where no layer had it before.
LayerKind with_shape(LayerKind like, const LayerShape& shape, Model& m) {
  LayerShape own = shape_of(m);
  own.key_is_value = m.attention.key_is_value;
  if (shape == own) return like;
  std::vector<LayerShape>& all = m.hybrid.shapes;
  const auto known = std::find(all.begin(), all.end(), shape);
  like.shape = static_cast<std::uint16_t>(known - all.begin() + 1);
  if (known == all.end()) all.push_back(shape);
  return like;
}

/// A list of whole numbers, one for each layer.
std::vector<std::int64_t> list_of(const char* key, JsonReader& reader, std::int64_t layers) {
  const Json* json = reader.take(key);
  std::vector<std::int64_t> out;
  const Json::Array* list = json == nullptr ? nullptr : json->array();
  bool good = list != nullptr && static_cast<std::int64_t>(list->size()) == layers;
  for (std::size_t i = 0; good && i < list->size(); ++i) {
    const auto* number = std::get_if<std::int64_t>(&(*list)[i].value);
    good = number != nullptr && *number >= 1 && *number <= kConfigSize.high;
    if (good) out.push_back(*number);
  }
  if (good || json == nullptr) return out;
  reader.fail(key, "found " + describe(*json) + ", expected a whole number for each of " +
                       std::to_string(layers) + " layers");
  return {};
}

/// What a layer lacks that takes its keys and values from an earlier one: their matrices and the
/// norm of its keys.
std::int64_t keys_of(const LayerShape& shape, const Model& m) {
  const std::int64_t matrices = shape.key_is_value ? 1 : 2;
  const std::int64_t norm = m.qk_norm ? shape.head_dim : 0;
  return matrices * shape.kv_heads * shape.head_dim * m.hidden + norm;
}

}  // namespace

void read_global_shape(const Json& json, JsonReader& reader, Model& m) {
  LayerShape global = shape_of(m);
  const auto given = [&json](const char* key) {
    const Json* value = json.find(key);
    return value != nullptr && !value->is_null();
  };
  if (given("global_head_dim")) reader.read("global_head_dim", global.head_dim, kConfigSize);
  reader.read("attention_k_eq_v", global.key_is_value);
  reader.take("num_global_key_value_heads");
  if (global.key_is_value && given("num_global_key_value_heads")) {
    reader.read("num_global_key_value_heads", global.kv_heads, kConfigSize);
  }
  std::int64_t sharing = 0;
  bool wide = false;
  reader.read("num_kv_shared_layers", sharing, JsonReader::IntRange{0, m.layers - 1});
  reader.read("use_double_wide_mlp", wide);
  std::int64_t lacking = 0;
  std::vector<LayerKind> layers;
  for (std::int64_t l = 0; l < std::min<std::int64_t>(m.layers, 1 << 16); ++l) {
    LayerShape shape = m.windowed(l) ? shape_of(m) : global;
    if (l >= m.layers - sharing) {
      lacking += keys_of(shape, m);
      if (wide) shape.intermediate *= 2;
    }
    layers.push_back(with_shape(m.kind(l), shape, m));
  }
  if (!m.hybrid.shapes.empty()) m.hybrid.layers = std::move(layers);
  if (lacking == 0) return;
  m.notes.counted.push_back({"keys and values that layers share", -lacking, -lacking});
}

void read_listed_shapes(JsonReader& reader, Model& m) {
  const std::vector<std::int64_t> heads = list_of("num_query_heads", reader, m.layers);
  const std::vector<std::int64_t> kv_heads = list_of("num_kv_heads", reader, m.layers);
  std::int64_t divisor = 256;
  reader.read("ffn_dim_divisor", divisor, kConfigSize);
  const Json* multipliers = reader.take("ffn_multipliers");
  const Json::Array* factors = multipliers == nullptr ? nullptr : multipliers->array();
  const auto layers = static_cast<std::size_t>(m.layers);
  const bool factored = factors != nullptr && factors->size() == layers;
  if (heads.size() != layers || kv_heads.size() != layers || !factored) {
    reader.fail("ffn_multipliers",
                "expected lists num_query_heads, num_kv_heads and "
                "ffn_multipliers with a number for each of " +
                    std::to_string(m.layers) + " layers");
    return;
  }
  const auto width = [&](std::size_t l) {  // to the nearest multiple, and never below nine tenths
    const double wanted = (*factors)[l].number() * static_cast<double>(m.hidden);
    const std::int64_t near =
        static_cast<std::int64_t>(wanted + static_cast<double>(divisor) / 2) / divisor * divisor;
    const std::int64_t out = std::max(divisor, near);
    return static_cast<double>(out) < 0.9 * wanted ? out + divisor : out;
  };
  m.heads = heads[0];
  m.kv_heads = kv_heads[0];
  m.intermediate = width(0);
  std::vector<LayerKind> kinds;
  for (std::size_t l = 0; l < layers; ++l) {
    LayerShape shape = shape_of(m);
    shape.heads = heads[l];
    shape.kv_heads = kv_heads[l];
    shape.intermediate = width(l);
    kinds.push_back(with_shape(m.kind(static_cast<std::int64_t>(l)), shape, m));
  }
  if (!m.hybrid.shapes.empty()) m.hybrid.layers = std::move(kinds);
}

void read_listed_heads(JsonReader& reader, Model& m) {
  std::vector<std::int64_t> heads = list_of("num_attention_heads_per_layer", reader, m.layers);
  const std::vector<std::int64_t> kv_heads =
      list_of("num_key_value_heads_per_layer", reader, m.layers);
  std::int64_t of_windows = m.heads;
  reader.read("num_sliding_attention_heads", of_windows, kConfigSize);
  if (const Json* other = reader.take("attention_other_setting")) {
    const Json* stated = other->find("num_attention_heads");
    if (stated != nullptr && stated->number() >= 1 && stated->number() <= 1 << 20) {
      of_windows = static_cast<std::int64_t>(stated->number());
    }
  }
  for (std::int64_t l = 0; of_windows != m.heads && l < std::min<std::int64_t>(m.layers, 1 << 16);
       ++l) {
    heads.push_back(m.windowed(l) ? of_windows : m.heads);
  }
  std::vector<LayerKind> layers;
  for (std::size_t l = 0; l < std::max(heads.size(), kv_heads.size()); ++l) {
    LayerShape shape = shape_of(m);
    if (!heads.empty()) shape.heads = heads[l];
    if (!kv_heads.empty()) shape.kv_heads = kv_heads[l];
    layers.push_back(with_shape(m.kind(static_cast<std::int64_t>(l)), shape, m));
  }
  if (!m.hybrid.shapes.empty()) m.hybrid.layers = std::move(layers);
}

void read_lightning(JsonReader& reader, Model& m) {
  const Json* named = reader.take("layer_types");
  const Json* numbered = reader.take("attn_type_list");
  const Json* stated = named != nullptr ? named : numbered;
  const Json::Array* list = stated == nullptr ? nullptr : stated->array();
  const auto layers = static_cast<std::size_t>(std::min<std::int64_t>(m.layers, 1 << 16));
  if (stated != nullptr && (list == nullptr || list->size() != layers)) {
    reader.fail(named != nullptr ? "layer_types" : "attn_type_list",
                "expected the kind of each of " + std::to_string(m.layers) + " layers");
    return;
  }
  std::int64_t group = 2;  // of layers, whose last has full attention
  const bool grouped = reader.read("layer_group_size", group, kConfigSize);
  m.sliding_window = 256;
  reader.read("block_size", m.sliding_window, kConfigSize);
  LayerShape linear = shape_of(m);
  linear.kv_heads = linear.heads;
  linear.gate = OutputGate::kElements;
  std::vector<LayerKind> kinds;
  m.full_attention.clear();
  for (std::size_t l = 0; l < layers; ++l) {
    const auto every = static_cast<std::size_t>(group);
    const bool of_group =
        grouped ? l % every == every - 1 || l >= layers / every * every : l % 2 == 0;
    const bool full =
        list == nullptr ? of_group : (*list)[l] == Json("full_attention") || (*list)[l] == Json(1);
    const LayerKind kind = m.kind(static_cast<std::int64_t>(l));
    m.full_attention.push_back(full);
    kinds.push_back(full ? kind : with_shape(kind, linear, m));
    if (full) continue;
    const std::int64_t norm = linear.heads * linear.head_dim;
    m.notes.counted.push_back({"norms behind lightning attention", norm, norm});
  }
  if (!m.hybrid.shapes.empty()) m.hybrid.layers = std::move(kinds);
}

void read_key_blocks(const Json& json, const ModelType& type, JsonReader& reader, Model& m) {
  std::int64_t blocks = 16;
  std::int64_t keys = 128;
  reader.read(key_of(json, type, "index_topk_blocks"), blocks, JsonReader::IntRange{1, 1 << 20});
  reader.read(key_of(json, type, "index_block_size"), keys, JsonReader::IntRange{1, 1 << 20});
  m.sliding_window = blocks * keys;
}

void read_window_shape(JsonReader& reader, Model& m) {
  const Json* pattern = reader.require("hybrid_layer_pattern", "1 for layers with a window, or 0");
  const Json::Array* list = pattern == nullptr ? nullptr : pattern->array();
  if (list == nullptr || static_cast<std::int64_t>(list->size()) != m.layers) {
    reader.fail("hybrid_layer_pattern",
                "expected 0 or 1 for each of " + std::to_string(m.layers) + " layers");
    return;
  }
  reader.take("hybrid_layer_pattern");
  std::int64_t values = m.head_dim;
  reader.read("v_head_dim", values, kConfigSize);
  if (values != m.head_dim) m.attention.value_dim = values;
  bool sinks = false;
  reader.read("add_full_attention_sink_bias", m.attention.sinks);
  reader.read("add_swa_attention_sink_bias", sinks);
  LayerShape window = shape_of(m);
  window.sinks = sinks;
  reader.read("swa_num_attention_heads", window.heads, kConfigSize);
  reader.read("swa_num_key_value_heads", window.kv_heads, kConfigSize);
  reader.read("swa_head_dim", window.head_dim, kConfigSize);
  std::int64_t own = values;
  if (reader.read("swa_v_head_dim", own, kConfigSize) && own != values) {
    reader.fail("swa_v_head_dim", "values of two widths are not modelled", ErrorKind::kUnsupported);
  }
  std::vector<LayerKind> layers;
  m.full_attention.clear();
  for (std::size_t l = 0; l < list->size(); ++l) {
    const LayerKind kind = m.kind(static_cast<std::int64_t>(l));
    const bool windowed = (*list)[l].number() > 0;
    m.full_attention.push_back(!windowed);
    layers.push_back(windowed ? with_shape(kind, window, m) : kind);
  }
  if (!m.hybrid.shapes.empty()) m.hybrid.layers = std::move(layers);
}

namespace {

/// One of `block_configs`: heads of a group, the factor of the MLP's width, or no such branch.
bool read_block(const Json& block, Model& m) {
  LayerKind kind;
  LayerShape shape = shape_of(m);
  const auto branch = [&block](const char* name, const char* key) -> const Json* {
    const Json* of = block.find(name);
    return of == nullptr ? nullptr : of->find(key);
  };
  const auto set = [](const Json* json) { return json != nullptr && *json == Json(true); };
  if (set(branch("attention", "replace_with_linear")) ||
      set(branch("ffn", "replace_with_linear"))) {
    return false;
  }
  if (set(branch("attention", "no_op"))) {
    kind.mixer = Mixer::kNone;
  } else {
    const Json* group = branch("attention", "n_heads_in_group");
    if (group == nullptr || group->number() < 1) return false;
    shape.kv_heads = m.heads / static_cast<std::int64_t>(group->number());
  }
  if (set(branch("ffn", "no_op"))) {
    kind.feed_forward = FeedForward::kNone;
  } else {
    const Json* factor = branch("ffn", "ffn_mult");
    if (factor == nullptr || factor->number() <= 0) return false;
    const double width = 2 * factor->number() * static_cast<double>(m.hidden) / 3;
    shape.intermediate = round_up(static_cast<std::int64_t>(width), 256);
  }
  m.hybrid.layers.push_back(with_shape(kind, shape, m));
  return shape.kv_heads > 0;
}

}  // namespace

void read_block_configs(JsonReader& reader, Model& m) {
  const Json* blocks = reader.require("block_configs", "what each layer has");
  const Json::Array* list = blocks == nullptr ? nullptr : blocks->array();
  bool good = list != nullptr && static_cast<std::int64_t>(list->size()) == m.layers;
  reader.take("block_configs");
  for (std::size_t l = 0; good && l < list->size(); ++l) good = read_block((*list)[l], m);
  if (good) return;
  reader.fail("block_configs",
              "expected attention with n_heads_in_group or no_op and ffn with "
              "ffn_mult or no_op for each of " +
                  std::to_string(m.layers) + " layers");
}

void read_layer_table(const Json& json, JsonReader& reader, Model& m) {
  constexpr const char* kWidth = "hidden_size_per_layer_input";
  constexpr const char* kRows = "vocab_size_per_layer_input";
  const JsonReader::IntRange sizes{0, kConfigSize.high};
  const Json* stated = json.find(kWidth);
  if (stated == nullptr || stated->is_null()) return;
  reader.read(kWidth, m.ends.layer_width, sizes);
  m.ends.layer_rows = m.vocabulary;
  reader.read(kRows, m.ends.layer_rows, sizes);
  if (m.ends.layer_width == 0 || m.ends.layer_rows == 0) m.ends.layer_width = m.ends.layer_rows = 0;
}

void read_ends(const Json& json, const ModelType& type, bool projected, bool patches,
               JsonReader& reader, Model& m) {
  Ends& e = m.ends;
  if (projected) {
    const std::string key = key_of(json, type, "word_embed_proj_dim");
    std::int64_t width = m.hidden;
    reader.read(key, width, kConfigSize);
    if (width != m.hidden) e.embedding_width = width;
    bool before = true;  // OPT's: norms behind branches have none behind the last layer
    reader.read("do_layer_norm_before", before);
    if (!before) e.final_norm = false;
  }
  if (const Json* names = reader.take("id2label"); names != nullptr && e.classes > 0) {
    if (names->object() == nullptr || names->object()->empty()) {
      reader.fail("id2label", "found " + describe(*names) + ", expected the name of every class");
    } else if (e.classes > 1) {
      e.classes = static_cast<std::int64_t>(names->object()->size());
    }
  }
  if (e.classes > 0) m.tied_embeddings = false;  // a matrix of classes is no table
  if (!patches) return;
  m.tied_embeddings = false;
  e.masked = 1;  // the class token alone is read
  std::int64_t side = 16;
  std::int64_t channels = 3;
  std::int64_t image = 224;
  reader.read("patch_size", side, JsonReader::IntRange{1, 1 << 12});
  reader.read("num_channels", channels, JsonReader::IntRange{1, 1 << 12});
  reader.read("image_size", image, JsonReader::IntRange{1, 1 << 16});
  double ratio = 4;
  if (reader.read("mlp_ratio", ratio, JsonReader::Range{1.0 / 64, 64})) {
    m.intermediate = static_cast<std::int64_t>(ratio * static_cast<double>(m.hidden));
  }
  if (image < side) {
    reader.fail("patch_size", "found " + std::to_string(side) + ", and the image has " +
                                  std::to_string(image) + " rows");
    return;
  }
  e.patch = channels * side * side;
  m.positions = (image / side) * (image / side) + 1;
}

}  // namespace foretrain
