#include <algorithm>
#include <array>
#include <sstream>

#include "models/architecture/model_config.h"
#include "models/architecture/model_type.h"
#include "models/architecture/network_config.h"

namespace foretrain {
namespace {

constexpr std::int64_t kMost = 1'000'000'000;
constexpr double kLargestCap = 1e6;

/// Other names of keys, in files of any type.
struct Spelling {
  const char* native;
  std::vector<const char*> others;
};
const std::vector<Spelling>& all_spellings() {
  static const std::vector<Spelling> kAll = {
      {"num_hidden_layers", {"n_layer", "n_layers", "num_layers", "encoder_layers"}},
      {"hidden_size", {"n_embd", "d_model", "n_embed"}},
      {"num_attention_heads",
       {"n_head", "n_heads", "num_heads", "encoder_attention_heads", "attention_heads"}},
      {"num_key_value_heads", {"num_kv_heads", "n_kv_heads", "n_head_kv", "num_query_groups"}},
      {"head_dim", {"attention_head_dim", "kv_channels"}},
      {"intermediate_size",
       {"n_inner", "ffn_dim", "d_ff", "encoder_ffn_dim", "ffn_hidden_size", "intermediate_dim"}},
      {"max_position_embeddings", {"n_positions", "max_seq_len"}},
      {"partial_rotary_factor", {"rotary_pct", "rotary_percentage", "rope_pct", "rope_percent"}},
      {"hidden_act", {"activation_function", "mlp_hidden_act", "hidden_activation"}},
      {"attention_dropout",
       {"attn_pdrop", "attention_probs_dropout_prob", "attn_dropout_prob",
        "attention_dropout_prob"}},
      {"hidden_dropout",
       {"resid_pdrop", "dropout", "hidden_dropout_prob", "residual_dropout", "ffn_dropout_prob"}},
      {"num_experts", {"num_local_experts", "n_routed_experts", "moe_num_experts"}},
      {"num_experts_per_tok", {"moe_k", "moe_topk", "top_k_experts", "num_experts_per_token"}},
      {"n_shared_experts", {"moe_num_shared_experts", "num_shared_experts"}},
      {"shared_expert_intermediate_size",
       {"moe_shared_expert_intermediate_size", "shared_intermediate_size"}},
      {"first_k_dense_replace", {"num_dense_layers", "moe_layer_start_index"}},
      {"decoder_sparse_step",
       {"moe_layer_freq", "interleave_moe_layer_step", "moe_layer_interval",
        "moe_layer_frequency"}},
  };
  return kAll;
}

/// Keys under which a file of several parts has its language model, or parts that have one.
constexpr std::array kTextParts = {"text_config", "llm_config", "language_config",
                                   "thinker_config"};

/// Sizes that some files give as lists, with one number for each layer.
constexpr std::array kListedSizes = {"intermediate_size", "moe_intermediate_size", "num_experts",
                                     "moe_topk", "num_shared_expert"};

/// A config file made ready: its text part, with defaults and rules of its type.
struct Config {
  Json json;
  std::string pointer;
  ModelType type;
  std::vector<std::string> known;  ///< keys that rules read
  /// A publisher's own file, whose unknown keys are told in a note.
  bool published = false;
};

bool is_published(const Json& json) {
  constexpr std::array kMarks = {"architectures", "transformers_version", "torch_dtype", "dtype"};
  return std::any_of(kMarks.begin(), kMarks.end(),
                     [&json](const char* key) { return json.find(key) != nullptr; });
}

/// The language model of a file of several parts; its place is added to `place`.
const Json* text_part(const Json& json, std::string& place) {
  for (const char* part : kTextParts) {
    const Json* found = json.find(part);
    if (found == nullptr || found->object() == nullptr) continue;
    place += "/" + std::string(part);
    const Json* inner = text_part(*found, place);
    return inner == nullptr ? found : inner;
  }
  return nullptr;
}

/// Puts the members of an object beside the others, of which they are none yet.
void open_nested(const std::string& key, Json& json) {
  const Json* found = json.find(key);
  if (found == nullptr || found->object() == nullptr) return;
  const Json::Object members = *found->object();
  json.erase(key);
  for (const auto& [name, value] : members) {
    if (json.find(name) == nullptr) json.set(name, value);
  }
}

bool whole(const Json& json, const char* key, std::int64_t& out) {
  const Json* stated = json.find(key);
  const auto* number = stated == nullptr ? nullptr : std::get_if<std::int64_t>(&stated->value);
  if (number != nullptr) out = *number;
  return number != nullptr;
}

/// The kinds of all layers, where the file has those of a period (`block_types`), or where layers
/// that share a block stand: the third, and one of each period of those behind it (Zamba).
void list_blocks(Json& json, const ModelType& type) {
  const Json* period = json.find("block_types");
  std::int64_t every = 0;
  std::int64_t place = 0;
  const Json* layers = json.find(key_of(json, type, "num_hidden_layers"));
  const Json traits(type.traits);
  const Json* shared = traits.find("shared_block");
  if (layers == nullptr || json.find("layers_block_type") != nullptr) return;
  const double count = layers->number();
  if (!(count >= 1 && count <= 1 << 16)) return;
  Json::Array kinds;
  if (period != nullptr && period->array() != nullptr && !period->array()->empty()) {
    for (std::size_t l = 0; l < static_cast<std::size_t>(count); ++l) {
      kinds.push_back((*period->array())[l % period->array()->size()]);
    }
    json.erase("block_types");
  } else if (shared != nullptr && whole(json, "attn_layer_period", every) && every >= 1 &&
             whole(json, "attn_layer_offset", place)) {
    for (std::int64_t l = 0; l < static_cast<std::int64_t>(count); ++l) {
      const bool hybrid = l == 2 || (l > 2 && (l - 3) % every == place);
      kinds.emplace_back(hybrid ? "hybrid" : "mamba");
    }
    json.erase("attn_layer_period");
    json.erase("attn_layer_offset");
  }
  if (!kinds.empty()) json.set("layers_block_type", Json(std::move(kinds)));
}

/// Numbers of layers in a text ("3,4,5") as the list `moe_layers`; those of multi-token prediction
/// behind the model's own are left away.
void list_sparse_layers(Json& json, const ModelType& type) {
  const Json* stated = json.find("moe_layers_enum");
  const Json* layers = json.find(key_of(json, type, "num_hidden_layers"));
  if (stated == nullptr || stated->string() == nullptr || layers == nullptr) return;
  Json::Array list;
  for (std::istringstream text(*stated->string()); text.good();) {
    std::int64_t layer = -1;
    char comma = 0;
    text >> layer;
    if (text.fail() || layer < 0) return;
    if (static_cast<double>(layer) < layers->number()) list.emplace_back(layer);
    text >> comma;
  }
  json.erase("moe_layers_enum");
  json.set("moe_layers", Json(std::move(list)));
}

/// The members of a trait that is an object; none where the type does not have it.
Json::Object members_of_trait(const ModelType& type, const char* name) {
  const Json traits(type.traits);
  const Json* trait = traits.find(name);
  return trait == nullptr || trait->object() == nullptr ? Json::Object() : *trait->object();
}

/// Keys whose value is a list of numbers for different parts: each number by the name that the
/// trait `lists` gives it. The first is the key's own.
void open_lists(const ModelType& type, Json& json) {
  for (const auto& [key, names] : members_of_trait(type, "lists")) {
    const Json* stated = json.find(key);
    if (stated == nullptr || stated->array() == nullptr || names.array() == nullptr) continue;
    const Json::Array values = *stated->array();
    if (values.size() != names.array()->size()) continue;  // the key's reader tells it
    json.erase(key);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::string* name = (*names.array())[i].string();
      if (name != nullptr && json.find(*name) == nullptr) json.set(*name, values[i]);
    }
  }
}

/// `layer_types` in the words of this program, out of what the list `key` calls them by the trait
/// `kinds`: {KEY: {WORD OR NUMBER: KIND}}.
void rename_kinds(const ModelType& type, Json& json) {
  for (const auto& [key, words] : members_of_trait(type, "kinds")) {
    const Json* list = json.find(key);
    if (list == nullptr || list->array() == nullptr) continue;
    Json::Array renamed = *list->array();
    for (Json& kind : renamed) {
      const Json* word =
          words.find(kind.string() != nullptr ? *kind.string() : dump_json(kind, -1));
      if (word != nullptr) kind = *word;
    }
    json.erase(key);
    if (json.find("layer_types") == nullptr) json.set("layer_types", Json(std::move(renamed)));
  }
}

/// One number in place of a list that has the same for every layer.
void fold_list(const std::string& key, Json& json) {
  const Json* list = json.find(key);
  if (list == nullptr || list->array() == nullptr || list->array()->empty()) return;
  const Json first = list->array()->front();
  const bool alike = std::all_of(list->array()->begin(), list->array()->end(),
                                 [&first](const Json& item) { return item == first; });
  if (alike) json.set(key, first);
}

/// The number of layers, where the file lists their kinds alone.
void count_listed_layers(Json& json, const ModelType& type) {
  if (json.find(key_of(json, type, "num_hidden_layers")) != nullptr) return;
  for (const char* key : kLayerLists) {
    const Json* list = json.find(key);
    if (list == nullptr) continue;
    const std::size_t count = list->array() != nullptr    ? list->array()->size()
                              : list->string() != nullptr ? list->string()->size()
                                                          : 0;
    if (count > 0) json.set("num_hidden_layers", Json(static_cast<std::int64_t>(count)));
  }
}

/// Whether the file has the key by any of its names, be it null.
bool mentions(const Config& c, const std::string& native) {
  std::vector<std::string> names = spellings_of(native);
  for (const auto& [name, others] : c.type.keys) {
    if (name != native || others.array() == nullptr) continue;
    for (const Json& other : *others.array()) {
      if (other.string() != nullptr) names.push_back(*other.string());
    }
  }
  names.push_back(native);
  return std::any_of(names.begin(), names.end(),
                     [&c](const std::string& name) { return c.json.find(name) != nullptr; });
}

/// What its type says where the file is silent, and where its switches stand so.
void apply_rules(Config& c) {
  for (const auto& [key, value] : c.type.defaults) {
    const Json* stated = c.json.find(key_of(c.json, c.type, key));
    if (stated == nullptr || stated->is_null()) c.json.set(key, value);
  }
  for (const auto& [key, value] : c.type.class_defaults) {
    if (c.published && !value.is_null() && !mentions(c, key)) c.json.set(key, value);
  }
  Json traits(c.type.traits);
  for (const Json& rule : c.type.rules) {
    const Json* key = rule.find("key");
    if (key == nullptr || key->string() == nullptr) continue;
    c.known.push_back(*key->string());
    const Json* is = rule.find("is");
    const Json* value = c.json.find(*key->string());
    if (value == nullptr || !(*value == (is == nullptr ? Json(true) : *is))) continue;
    for (const char* part : {"set", "traits"}) {
      const Json* items = rule.find(part);
      if (items == nullptr || items->object() == nullptr) continue;
      Json& to = part == std::string("set") ? c.json : traits;
      for (const auto& [name, item] : *items->object()) {
        item.is_null() ? to.erase(name) : void(to.set(name, item));
      }
    }
  }
  if (traits.object() != nullptr) c.type.traits = *traits.object();
}

}  // namespace

