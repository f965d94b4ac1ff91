#include <algorithm>
#include <array>

#include "models/architecture/model_config.h"
#include "models/architecture/network_config.h"

namespace foretrain {
namespace {

constexpr std::int64_t kMost = 1'000'000'000;

/// Keys of hub files that change neither shapes nor costs.
constexpr std::array kIgnored = {
    "source", "position_embedding_type", "parameters_published", "architectures", "torch_dtype",
    "dtype", "transformers_version", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id",
    "initializer_range", "use_cache", "rope_theta", "rope_scaling", "rms_norm_eps", "norm_eps",
    "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "pretraining_tp", "attn_implementation",
    "_name_or_path", "rotary_pct", "rotary_emb_base", "partial_rotary_factor", "rope_percent",
    "max_window_layers", "use_sliding_window", "auto_map", "_from_model_config", "tokenizer_class",
    "summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "task_specific_params", "scale_attn_weights",
    "reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx", "do_sample", "max_length",
    "prefix", "layerdrop", "init_std", "enable_bias", "layer_norm_elementwise_affine",
    "_remove_final_layer_norm", "apply_residual_connection_post_layernorm",
    "attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi",
    "seq_length", "skip_bias_add", "skip_bias_add_qkv", "slow_but_exact", "unk_token_id", "n_ctx",
    "hidden_act_param", "init_config", "init_device", "learned_pos_emb", "logit_scale", "verbose",
    "embedding_fraction", "use_bfloat16", "model_dtype", "classifier_dropout", "head_dropout",
    "is_decoder", "id2label", "label2id", "gradient_checkpointing", "output_attentions",
    "output_hidden_states", "fused_layer_norm", "quantization_config", "generation_config",
    "license", "no_sync", "tie_encoder_decoder", "resid_pdrop_note",
    // Grok-1's factors, and what bounds its scores.
    "attn_output_multiplier", "output_multiplier_scale", "embedding_multiplier_scale",
    "max_attn_value", "max_attn_val",
    // Llama 4: layers without rotary positions, scales of queries.
    "no_rope_layers", "no_rope_layer_interval", "attn_temperature_tuning", "floor_scale",
    "attn_scale", "for_llm_compression", "cache_implementation", "rope_parameters",
    "original_max_position_embeddings"};

struct Spelling {
  const char* native;
  std::array<const char*, 4> others;
};
constexpr Spelling kSpellings[] = {
    {"num_hidden_layers", {"n_layer", "n_layers", "num_layers", "encoder_layers"}},
    {"hidden_size", {"n_embd", "d_model", "n_embed"}},
    {"num_attention_heads", {"n_head", "n_heads", "num_heads", "encoder_attention_heads"}},
    {"intermediate_size", {"n_inner", "ffn_dim", "d_ff", "encoder_ffn_dim"}},
    {"max_position_embeddings", {"n_positions", "max_seq_len", nullptr}},
    {"hidden_act", {"activation_function", "mlp_hidden_act", nullptr}},
    {"attention_dropout", {"attn_pdrop", "attention_probs_dropout_prob", nullptr}},
    {"hidden_dropout", {"resid_pdrop", "dropout", "hidden_dropout_prob"}},
};

}  // namespace

std::vector<std::string> spellings_of(const std::string& key) {
  for (const Spelling& spelling : kSpellings) {
    std::vector<std::string> all = {spelling.native};
    for (const char* other : spelling.others) {
      if (other != nullptr) all.emplace_back(other);
    }
    if (std::find(all.begin(), all.end(), key) != all.end()) return all;
  }
  return {key};
}

namespace {

class ModelReader {
 public:
  ModelReader(const Json& json, const std::string& source, const std::string& pointer)
      : x_json(json), x_reader(json, source, pointer) {
    x_reader.take("$schema");
  }

  Result<Model> run() {
    x_reader.read("name", x_model.name);
    if (const Json* layers = x_reader.take("layers")) return read_layers(*layers);
    x_reader.read("model_type", x_model.type);
    if (x_model.type.empty()) x_reader.require("model_type", "a model type such as \"llama\"");
    FT_TRY(refuse_other_types());
    set_type_defaults();
    read_shapes();
    read_switches();
    if (has_experts(x_json, x_model.type)) read_sparse(x_json, x_reader, x_model);
    if (is_hybrid_type(x_model.type)) read_hybrid(x_json, x_reader, x_model);
    if (x_model.type == "mpt") read_mpt();
    for (const char* key : kIgnored) x_reader.ignore(key);
    x_reader.ignore("embd_pdrop");
    x_reader.ignore("emb_pdrop");
    x_reader.ignore("emb_dropout");
    check();
    FT_TRY(x_reader.finish());
    x_model.notes.ignored = x_reader.ignored();
    if (x_model.name.empty()) x_model.name = x_model.type;
    return x_model;
  }

 private:
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

