#include <algorithm>
#include <array>

#include "models/architecture/model_config.h"

namespace foretrain {
namespace {

/// What a type fixes of its experts: `experts` of its file.
struct ExpertForm {
  bool one_width = false;      ///< an expert is as wide as `intermediate_size` says
  bool always_shared = false;  ///< one expert more, which all tokens share
  bool shared_gate = false, router_bias = false, bias = false;
  bool groups = false;    ///< a file without them has 8 groups, of which a token reaches 4
  bool optional = false;  ///< only files that state their number have experts
  /// An MLP stands beside the experts: of the hidden width, or of `intermediate_size`.
  enum class Beside : std::uint8_t { kNone, kHidden, kIntermediate } beside = Beside::kNone;
  bool norms_after = false, scales = false;
  bool pairs = false;   ///< a layer is two, of which the first has experts beside its MLP
  std::string passing;  ///< the key with the number of experts that give a token back as it is
};

ExpertForm form_of(const ModelType& type, JsonReader& errors) {
  ExpertForm out;
  JsonReader reader(type.experts, "model_types/" + type.name + ".json", "/experts");
  const std::pair<const char*, bool*> switches[] = {{"one_width", &out.one_width},
                                                    {"always_shared", &out.always_shared},
                                                    {"shared_gate", &out.shared_gate},
                                                    {"router_bias", &out.router_bias},
                                                    {"bias", &out.bias},
                                                    {"groups", &out.groups},
                                                    {"norms_after", &out.norms_after},
                                                    {"scales", &out.scales},
                                                    {"pairs", &out.pairs},
                                                    {"optional", &out.optional}};
  for (const auto& [name, value] : switches) reader.read(name, *value);
  reader.read("passing", out.passing);
  reader.read_enum("beside", out.beside, {"none", "hidden", "intermediate"});
  errors.adopt(reader.finish());
  return out;
}

/// Routing limited to groups of experts. Without the keys deepseek_v3 has 8 groups, 4 of which a
/// token reaches: the defaults of Hugging Face's configuration class.
void read_groups(const Json& json, JsonReader& reader, bool by_default, Experts& e) {
  const auto given = [&](const char* key) {
    const Json* value = json.find(key);
    if (value != nullptr && value->is_null()) reader.ignore(key);
    return value != nullptr && !value->is_null();
  };
  const bool stated = given("n_group");
  if (!stated && by_default && e.count % 8 == 0) {
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

/// The kind of every layer by name: "sparse" or "dense".
void read_layer_words(JsonReader& reader, Model& m) {
  const Json* json = reader.take("mlp_layer_types");
  if (json == nullptr) return;
  std::vector<bool> layers;
  bool good =
      json->array() != nullptr && static_cast<std::int64_t>(json->array()->size()) == m.layers;
  for (std::size_t i = 0; good && i < json->array()->size(); ++i) {
    const Json& word = (*json->array())[i];
    layers.push_back(word == Json("sparse") || word == Json("moe") || word == Json("hash_moe"));
    good = layers[i] || word == Json("dense");
  }
  if (good) {
    m.experts.layers = std::move(layers);
  } else {
    reader.fail("mlp_layer_types", "expected \"sparse\" or \"dense\" for each of " +
                                       std::to_string(m.layers) + " layers");
  }
}

/// Layers that come in pairs, whose first has its MLP beside the experts.
void pair_layers(Model& m) {
  m.experts.shared_width = m.intermediate;
  m.layers *= 2;
  m.experts.layers.clear();
  for (std::int64_t l = 0; l < std::min<std::int64_t>(m.layers, 1 << 16); ++l) {
    m.experts.layers.push_back(l % 2 == 0);
  }
}

/// Layers with experts: those at a place of each period.
void read_expert_period(JsonReader& reader, Model& m) {
  std::int64_t period = 1;
  std::int64_t place = 0;
  reader.read("expert_layer_period", period, kConfigSize);
  reader.read("expert_layer_offset", place, JsonReader::IntRange{0, kConfigSize.high});
  m.experts.layers.clear();
  for (std::int64_t l = 0; l < std::min<std::int64_t>(m.layers, 1 << 16); ++l) {
    m.experts.layers.push_back(l % period == place);
  }
}

/// Experts that give a token back as it is (zero-computation experts, LongCat-Flash technical
/// report, arXiv 2509.01322, section 2.1): under a balanced router a token of top_k of all has
/// top_k count / (count + passing) that compute, in the mean and rounded; at least one.
void read_passing(const std::string& key, JsonReader& reader, Experts& e) {
  std::int64_t passing = 0;
  reader.read(key, passing, JsonReader::IntRange{0, 1 << 16});
  const std::int64_t all = e.count + passing;
  if (all < 1) return;  // the number of experts was at fault
  e.top_k = std::max<std::int64_t>(1, (2 * e.top_k * e.count + all) / (2 * all));
}

/// Where experts stand among the layers.
void read_places(const Json& json, const ModelType& type, JsonReader& reader, Model& m) {
  Experts& e = m.experts;
  reader.read(key_of(json, type, "first_k_dense_replace"), e.first_dense,
              JsonReader::IntRange{0, kConfigSize.high});
  const std::string step = key_of(json, type, "decoder_sparse_step");
  const Json* steps = json.find(step);
  if (steps != nullptr && steps->array() != nullptr) {
    reader.take(step);
    for (const Json& sparse : *steps->array()) e.layers.push_back(sparse.number() > 0);
    if (static_cast<std::int64_t>(e.layers.size()) != m.layers) {
      e.layers.clear();
      reader.fail(step, "found a list of other than " + std::to_string(m.layers) + " layers");
    }
  } else {
    reader.read(step, e.step, kConfigSize);
  }
  reader.read("num_nextn_predict_layers", m.predict_layers, JsonReader::IntRange{0, 1 << 10});
  if (json.find("expert_layer_period") != nullptr) read_expert_period(reader, m);
  read_layers(reader, m);
  read_layer_words(reader, m);
}

}  // namespace

bool has_experts(const Json& json, const ModelType& type) {
  if (type.experts.is_null()) return false;
  const Json* optional = type.experts.find("optional");
  const Json* count = json.find(key_of(json, type, "num_experts"));
  if (optional == nullptr || !(*optional == Json(true))) return true;
  return count != nullptr && !count->is_null() && !(*count == Json(0));
}

void read_sparse(const Json& json, const ModelType& type, JsonReader& reader, Model& m) {
  const ExpertForm form = form_of(type, reader);
  Experts& e = m.experts;
  const std::string count = key_of(json, type, "num_experts");
  reader.require(count, "a number of experts");
  reader.read(count, e.count, JsonReader::IntRange{1, 1 << 16});
  const std::string chosen = key_of(json, type, "num_experts_per_tok");
  reader.require(chosen, "the experts of a token");
  reader.read(chosen, e.top_k, kConfigSize);
  e.width = m.intermediate;
  e.router_bias = form.router_bias;
  e.bias = form.bias || m.biases.mlp;
  const std::string width = key_of(json, type, "moe_intermediate_size");
  if (!form.one_width) reader.require(width, "the width of an expert");
  reader.read(width, e.width, kConfigSize);
  reader.read(key_of(json, type, "intermediate_size_mlp"), m.intermediate, kConfigSize);
  std::int64_t shared = form.always_shared ? 1 : 0;
  reader.read(key_of(json, type, "n_shared_experts"), shared, JsonReader::IntRange{0, 1 << 16});
  e.shared_width = shared * e.width;
  reader.read(key_of(json, type, "shared_expert_intermediate_size"), e.shared_width,
              JsonReader::IntRange{0, kConfigSize.high});
  e.more.shared_gate = form.shared_gate && e.shared_width > 0;
  e.more.beside = form.beside != ExpertForm::Beside::kNone;
  if (e.more.beside) {
    e.shared_width = form.beside == ExpertForm::Beside::kHidden ? m.hidden : m.intermediate;
  }
  e.more.norms_after = form.norms_after;
  e.more.scales = form.scales;
  const Json* latent = json.find("moe_latent_size");
  if (latent != nullptr && latent->is_null()) reader.ignore("moe_latent_size");
  if (latent != nullptr && !latent->is_null()) {
    reader.read("moe_latent_size", e.more.latent, JsonReader::IntRange{0, kConfigSize.high});
  }
  if (e.more.latent > 0 && e.bias) {
    reader.fail("moe_latent_size", "experts with biases in a latent space are not modelled",
                ErrorKind::kUnsupported);
  }
  if (e.shared_width > 0 && e.bias) {
    reader.fail("n_shared_experts", "shared experts with biases are not modelled",
                ErrorKind::kUnsupported);
  }
  read_places(json, type, reader, m);
  if (form.pairs) pair_layers(m);
  if (e.top_k > e.count) {
    reader.fail(chosen, std::to_string(e.top_k) + " experts of " + std::to_string(e.count));
    return;
  }
  read_groups(json, reader, form.groups, e);
  if (!form.passing.empty()) read_passing(form.passing, reader, e);
}

void read_latent(const Json& json, JsonReader& reader, Model& m) {
  if (const Json* stated = json.find("kv_lora_rank"); stated == nullptr || stated->is_null()) {
    reader.require("kv_lora_rank", "the rank of keys and values");
    return;
  }
  LatentAttention& l = m.latent;
  const Json* rank = json.find("q_lora_rank");
  if (rank != nullptr && rank->is_null()) reader.ignore("q_lora_rank");
  if (rank != nullptr && !rank->is_null()) reader.read("q_lora_rank", l.q_rank, kConfigSize);
  reader.read("kv_lora_rank", l.kv_rank, kConfigSize);
  l.nope = l.value = 128;
  l.rope = 64;
  reader.read("qk_nope_head_dim", l.nope, kConfigSize);
  reader.read("qk_rope_head_dim", l.rope, kConfigSize);
  reader.read("v_head_dim", l.value, kConfigSize);
  if (json.find("index_n_heads") != nullptr) {
    reader.read("index_n_heads", l.index_heads, kConfigSize);
    l.index_dim = 128;
    reader.read("index_head_dim", l.index_dim, kConfigSize);
    reader.read("index_topk", l.index_keys, kConfigSize);
    std::int64_t every = 1;
    if (reader.read("index_topk_freq", every, kConfigSize) && every > 1) {
      m.notes.left_out.emplace_back(
          "layers that take the keys an earlier one chose (index_topk_freq): each chooses");
    }
  }
  m.head_dim = l.nope + l.rope;
  m.kv_heads = m.heads;
}

}  // namespace foretrain