std::vector<std::string> spellings_of(const std::string& key) {
  for (const Spelling& spelling : all_spellings()) {
    std::vector<std::string> all = {spelling.native};
    all.insert(all.end(), spelling.others.begin(), spelling.others.end());
    if (std::find(all.begin(), all.end(), key) != all.end()) return all;
  }
  return {key};
}

std::string key_of(const Json& json, const ModelType& type, const std::string& native) {
  const auto stated = [&json](const std::string& key) {
    const Json* value = json.find(key);
    return value != nullptr && !value->is_null();
  };
  if (stated(native)) return native;
  for (const auto& [name, others] : type.keys) {
    if (name != native || others.array() == nullptr) continue;
    for (const Json& other : *others.array()) {
      if (other.string() != nullptr && stated(*other.string())) return *other.string();
    }
  }
  for (const std::string& other : spellings_of(native)) {
    if (stated(other)) return other;
  }
  return native;
}

namespace {

/// Traits that are switches, and what they set.
Status read_traits(const ModelType& type, Model& m, Mixer& other, std::vector<std::string>& forms) {
  const Json json(type.traits);
  JsonReader reader(json, "model_types/" + type.name + ".json", "/traits");
  reader.read_enum("norm", m.norm, {"layer-norm", "rms-norm"});
  reader.read_enum("activation", m.activation, {"gelu", "swiglu", "relu", "relu2", "geglu"});
  reader.read_enum("position", m.position, {"learned", "rope", "alibi", "none"});
  reader.read_enum("head_norms", m.norms.heads, {"one-head", "each-head", "width", "weightless"});
  reader.read_enum("output_gate", m.attention.gate, {"none", "elements", "heads"});
  reader.read_enum("other_mixer", other,
                   {"none", "attention", "mamba2", "conv", "delta", "mamba", "beside"});
  reader.read("activation_weights", m.biases.activation, JsonReader::IntRange{0, 1 << 10});
  reader.read("not_lowered", m.notes.not_lowered);
  reader.read("classes", m.ends.classes, JsonReader::IntRange{0, kMost});
  const std::pair<const char*, bool*> switches[] = {{"norm_bias", &m.biases.norm},
                                                    {"norm_weights", &m.norms.weights},
                                                    {"norms_before", &m.norms.before},
                                                    {"norms_after", &m.norms.after},
                                                    {"qkv_bias", &m.biases.qkv},
                                                    {"projection_bias", &m.biases.projection},
                                                    {"mlp_bias", &m.biases.mlp},
                                                    {"head_bias", &m.biases.head},
                                                    {"tied_embeddings", &m.tied_embeddings},
                                                    {"bidirectional", &m.bidirectional},
                                                    {"embedding_norm", &m.embedding_norm},
                                                    {"parallel_residual", &m.parallel_residual},
                                                    {"shared_norm", &m.shared_norm},
                                                    {"qk_norm", &m.qk_norm},
                                                    {"attention_sinks", &m.attention.sinks},
                                                    {"one_layer", &m.hybrid.one_layer},
                                                    {"final_norm", &m.ends.final_norm},
                                                    {"head_transform", &m.ends.transform},
                                                    {"wide_positions", &m.ends.wide_positions},
                                                    {"embedding_bias", &m.ends.embedding_bias}};
  for (const auto& [name, out] : switches) reader.read(name, *out);
  for (const char* form : {"gated",
                           "latent",
                           "mixers",
                           "one_sublayer",
                           "segments",
                           "attn_config",
                           "encoder_decoder",
                           "relative_positions",
                           "stack_parts",
                           "key_blocks",
                           "whole_parts",
                           "embedding_projection",
                           "intermediate_halves",
                           "intermediate_two_thirds",
                           "step_norms",
                           "shared_block",
                           "global_shape",
                           "listed_shapes",
                           "window_shape",
                           "block_configs",
                           "patches",
                           "layer_table",
                           "listed_heads",
                           "lightning",
                           "counted_experts"}) {
    bool on = false;
    if (reader.read(form, on) && on) forms.emplace_back(form);
  }
  reader.read("attention_chunk", m.attention_chunk, JsonReader::IntRange{1, kMost});
  for (const char* other_reader : {"full_every", "more_positions", "kinds", "lists"}) {
    reader.take(other_reader);
  }
  return reader.finish();
}

/// Roughly the parameters of all mixers, of sizes whose products may be large.
double largest_mixers(const Model& m) {
  const auto wide = [](std::int64_t a, std::int64_t b) {
    return static_cast<double>(a) * static_cast<double>(b);
  };
  const StateSpace& s = m.hybrid.state_space;
  const SelectiveScan& c = m.hybrid.selective;
  const DeltaNet& d = m.hybrid.delta;
  const double hidden = static_cast<double>(m.hidden) + static_cast<double>(s.taps);
  double out = hidden * (3 * wide(s.heads, s.head_dim) + 2 * wide(s.groups, s.state));
  out += hidden * (2 * wide(d.key_heads, d.key_dim) + 3 * wide(d.value_heads, d.value_dim));
  out += static_cast<double>(c.width) *
         (3 * hidden + 3 * static_cast<double>(c.state) + 2 * static_cast<double>(c.step_rank));
  for (const LayerShape& shape : m.hybrid.shapes) {
    out = std::max(out, hidden * 4 * wide(shape.heads, shape.head_dim) +
                            hidden * 3 * static_cast<double>(shape.intermediate));
  }
  return static_cast<double>(m.layers) * out;
}

/// ALBERT's layers may share the weights of several by turns.
void read_groups_of_layers(JsonReader& reader) {
  for (const char* key : {"num_hidden_groups", "inner_group_num"}) {
    std::int64_t groups = 1;
    if (!reader.read(key, groups, kConfigSize) || groups == 1) continue;
    reader.fail(key, "found " + std::to_string(groups) + ": all layers have the weights of one",
                ErrorKind::kUnsupported);
  }
}

class ModelReader {
 public:
  ModelReader(const Config& config, const std::string& source)
      : x_config(config), x_json(config.json), x_reader(config.json, source, config.pointer) {
    x_reader.take("$schema");
  }