  Status refuse_other_types() {
    static const std::vector<std::string> known = {
        "gpt2",      "gpt_neox",  "opt",    "bloom",       "llama",       "mistral",
        "qwen2",     "qwen3",     "phi3",   "nemotron",    "mpt",         "mixtral",
        "qwen2_moe", "qwen3_moe", "grok-1", "llama4_text", "deepseek_v2", "deepseek_v3",
        "gpt_oss",   "bert",      "t5",     "marian",      "nemotron_h",  "granitemoehybrid",
        "bamba"};
    if (x_reader.failed()) return x_reader.status();
    if (std::find(known.begin(), known.end(), x_model.type) != known.end()) {
      return refuse_experts(known);
    }
    std::string text = "found \"" + x_model.type + "\", expected one of " + list_of(known);
    const std::string near = nearest_name(x_model.type, known);
    if (!near.empty()) text += " (did you mean \"" + near + "\"?)";
    x_reader.fail("model_type", text);
    return x_reader.finish();
  }

  static std::string list_of(const std::vector<std::string>& names) {
    std::string out;
    for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
    return out;
  }

  /// Of types that have none.
  Status refuse_experts(const std::vector<std::string>& known) {
    if (has_experts(x_json, x_model.type)) return ok_status();
    for (const char* key : kExpertCounts) {
      const Json* experts = x_json.find(key);
      if (experts != nullptr && experts->number() > 1) {
        std::vector<std::string> with;
        const Json one = Json::Object{{key, *experts}};
        std::copy_if(known.begin(), known.end(), std::back_inserter(with),
                     [&one](const std::string& type) { return has_experts(one, type); });
        return unsupported(x_reader.source() + ": " + x_reader.pointer(key) + ": " + x_model.type +
                           " models with experts are not modelled yet; expected " + "model_type " +
                           list_of(with));
      }
      x_reader.ignore(key);
    }
    return ok_status();
  }

  /// What each family fixes in its code rather than in its file.
  void set_type_defaults() {
    Model& m = x_model;
    const std::string& type = m.type;
    const bool bert = type == "bert";
    const bool marian = type == "marian";
    const bool classic =
        type == "gpt2" || type == "gpt_neox" || type == "opt" || type == "bloom" || bert || marian;
    if (classic || type == "mpt" || type == "nemotron") m.norm = Norm::kLayerNorm;
    m.norm_bias = classic || type == "nemotron";
    if (classic) m.qkv_bias = m.projection_bias = m.mlp_bias = true;
    m.activation = classic || type == "mpt" ? Activation::kGelu : Activation::kSwiglu;
    if (type.starts_with("nemotron")) m.activation = Activation::kRelu2;
    if (type == "nemotron_h") m.position = Position::kNone;
    if (type == "opt") m.activation = Activation::kRelu;
    if (type == "gpt2" || type == "opt" || bert) m.position = Position::kLearned;
    if (type == "bloom" || type == "mpt") m.position = Position::kAlibi;
    m.tied_embeddings = type == "gpt2" || type == "opt" || type == "bloom" || type == "mpt" || bert;
    if (type == "t5" || marian) {
      m.position = Position::kLearned;  // of which no row stands in a table
      m.tied_embeddings = true;
    }
    m.bidirectional = bert;
    m.parallel_residual = type == "gpt_neox";
    m.embedding_norm = type == "bloom" || bert;
    m.qkv_bias = m.qkv_bias || type.starts_with("qwen2") || type == "gpt_oss";
    m.projection_bias = m.projection_bias || type == "gpt_oss";
    m.qk_norm = type == "qwen3" || type == "qwen3_moe" || type == "llama4_text";
    if (type == "llama4_text") m.attention_chunk = 8192;
    if (type == "grok-1") {
      m.tied_embeddings = true;
      m.notes.left_out = {"norms behind attention and experts",
                          "gelu in the gate of experts, which is taken as silu"};
    }
  }

  /// The spelling of `native` that this file uses.
  std::string key(const char* native) {
    for (const Spelling& spelling : kSpellings) {
      if (std::string_view(spelling.native) != native) continue;
      for (const char* other : spelling.others) {
        if (other != nullptr && x_json.find(native) == nullptr && x_json.find(other) != nullptr) {
          return other;
        }
      }
    }
    return native;
  }

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
    x_reader.read("num_key_value_heads", m.kv_heads, JsonReader::IntRange{1, kMost});
    m.head_dim = m.heads > 0 ? m.hidden / m.heads : 0;
    x_reader.read("head_dim", m.head_dim, JsonReader::IntRange{1, kMost});
    m.intermediate = 4 * m.hidden;
    size("intermediate_size", m.intermediate, m.type == "llama" || m.type == "mistral");
    std::int64_t positions = 0;
    const bool pair = is_encoder_decoder_type(m.type);
    size("max_position_embeddings", positions, m.position == Position::kLearned && !pair);
    if (pair) positions = 0;
    // OPT's table has two more rows than positions (its padding offset).
    if (m.position == Position::kLearned) m.positions = positions + (m.type == "opt" ? 2 : 0);
    if (m.type == "bert") read_bert();
    if (is_encoder_decoder_type(m.type)) read_encoder_decoder(x_reader, m);
    x_reader.read("sliding_window", m.sliding_window, JsonReader::IntRange{1, kMost});
    if (const Json* use = x_json.find("use_sliding_window"); use && *use == Json(false)) {
      m.sliding_window = 0;
    }
    const Json* chunk = x_json.find("attention_chunk_size");
    if (chunk != nullptr && chunk->is_null()) m.attention_chunk = 0;
    x_reader.read("attention_chunk_size", m.attention_chunk, JsonReader::IntRange{1, kMost});
    if (!is_hybrid_type(m.type)) read_layer_types();
  }

