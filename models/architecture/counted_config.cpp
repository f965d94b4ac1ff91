// Parameters that a type has beside those of the model's pieces: `counted` of its file.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "models/architecture/model_config.h"

namespace foretrain {
namespace {

constexpr double kMostCounted = 1e16;

double layers_with(const Model& m, bool attention, bool sparse) {
  double out = 0;
  for (std::int64_t l = 0; l < std::min<std::int64_t>(m.layers, 1 << 16); ++l) {
    const LayerKind kind = m.kind(l);
    const bool wanted = sparse ? kind.sparse() : kind.mixes() && kind.attends() == attention;
    if (wanted) ++out;
  }
  return out;
}

/// A size of the model by the name of its key, or a number of its layers.
std::optional<double> size_of(const Model& m, const std::string& name) {
  if (name == "attention_layers") return layers_with(m, true, false);
  if (name == "other_layers") return layers_with(m, false, false);
  if (name == "sparse_layers") return layers_with(m, true, true);
  const std::pair<const char*, std::int64_t> sizes[] = {
      {"layers", m.layers},
      {"stack_layers", m.encoder_layers + m.decoder_layers},
      {"encoder_layers", m.encoder_layers},
      {"decoder_layers", m.decoder_layers},
      {"hidden_size", m.hidden},
      {"num_attention_heads", m.heads},
      {"num_key_value_heads", m.kv_heads},
      {"head_dim", m.head_dim},
      {"intermediate_size", m.intermediate},
      {"vocab_size", m.vocabulary},
      {"moe_intermediate_size", m.experts.width}};
  for (const auto& [key, size] : sizes) {
    if (name == key) return static_cast<double>(size);
  }
  return std::nullopt;
}

class CountedReader {
 public:
  CountedReader(const Json& json, const ModelType& type, JsonReader& reader, Model& model)
      : x_json(json), x_type(type), x_reader(reader), x_model(model) {}

  void read(const Json& part) {
    JsonReader row(part, "model_types/" + x_type.name + ".json", "/counted");
    CountedPart out;
    row.read("what", out.what);
    const Json* size = row.require("size", "numbers and names of keys to multiply");
    const Json* when = row.take("when");
    const Json* active = row.take("active");
    std::string with;
    row.read("with", with);
    x_reader.adopt(row.finish());
    const bool holds = matches(when) && (with.empty() || is_set(with));
    const std::int64_t parameters = product(size);
    const std::int64_t seen = active == nullptr ? parameters : product(active);
    if (!holds || parameters == 0) return;
    out.parameters = parameters;
    out.active = seen;
    x_model.notes.counted.push_back(std::move(out));
  }

 private:
  /// Whether the keys of the file have the values that `when` names.
  bool matches(const Json* when) {
    if (when == nullptr || when->object() == nullptr) return true;
    bool all = true;
    for (const auto& [key, value] : *when->object()) {
      x_reader.take(key);
      const Json* stated = x_json.find(key);
      all = all && (stated == nullptr ? value.is_null() : *stated == value);
    }
    return all;
  }

  /// Whether the file has the key, with another value than 0 and false.
  bool is_set(const std::string& key) {
    const Json* value = x_reader.take(key);
    return value != nullptr && !(*value == Json(0)) && !(*value == Json(false));
  }

  /// Layers for which the list `key` has the word or number `value`.
  double layers_of(const std::string& key, const std::string& value) {
    const Json* list = x_reader.take(key);
    if (list == nullptr || list->array() == nullptr) return 0;
    const auto layers = static_cast<std::size_t>(std::max<std::int64_t>(x_model.layers, 0));
    double out = 0;
    for (std::size_t l = 0; l < std::min(layers, list->array()->size()); ++l) {
      const Json& kind = (*list->array())[l];
      const std::string text = kind.string() != nullptr ? *kind.string() : dump_json(kind, -1);
      if (text == value) ++out;
    }
    return out;
  }

  double factor(const Json& item) {
    const std::string* name = item.string();
    if (name == nullptr) return item.number();
    if (const std::optional<double> size = size_of(x_model, *name)) return *size;
    if (const std::size_t equals = name->find('='); equals != std::string::npos) {
      return layers_of(name->substr(0, equals), name->substr(equals + 1));
    }
    const std::string key = key_of(x_json, x_type, *name);
    const Json* stated = x_json.find(key);
    if (stated != nullptr && stated->array() != nullptr) {
      x_reader.take(key);
      return static_cast<double>(stated->array()->size());
    }
    std::int64_t value = 0;
    x_reader.read(key, value, JsonReader::IntRange{0, kConfigSize.high});
    return static_cast<double>(value);
  }

  std::int64_t product(const Json* factors) {
    if (factors == nullptr || factors->array() == nullptr) return 0;
    double out = 1;
    for (const Json& item : *factors->array()) out *= factor(item);
    if (std::abs(out) <= kMostCounted) return static_cast<std::int64_t>(std::llround(out));
    x_reader.fail("hidden_size", "the model would have more than 10^16 parameters");
    return 0;
  }

  const Json& x_json;
  const ModelType& x_type;
  JsonReader& x_reader;
  Model& x_model;
};

}  // namespace

void read_counted(const Json& json, const ModelType& type, JsonReader& reader, Model& model) {
  CountedReader counted(json, type, reader, model);
  for (const Json& part : type.counted) counted.read(part);
  // Both ends share a table that has no room for a bias of one of them.
  if (model.tied_embeddings && model.biases.head && model.ends.classes == 0) {
    model.biases.head = false;
    model.notes.counted.push_back(
        {"a bias of the tied output matrix", model.vocabulary, model.vocabulary});
  }
  std::vector<std::string> told;
  std::string text;
  for (const CountedPart& part : model.notes.counted) {
    if (std::find(told.begin(), told.end(), part.what) != told.end()) continue;
    told.push_back(part.what);
    text += (text.empty() ? "" : "; ") + part.what;
  }
  if (text.empty()) return;
  model.notes.left_out.push_back(text + ": counted, without memory, time or FLOPs");
}

}  // namespace foretrain