  Result<Model> run() {
    x_reader.read("name", x_model.name);
    if (const Json* layers = x_reader.take("layers")) return read_layers(*layers);
    x_reader.read("model_type", x_model.type);
    FT_TRY(refuse_experts());
    Mixer other = Mixer::kMamba2;
    FT_TRY(read_traits(x_config.type, x_model, other, x_forms));
    x_model.notes.left_out = x_config.type.left_out;
    refuse_keys();
    read_shapes();
    read_switches();
    if (has_experts(x_json, x_config.type)) read_sparse(x_json, x_config.type, x_reader, x_model);
    if (is("latent")) read_latent(x_json, x_reader, x_model);
    if (is("mixers")) {
      const HybridForm form{other, is("one_sublayer"), is("step_norms"), is("shared_block")};
      read_hybrid(x_json, x_config.type, form, x_reader, x_model);
    }
    if (is("global_shape")) read_global_shape(x_json, x_reader, x_model);
    if (is("listed_shapes")) read_listed_shapes(x_reader, x_model);
    if (is("window_shape")) read_window_shape(x_reader, x_model);
    if (is("listed_heads")) read_listed_heads(x_reader, x_model);
    if (x_model.hybrid.one_layer) read_groups_of_layers(x_reader);
    if (is("lightning")) read_lightning(x_reader, x_model);
    if (is("block_configs")) read_block_configs(x_reader, x_model);
    read_ends(x_json, x_config.type, is("embedding_projection"), is("patches"), x_reader, x_model);
    if (is("layer_table")) read_layer_table(x_json, x_reader, x_model);
    if (is("attn_config")) read_attn_config();
    read_counted(x_json, x_config.type, x_reader, x_model);
    FT_TRY(ignore_the_rest());
    check();
    FT_TRY(x_reader.finish());
    x_model.notes.ignored = x_reader.ignored();
    if (x_model.name.empty()) x_model.name = x_model.type;
    return x_model;
  }