  /// The table of segments lies behind that of positions; `max_predictions_per_seq` is the key of
  /// BERT's own pre-training scripts.
  void read_bert() {
    std::int64_t segments = 2;
    x_reader.read("type_vocab_size", segments, JsonReader::IntRange{0, kMost});
    x_model.positions += segments;
    x_reader.read("max_predictions_per_seq", x_model.masked, JsonReader::IntRange{0, kMost});
  }

  /// Which layers have the window; without a list all of them.
  void read_layer_types() {
    const Json* types = x_reader.take("layer_types");
    if (types == nullptr) return;
    const Json::Array* list = types->array();
    bool good = list != nullptr && static_cast<std::int64_t>(list->size()) == x_model.layers;
    for (std::size_t l = 0; good && l < list->size(); ++l) {
      const std::string* type = (*list)[l].string();
      good = type != nullptr && (*type == "full_attention" || *type == "sliding_attention" ||
                                 *type == "chunked_attention");
      if (good) x_model.full_attention.push_back(*type == "full_attention");
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
    bool attention_bias = false;
    if (x_reader.has("attention_bias")) {
      x_reader.read("attention_bias", attention_bias);
      m.qkv_bias = m.projection_bias = attention_bias;
    }
    x_reader.read("mlp_bias", m.mlp_bias);
    x_reader.read("qkv_bias", m.qkv_bias);
    x_reader.read("use_qk_norm", m.qk_norm);
    if (m.type == "llama4_text" && m.qk_norm) {
      m.notes.left_out.emplace_back(
          "that norms of queries and keys have no weights, and layers without rotary positions "
          "no such norms");
    }
    x_reader.read(key("hidden_dropout"), m.hidden_dropout, JsonReader::Range{0, 1});
    x_reader.read(key("attention_dropout"), m.attention_dropout, JsonReader::Range{0, 1});
    x_reader.ignore("activation_dropout");
    read_activation();
    if (m.type == "opt") {
      std::int64_t width = m.hidden;
      x_reader.read("word_embed_proj_dim", width, JsonReader::IntRange{1, kMost});
      bool before = true;
      x_reader.read("do_layer_norm_before", before);
      if (width != m.hidden || !before) {
        x_reader.fail("word_embed_proj_dim",
                      "OPT with an embedding projection or post-norm is not modelled yet",
                      ErrorKind::kUnsupported);
      }
    }
  }

  /// Falcon's key.
  void read_branch_norms() {
    constexpr const char* kKey = "num_ln_in_parallel_attn";
    std::int64_t norms = 2;
    x_reader.read(kKey, norms, JsonReader::IntRange{1, 2});
    x_model.shared_norm = norms == 1;
    if (norms == 1 && !x_model.parallel_residual) {
      x_reader.fail(kKey, "one norm for both branches needs \"use_parallel_residual\": true");
    }
  }

  void read_activation() {
    static const std::vector<std::string> names = {
        "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "silu", "relu", "relu2"};
    int index = -1;
    x_reader.read_choice(key("hidden_act"), index, names);
    if (index < 0) return;
    const bool gated = x_model.type == "grok-1";
    if (index <= 3) x_model.activation = gated ? Activation::kSwiglu : Activation::kGelu;
    if (index == 4) x_model.activation = Activation::kSwiglu;
    if (index == 5) x_model.activation = Activation::kRelu;
    if (index == 6) x_model.activation = Activation::kRelu2;
  }

  void read_mpt() {
    Model& m = x_model;
    double ratio = 4;
    x_reader.read("expansion_ratio", ratio, JsonReader::Range{1e-3, 1e3});
    if (x_json.find("intermediate_size") == nullptr) {
      m.intermediate = static_cast<std::int64_t>(ratio * static_cast<double>(m.hidden));
    }
    bool no_bias = true;
    x_reader.read("no_bias", no_bias);
    m.qkv_bias = m.projection_bias = m.mlp_bias = m.norm_bias = !no_bias;
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
    if (x_json.find("head_dim") == nullptr && m.hidden % m.heads != 0) {
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
    const double tables = static_cast<double>(m.vocabulary) * static_cast<double>(m.hidden) * 2;
    if (biggest + tables > 1e16) {
      x_reader.fail("hidden_size", "the model would have more than 10^16 parameters");
    }
  }

  const Json& x_json;
  JsonReader x_reader;
  Model x_model;
};

}  // namespace

Result<Model> read_model(const Json& json, const std::string& source, const std::string& pointer) {
  return ModelReader(json, source, pointer).run();
}

}  // namespace foretrain
