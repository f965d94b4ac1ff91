#include "tools/import/model_of.h"

#include <algorithm>
#include <optional>

#include "models/architecture/model.h"
#include "sim/base/assets.h"

namespace foretrain {
namespace {

/// What a model of a launch file is beside its sizes.
struct Wanted {
  std::string norm, position, activation;
  bool bias = false, qkv_bias = false, tied = false, qk_norm = false, embedding_norm = false;
};

/// A type that may stand for it, and keys that only this type needs.
struct Candidate {
  const char* type;
  Json::Object extras;
};

std::vector<Candidate> candidates(bool experts, bool latent) {
  const Json one(1.0);
  if (latent) return {{"deepseek_v3", {}}, {"deepseek_v2", {}}};
  if (experts) {
    return {
        {"mixtral", {}},   {"qwen3_moe", {}},        {"deepseek", {}},
        {"qwen2_moe", {}}, {"granitemoeshared", {}}, {"dots1", {}},
        {"gpt2", {}},      {"gpt_oss", {}},          {"phimoe", {{"partial_rotary_factor", one}}}};
  }
  return {{"llama", {}},
          {"gpt2", {}},
          {"qwen2", {}},
          {"qwen3", {}},
          {"nemotron", {{"partial_rotary_factor", one}}},
          {"starcoder2", {}},
          {"gpt_neox", {{"partial_rotary_factor", one}, {"use_parallel_residual", Json(false)}}},
          {"stablelm", {{"partial_rotary_factor", one}}},
          {"gemma", {}},
          {"mpt", {}},
          {"bloom", {}},
          {"opt", {}}};
}

const char* act_of(const std::string& activation) {
  if (activation == "swiglu") return "silu";
  return activation == "geglu" ? "gelu" : activation.c_str();
}

std::string word_of(Activation activation) {
  constexpr const char* kNames[] = {"gelu", "swiglu", "relu", "relu2", "geglu", "gelu"};
  return kNames[static_cast<std::size_t>(activation)];
}
std::string word_of(Position position) {
  constexpr const char* kNames[] = {"learned", "rope", "alibi", "none"};
  return kNames[static_cast<std::size_t>(position)];
}

/// In what `model` is other than wanted, with how much that matters.
std::vector<std::pair<int, std::string>> unlike(const Model& model, const Wanted& wanted) {
  std::vector<std::pair<int, std::string>> out;
  const auto compare = [&out](int weight, const std::string& what, const std::string& asked,
                              const std::string& got) {
    if (asked != got) out.emplace_back(weight, what + " " + asked + " is taken as " + got);
  };
  const auto yes = [](bool is) { return std::string(is ? "true" : "false"); };
  constexpr int kSize = 100;
  constexpr int kShape = 10;
  compare(kSize, "activation", wanted.activation, word_of(model.activation));
  compare(kShape, "position", wanted.position, word_of(model.position));
  compare(2, "norm", wanted.norm, model.norm == Norm::kRmsNorm ? "rms-norm" : "layer-norm");
  compare(kSize, "tied embeddings", yes(wanted.tied), yes(model.tied_embeddings));
  compare(2, "biases of queries, keys and values", yes(wanted.bias || wanted.qkv_bias),
          yes(model.biases.qkv));
  compare(2, "biases of output projections", yes(wanted.bias), yes(model.biases.projection));
  const bool mlp = model.has_experts() ? model.experts.bias : model.biases.mlp;
  compare(2, "biases of MLPs", yes(wanted.bias), yes(mlp));
  if (!model.is_latent()) {  // which has its norms in any case
    compare(kShape, "norms of queries and keys", yes(wanted.qk_norm), yes(model.qk_norm));
  }
  if (model.parallel_residual) out.emplace_back(kShape, "the residual becomes parallel");
  compare(2, "a norm behind the embedding", yes(wanted.embedding_norm), yes(model.embedding_norm));
  return out;
}

Wanted wanted_of(const Json& facts) {
  Wanted out;
  out.norm = text_at(facts, "norm", "layer-norm");
  out.position = text_at(facts, "position", "learned");
  out.activation = text_at(facts, "activation", "gelu");
  const Json* bias = facts.find("bias");
  out.bias = bias == nullptr || *bias == Json(true);
  out.qkv_bias = true_at(facts, "qkv_bias");
  const Json* tied = facts.find("tie_word_embeddings");
  out.tied = tied == nullptr || *tied == Json(true);
  out.qk_norm = true_at(facts, "qk_norm");
  out.embedding_norm = true_at(facts, "embedding_norm");
  return out;
}

/// Sizes by the names of config.json.
Json sizes_of(const Json& facts) {
  Json out{Json::Object{}};
  for (const char* key :
       {"num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
        "head_dim", "intermediate_size", "vocab_size", "max_position_embeddings",
        "partial_rotary_factor", "num_nextn_predict_layers", "sliding_window"}) {
    const Json* value = facts.find(key);
    if (value != nullptr && !(*value == Json(0))) out.set(key, *value);
  }
  // Of models with experts alone.
  if (facts.find("num_experts") == nullptr) out.erase("num_nextn_predict_layers");
  return out;
}

/// Keys of experts, by the names that type reads.
void add_experts(const Json& facts, const std::string& type, Json& out) {
  const bool one_width = type == "mixtral" || type == "gpt2" || type == "granitemoeshared" ||
                         type == "gpt_oss" || type == "phimoe";
  const Json* width = facts.find("moe_intermediate_size");
  out.set("num_experts", *facts.find("num_experts"));
  out.set("num_experts_per_tok", Json(whole_at(facts, "num_experts_per_tok", 2)));
  if (width != nullptr) out.set(one_width ? "intermediate_size" : "moe_intermediate_size", *width);
  for (const char* key : {"shared_expert_intermediate_size", "n_group", "topk_group"}) {
    if (const Json* value = facts.find(key)) out.set(key, *value);
  }
  if (type == "deepseek_v3" && facts.find("n_group") == nullptr) out.set("n_group", Json(1));
  const Json* layers = facts.find("moe_layers");
  if (layers == nullptr) return;
  if (layers->is_number()) {
    if (!(*layers == Json(1))) out.set("decoder_sparse_step", *layers);
    return;
  }
  // Dense layers first, experts behind them; or any other pattern, layer by layer.
  const Json::Array& list = *layers->array();
  std::size_t first = 0;
  while (first < list.size() && !(list[first].number() > 0)) ++first;
  const bool simple = std::all_of(list.begin() + static_cast<std::ptrdiff_t>(first), list.end(),
                                  [](const Json& one) { return one.number() > 0; });
  if (simple) {
    if (first > 0) out.set("first_k_dense_replace", Json(static_cast<std::int64_t>(first)));
  } else {
    out.set("moe_layer_freq", *layers);
  }
}

/// How good a type stands for a model, and the model that way.
struct Attempt {
  int score = 0;
  Json config;
  std::vector<std::pair<int, std::string>> differences;
};

std::optional<Attempt> try_type(const Candidate& candidate, const Json& facts, const Wanted& wanted,
                                bool explicit_biases) {
  Json config{Json::Object{}};
  config.set("model_type", Json(candidate.type));
  const Json sizes = sizes_of(facts);
  for (const auto& [key, value] : *sizes.object()) config.set(key, value);
  config.set("hidden_act", Json(act_of(wanted.activation)));
  config.set("tie_word_embeddings", Json(wanted.tied));
  for (const auto& [key, value] : candidate.extras) config.set(key, value);
  if (explicit_biases) {
    config.set("attention_bias", Json(wanted.bias));
    config.set("mlp_bias", Json(wanted.bias));
    if (wanted.qkv_bias) config.set("qkv_bias", Json(true));
  }
  if (std::string_view(candidate.type) == "mpt") {
    config.set("no_bias", Json(!wanted.bias));
    config.set("attn_config", Json(Json::Object{{"alibi", Json(wanted.position == "alibi")}}));
  }
  if (facts.find("num_experts") != nullptr) add_experts(facts, candidate.type, config);
  if (true_at(facts, "latent")) {
    for (const char* key : {"num_key_value_heads", "head_dim"}) config.erase(key);
    for (const char* key :
         {"q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) {
      if (const Json* value = facts.find(key)) config.set(key, *value);
    }
  }
  const Result<Model> model = read_model(config, "import", "/model");
  if (!model.ok()) return std::nullopt;
  Attempt out{0, config, unlike(model.value(), wanted)};
  for (const auto& [weight, unused] : out.differences) out.score += weight;
  return out;
}

}  // namespace

Model bare_model(Model model) {
  model.name.clear();
  model.type.clear();
  model.notes = {};
  model.hidden_dropout = model.attention_dropout = -1;
  if (model.hybrid.layers.empty()) model.hybrid = {};
  return model;
}

namespace {

/// The preset that is the same model, first of its own type; "": none is.
std::string preset_of(const Json& config) {
  const Result<Model> mine = read_model(config, "import", "/model");
  if (!mine.ok()) return "";
  const Model model = bare_model(mine.value());
  constexpr std::string_view kFolder = "models/";
  std::string found;
  for (const Asset& asset : assets()) {
    if (!asset.path.starts_with(kFolder)) continue;
    const Result<Json> json = parse_json(asset.text, std::string(asset.path));
    if (!json.ok() || json.value().find("model_type") == nullptr) continue;
    const Result<Model> other = read_model(json.value(), std::string(asset.path), "");
    if (!other.ok() || !(bare_model(other.value()) == model)) continue;
    std::string name(asset.path.substr(kFolder.size()));
    name.resize(name.size() - std::string_view(".json").size());
    if (other.value().type == mine.value().type) return name;
    if (found.empty()) found = name;
  }
  return found;
}

/// One rate for all dropouts is the RUN's; two are the model's.
void write_dropout(const Json& facts, Draft& draft, Json& model) {
  const Json* hidden = facts.find("hidden_dropout");
  const Json* attention = facts.find("attention_dropout");
  if (hidden == nullptr && attention == nullptr) return;
  const Json rate = hidden != nullptr ? *hidden : *attention;
  if (hidden == nullptr || attention == nullptr || *hidden == *attention) {
    draft.run.set("dropout", rate);
    return;
  }
  if (model.string() != nullptr) model = Json(Json::Object{{"preset", model}});
  model.set("hidden_dropout", *hidden);
  model.set("attention_dropout", *attention);
}

}  // namespace

Status write_model(Draft& draft) {
  const Json* found = draft.run.find("model");
  const Json facts = found == nullptr ? Json(Json::Object{}) : *found;
  const Wanted wanted = wanted_of(facts);
  const auto types = candidates(facts.find("num_experts") != nullptr, true_at(facts, "latent"));
  std::optional<Attempt> best;
  for (const Candidate& candidate : types) {
    for (const bool biases : {false, true}) {
      const std::optional<Attempt> one = try_type(candidate, facts, wanted, biases);
      if (one && (!best || one->score < best->score)) best = one;
    }
  }
  if (!best) {
    // The first type's own words say what is wrong with the sizes.
    Json config = sizes_of(facts);
    config.set("model_type", Json(types.front().type));
    if (facts.find("num_experts") != nullptr) add_experts(facts, types.front().type, config);
    const Result<Model> model = read_model(config, "import", "/model");
    if (!model.ok()) return model.error();
    return input_error("import: no model type has these sizes together");
  }
  if (whole_at(facts, "num_nextn_predict_layers", 0) > 0 && facts.find("num_experts") == nullptr) {
    draft.not_modelled.push_back({"multi-token prediction", "of models with experts alone"});
  }
  for (const auto& [unused, text] : best->differences) {
    draft.not_modelled.push_back({"model", "no model type has all of it: " + text});
  }
  const std::string preset = preset_of(best->config);
  Json model = preset.empty() ? best->config : Json(preset);
  write_dropout(facts, draft, model);
  draft.run.set("model", std::move(model));
  return ok_status();
}

Status write_model(const Json& config, Draft& draft) {
  const std::string preset = preset_of(config);
  draft.translated.push_back({"config.json", "model", Json(), false});
  draft.run.set("model", preset.empty() ? config : Json(preset));
  return ok_status();
}

}  // namespace foretrain