 private:
  bool is(std::string_view form) const {
    return std::find(x_forms.begin(), x_forms.end(), form) != x_forms.end();
  }
  std::int64_t number_of(const char* trait) const {
    const Json json(x_config.type.traits);
    const Json* value = json.find(trait);
    return value == nullptr ? 0 : static_cast<std::int64_t>(value->number());
  }

  /// Keys that do not matter; those of a publisher's file that no reader knows.
  Status ignore_the_rest() {
    FT_ASSIGN(const std::vector<std::string> harmless, harmless_keys());
    for (const std::string& key : x_config.known) x_reader.take(key);
    for (const std::string& key : x_config.type.ignored) x_reader.ignore(key);
    for (const std::string& key : harmless) x_reader.ignore(key);
    for (const auto& [key, others] : x_config.type.keys) {
      if (others.array() == nullptr) continue;
      for (const Json& other : *others.array()) x_reader.ignore(*other.string());
    }
    for (const Spelling& spelling : all_spellings()) {  // what stands twice, by two names
      for (const char* other : spelling.others) {
        if (x_config.published) x_reader.ignore(other);
      }
    }
    if (!x_config.published) return ok_status();
    x_model.notes.unknown = x_reader.unknown();
    for (const std::string& key : x_model.notes.unknown) x_reader.take(key);
    return ok_status();
  }

  /// A network of layers, on images of `image` = [channels, height, width].
  Result<Model> read_layers(const Json& layers) {
    ImageShape image;
    const std::array<std::int64_t*, 3> extents = {&image.channels, &image.height, &image.width};
    const Json* json = x_reader.require("image", "[channels, height, width]");
    const Json::Array* list = json == nullptr ? nullptr : json->array();
    bool good = list != nullptr && list->size() == extents.size();
    for (std::size_t i = 0; good && i < extents.size(); ++i) {
      const auto* extent = std::get_if<std::int64_t>(&(*list)[i].value);
      good = extent != nullptr && *extent >= 1 && *extent <= (1 << 14);
      if (good) *extents.at(i) = *extent;
    }
    if (json != nullptr && !good) {
      x_reader.fail("image", "found " + describe(*json) +
                                 ", expected [channels, height, width], each up to 16384");
    }
    x_reader.ignore("source");
    x_reader.ignore("parameters_published");
    FT_TRY(x_reader.finish());
    FT_ASSIGN(x_model.network,
              read_network(layers, image, x_reader.source(), x_reader.pointer("layers")));
    x_model.type = "layers";
    x_model.layers = static_cast<std::int64_t>(x_model.network.blocks.size());
    x_model.vocabulary = x_model.network.blocks.back().out.channels;
    if (x_model.name.empty()) x_model.name = "network";
    x_model.notes.ignored = x_reader.ignored();
    return x_model;
  }

  /// Keys of the type that state what is not modelled.
  void refuse_keys() {
    for (const auto& [key, meaning] : x_config.type.refused) {
      const Json* value = x_reader.take(key);
      if (value == nullptr || *value == Json(0) || *value == Json(false)) continue;
      x_reader.fail(key,
                    "found " + describe(*value) + ": " + *meaning.string() + " is not modelled",
                    ErrorKind::kUnsupported);
    }
  }

  /// Of types that have none.
  Status refuse_experts() {
    const Json traits(x_config.type.traits);
    const bool counted = traits.find("counted_experts") != nullptr;
    if (!x_config.type.experts.is_null() || counted) return ok_status();
    for (const std::string& key : spellings_of("num_experts")) {
      const Json* experts = x_json.find(key);
      if (experts != nullptr && experts->number() > 1) {
        return unsupported(x_reader.source() + ": " + x_reader.pointer(key) + ": " + x_model.type +
                           " models with experts are not modelled; expected a model_type that has "
                           "them, such as mixtral or qwen3_moe");
      }
      x_reader.ignore(key);
    }
    return ok_status();
  }

  std::string key(const char* native) const { return key_of(x_json, x_config.type, native); }

  void size(const char* native, std::int64_t& out, bool required) {
    const std::string name = key(native);
    if (required) x_reader.require(name, "a whole number");
    x_reader.read(name, out, JsonReader::IntRange{1, kMost});
  }

  void read_shapes() {
    Model& m = x_model;
    size("num_hidden_layers", m.layers, true);
    size("hidden_size", m.hidden, true);
    size("num_attention_heads", m.heads, true);
    size("vocab_size", m.vocabulary, true);
    m.kv_heads = m.heads;
    if (!is("listed_shapes")) size("num_key_value_heads", m.kv_heads, false);
    m.head_dim = m.heads > 0 ? m.hidden / m.heads : 0;
    size("head_dim", m.head_dim, false);
    m.intermediate = 4 * m.hidden;
    size("intermediate_size", m.intermediate, m.type == "llama" || m.type == "mistral");
    if (is("intermediate_halves")) m.intermediate /= 2;
    read_rotary();
    if (is("intermediate_two_thirds")) {
      std::int64_t multiple = 256;
      x_reader.read("block_multiple_of", multiple, JsonReader::IntRange{1, 1 << 20});
      m.intermediate = round_up(2 * m.intermediate / 3, multiple);
    }
    std::int64_t positions = 0;
    const bool pair = is("encoder_decoder");
    size("max_position_embeddings", positions, m.position == Position::kLearned && !pair);
    if (m.position == Position::kLearned && !pair) {
      m.positions = positions + number_of("more_positions");
    }
    if (is("segments")) read_segments();
    if (pair) read_encoder_decoder(is("relative_positions"), is("stack_parts"), x_reader, m);
    x_reader.read(key("sliding_window"), m.sliding_window, JsonReader::IntRange{1, kMost});
    x_reader.read("attn_logit_softcapping", m.attention.score_cap, {0, kLargestCap});
    x_reader.read("final_logit_softcapping", m.ends.logit_cap, {0, kLargestCap});
    if (is("key_blocks")) read_key_blocks(x_json, x_config.type, x_reader, m);
    if (const Json* use = x_json.find("use_sliding_window"); use && *use == Json(false)) {
      m.sliding_window = 0;
    }
    const std::vector<std::string>& ignored = x_config.type.ignored;
    const char* const kChunk = "attention_chunk_size";
    if (std::find(ignored.begin(), ignored.end(), kChunk) == ignored.end()) {
      const Json* chunk = x_json.find(kChunk);
      if (chunk != nullptr && chunk->is_null()) m.attention_chunk = 0;
      x_reader.read(kChunk, m.attention_chunk, JsonReader::IntRange{1, kMost});
    }
    if (is("stack_parts")) m.sliding_window = 0;  // no stack here has layers with a window
    if (!m.notes.not_lowered.empty() || is("stack_parts")) {
      x_reader.take("layer_types");
    } else if (!is("mixers") && !is("lightning")) {
      read_layer_types();
    }
  }

  /// What rotary positions turn of a head: a share, or elements.
  void read_rotary() {
    double& share = x_model.attention.rotary_share;
    x_reader.read(key("partial_rotary_factor"), share, JsonReader::Range{1e-3, 1});
    std::int64_t turned = 0;
    if (x_reader.read("rotary_dim", turned, JsonReader::IntRange{1, kMost}) &&
        x_model.head_dim > 0) {
      share = std::min(1.0, static_cast<double>(turned) / static_cast<double>(x_model.head_dim));
    }
  }

  /// The table of segments lies behind that of positions; `max_predictions_per_seq` is the key of
  /// BERT's own pre-training scripts.
  void read_segments() {
    std::int64_t segments = 2;
    x_reader.read("type_vocab_size", segments, JsonReader::IntRange{0, kMost});
    if (x_model.position == Position::kLearned) {
      x_model.positions += segments;
    } else if (segments > 0) {
      const std::int64_t table = segments * x_model.hidden;
      x_model.notes.counted.push_back({"embeddings of segments", table, table});
    }
    x_reader.read("max_predictions_per_seq", x_model.ends.masked, JsonReader::IntRange{0, kMost});
  }

  /// Which layers have the window: as `layer_types` lists them, as a pattern says, or all.
  void read_layer_types() {
    if (const Json* types = x_reader.take("layer_types")) {
      x_reader.take("sliding_window_pattern");  // the same, as a period
      return read_listed_types(*types);
    }
    std::vector<bool> full;  // of a period
    if (const std::int64_t every = number_of("full_every"); every > 0) {
      full.assign(static_cast<std::size_t>(every), false);
      full.back() = true;
    }
    if (const Json* pattern = x_reader.take("sliding_window_pattern")) {
      if (const std::string* letters = pattern->string()) {
        full.clear();
        for (const char letter : *letters) full.push_back(letter == 'G');
      } else if (pattern->number() >= 1 && pattern->number() <= 4096) {
        full.assign(static_cast<std::size_t>(pattern->number()), false);
        full.back() = true;
      } else {
        x_reader.fail("sliding_window_pattern",
                      "found " + describe(*pattern) + ", expected a period or letters L and G");
      }
    }
    if (full.empty() || x_model.sliding_window == 0) return;
    const std::int64_t layers = std::min<std::int64_t>(x_model.layers, 1 << 16);
    for (std::int64_t l = 0; l < layers; ++l) {
      x_model.full_attention.push_back(full[static_cast<std::size_t>(l) % full.size()]);
    }
  }

  void read_listed_types(const Json& types) {
    const Json::Array* list = types.array();
    std::int64_t predicted = 0;  // kinds of layers for multi-token prediction may follow
    x_reader.read("num_nextn_predict_layers", predicted, JsonReader::IntRange{0, 1 << 10});
    const auto size = list == nullptr ? -1 : static_cast<std::int64_t>(list->size());
    bool good = size == x_model.layers || size == x_model.layers + predicted;
    for (std::size_t l = 0; good && l < static_cast<std::size_t>(x_model.layers); ++l) {
      const std::string* type = (*list)[l].string();
      good = type != nullptr && (*type == "full_attention" || *type == "sliding_attention" ||
                                 *type == "chunked_attention" || *type == "attention");
      const bool full = good && (*type == "full_attention" || *type == "attention");
      if (good) x_model.full_attention.push_back(full);
    }
    if (!good) {
      x_reader.fail("layer_types",
                    "expected \"full_attention\", \"sliding_attention\" or "
                    "\"chunked_attention\" for each layer");
    }
    if (x_model.sliding_window == 0) x_model.full_attention.clear();
  }

  void read_switches() {
    Model& m = x_model;
    x_reader.read("tie_word_embeddings", m.tied_embeddings);
    x_reader.read("use_parallel_residual", m.parallel_residual);
    read_branch_norms();
    const bool ruled = std::find(x_config.known.begin(), x_config.known.end(), "attention_bias") !=
                       x_config.known.end();
    bool attention_bias = false;
    if (!ruled && x_reader.has("attention_bias")) {
      x_reader.read("attention_bias", attention_bias);
      m.biases.qkv = m.biases.projection = attention_bias;
    }
    x_reader.read("mlp_bias", m.biases.mlp);
    x_reader.read("qkv_bias", m.biases.qkv);
    x_reader.read("lm_head_bias", m.biases.head);
    x_reader.read("use_qk_norm", m.qk_norm);
    x_reader.read(key("hidden_dropout"), m.hidden_dropout, JsonReader::Range{0, 1});
    x_reader.read(key("attention_dropout"), m.attention_dropout, JsonReader::Range{0, 1});
    read_activation();
  }

  /// Falcon's key.
  void read_branch_norms() {
    constexpr const char* kKey = "num_ln_in_parallel_attn";
    std::int64_t norms = x_model.shared_norm ? 1 : 2;
    x_reader.read(kKey, norms, JsonReader::IntRange{1, 2});
    x_model.shared_norm = norms == 1;
    if (norms == 1 && !x_model.parallel_residual) {
      x_reader.fail(kKey, "one norm for both branches needs \"use_parallel_residual\": true");
    }
  }

  void read_activation() {
    static const std::vector<std::string> names = {
        "gelu",        "gelu_new",    "gelu_fast", "gelu_pytorch_tanh",
        "gelu_python", "quick_gelu",  "geglu",     "silu",
        "swish",       "swiglu",      "relu",      "relu2",
        "xielu",       "squared_relu"};
    int index = -1;
    x_reader.read_choice(key("hidden_act"), index, names);
    if (index < 0) return;
    constexpr int kGeluNew = 1;
    constexpr int kGelus = 6;
    constexpr int kSilus = 10;
    Activation& a = x_model.activation;
    if (index <= kGelus) {
      a = is("gated") || index == kGelus ? Activation::kGeglu
          : index == kGeluNew            ? Activation::kGeluNew
                                         : Activation::kGelu;
    } else if (index < kSilus || is("gated")) {
      a = Activation::kSwiglu;  // a ReLU that gates has the same matrices
    } else {
      a = index == kSilus ? Activation::kRelu : Activation::kRelu2;
    }
  }

  void read_attn_config() {
    Model& m = x_model;
    double ratio = 4;
    x_reader.read("expansion_ratio", ratio, JsonReader::Range{1e-3, 1e3});
    if (x_json.find("intermediate_size") == nullptr) {
      m.intermediate = static_cast<std::int64_t>(ratio * static_cast<double>(m.hidden));
    }
    bool no_bias = true;
    x_reader.read("no_bias", no_bias);
    m.biases.qkv = m.biases.projection = m.biases.mlp = m.biases.norm = !no_bias;
    if (const Json* attention = x_reader.take("attn_config")) {
      JsonReader reader(*attention, x_reader.source(), x_reader.pointer("attn_config"));
      reader.read("kv_n_heads", m.kv_heads, JsonReader::IntRange{1, kMost});
      bool alibi = true;
      reader.read("alibi", alibi);
      if (!alibi) m.position = Position::kLearned;
      for (const char* name :
           {"alibi_bias_max", "attn_impl", "attn_pdrop", "attn_type", "attn_uses_sequence_id",
            "clip_qkv", "prefix_lm", "qk_ln", "softmax_scale", "qk_gn"}) {
        reader.ignore(name);
      }
      x_reader.adopt(reader.finish());
    }
    if (m.position == Position::kLearned) {
      size("max_position_embeddings", m.positions, true);
    }
  }

  void check() {
    const Model& m = x_model;
    if (x_reader.failed()) return;
    const bool stated =
        x_json.find("head_dim") != nullptr || m.is_latent() || is("relative_positions");
    if (!stated && m.hidden % m.heads != 0) {
      x_reader.fail(key("num_attention_heads"),
                    std::to_string(m.heads) + " heads do not divide hidden_size " +
                        std::to_string(m.hidden) + "; give head_dim if that is meant");
    }
    if (m.heads % m.kv_heads != 0) {
      x_reader.fail("num_key_value_heads", std::to_string(m.kv_heads) + " does not divide " +
                                               std::to_string(m.heads) + " attention heads");
    }
    // The largest product anywhere must stay far from 2^63.
    const double biggest =
        static_cast<double>(m.layers) * static_cast<double>(m.hidden) *
        (static_cast<double>(m.intermediate) * 3 + static_cast<double>(m.query_width()) * 4 +
         static_cast<double>(m.experts.count) * static_cast<double>(m.experts.width) * 3 +
         static_cast<double>(m.experts.shared_width) * 3);
    const double scans = largest_mixers(m);
    const double tables = static_cast<double>(m.vocabulary) * static_cast<double>(m.hidden) * 2 +
                          static_cast<double>(m.layers) * static_cast<double>(m.ends.layer_rows) *
                              static_cast<double>(m.ends.layer_width);
    if (biggest + scans + tables > 1e16) {
      x_reader.fail("hidden_size", "the model would have more than 10^16 parameters");
    }
  }

  const Config& x_config;
  const Json& x_json;
  JsonReader x_reader;
  Model x_model;
  std::vector<std::string> x_forms;  ///< traits that have readers of their own
};

Status refuse_type(const std::string& type, JsonReader& reader) {
  const std::vector<std::string> known = model_type_names();
  std::string text = "found \"" + type + "\", which is none of the " +
                     std::to_string(known.size()) + " types of configs/model_types";
  const std::string near = nearest_name(type, known);
  if (!near.empty()) text += " (did you mean \"" + near + "\"?)";
  text += "; docs/reference/model-types.md says how to add one";
  reader.fail("model_type", text);
  return reader.status();
}

/// The type of the text part, or of the whole file where that has none of its own.
Result<std::string> type_of(const Json& whole, const Json& part, const std::string& source,
                            const std::string& pointer) {
  JsonReader reader(part, source, pointer);
  std::string type;
  reader.read("model_type", type);
  std::string outer;
  if (&whole != &part) {
    JsonReader outside(whole, source, "");
    outside.read("model_type", outer);
    if (!is_model_type(type) && is_model_type(outer)) return outer;
    if (is_model_type(outer)) {
      FT_ASSIGN(const ModelType whole_type, load_model_type(outer));
      if (Json(whole_type.traits).find("whole_parts") != nullptr) return outer;
    }
  }
  if (type.empty()) reader.require("model_type", "a model type such as \"llama\"");
  FT_TRY(reader.status());
  if (!is_model_type(type)) FT_TRY(refuse_type(type, reader));
  return type;
}

}  // namespace

Result<Model> read_model(const Json& json, const std::string& source, const std::string& pointer) {
  Config config{json, pointer, {}, {}, is_published(json)};
  if (json.object() != nullptr && json.find("layers") == nullptr) {
    std::string place = pointer;
    const Json* part = text_part(json, place);
    FT_ASSIGN(const std::string type, type_of(json, part == nullptr ? json : *part, source, place));
    FT_ASSIGN(config.type, load_model_type(type));
    if (part != nullptr) {
      config.json = *part;
      config.pointer = place;
      config.published = true;
      config.json.set("model_type", Json(type));
      for (const char* outer : {"tie_word_embeddings", "name"}) {
        const Json* value = json.find(outer);
        if (value != nullptr && part->find(outer) == nullptr) config.json.set(outer, *value);
      }
      config.type.left_out.push_back("parts beside " + place.substr(place.rfind('/') + 1));
    }
    for (const std::string& nested : config.type.nested) open_nested(nested, config.json);
    open_lists(config.type, config.json);
    rename_kinds(config.type, config.json);
    count_listed_layers(config.json, config.type);
    for (const char* key : kListedSizes) fold_list(key, config.json);
    apply_rules(config);
    list_blocks(config.json, config.type);
    list_sparse_layers(config.json, config.type);
  }
  return ModelReader(config, source).run();
}

}  // namespace foretrain
