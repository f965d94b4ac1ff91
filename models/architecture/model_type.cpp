#include "models/architecture/model_type.h"

#include <algorithm>
#include <utility>

#include "sim/base/assets.h"

namespace foretrain {
namespace {

constexpr std::string_view kFolder = "model_types/";
constexpr std::string_view kEnd = ".json";
constexpr std::string_view kHarmless = "model_types/harmless-keys.json";

std::string path_of(const std::string& name) {
  return std::string(kFolder) + name + std::string(kEnd);
}

void read_strings(JsonReader& reader, const char* key, std::vector<std::string>& out) {
  const Json* list = reader.take(key);
  if (list == nullptr) return;
  if (list->array() == nullptr) {
    return reader.fail(key, "found " + describe(*list) + ", expected a list of texts");
  }
  for (const Json& item : *list->array()) {
    if (item.string() == nullptr) {
      reader.fail(key, "found " + describe(item) + ", expected a text");
    } else {
      out.push_back(*item.string());
    }
  }
}

void read_object(JsonReader& reader, const char* key, Json::Object& out) {
  const Json* json = reader.take(key);
  if (json == nullptr) return;
  if (json->object() == nullptr) {
    return reader.fail(key, "found " + describe(*json) + ", expected an object");
  }
  Json whole(out);
  for (const auto& [name, value] : *json->object()) whole.set(name, value);
  out = *whole.object();
}

Status add(const std::string& name, int depth, ModelType& out);

Status add(const Json& json, const std::string& path, int depth, ModelType& out) {
  constexpr int kDeepest = 8;
  if (depth > kDeepest) return input_error(path + ": /like: types are like each other in a ring");
  JsonReader reader(json, path, "");
  std::string like;
  std::string source;
  if (reader.read("like", like) && !is_model_type(like)) {
    reader.fail("like", "there is no type \"" + like + "\"");
  }
  FT_TRY(reader.status());
  if (!like.empty()) FT_TRY(add(like, depth + 1, out));
  if (!reader.read("source", source)) reader.require("source", "where this is written");
  read_object(reader, "keys", out.keys);
  read_object(reader, "defaults", out.defaults);
  read_object(reader, "class_defaults", out.class_defaults);
  read_object(reader, "traits", out.traits);
  read_object(reader, "refused", out.refused);
  if (const Json* experts = reader.take("experts")) out.experts = *experts;
  for (const auto& [key, list] : {std::pair{"rules", &out.rules}, {"counted", &out.counted}}) {
    const Json* items = reader.take(key);
    if (items == nullptr || items->array() == nullptr) continue;
    list->insert(list->end(), items->array()->begin(), items->array()->end());
  }
  read_strings(reader, "nested", out.nested);
  read_strings(reader, "ignored", out.ignored);
  read_strings(reader, "left_out", out.left_out);
  return reader.finish();
}

Status add(const std::string& name, int depth, ModelType& out) {
  const std::string path = path_of(name);
  FT_ASSIGN(const Json json, parse_json(find_asset(path), path));
  return add(json, path, depth, out);
}

}  // namespace

std::vector<std::string> model_type_names() {
  std::vector<std::string> out;
  for (const Asset& asset : assets()) {
    const std::string_view path = asset.path;
    if (!path.starts_with(kFolder) || path == kHarmless) continue;
    out.emplace_back(path.substr(kFolder.size(), path.size() - kFolder.size() - kEnd.size()));
  }
  return out;
}

bool is_model_type(const std::string& name) {
  return path_of(name) != kHarmless && !find_asset(path_of(name)).empty();
}

Result<ModelType> load_model_type(const std::string& name) {
  ModelType out;
  out.name = name;
  FT_TRY(add(name, 0, out));
  return out;
}

Result<ModelType> read_model_type(const Json& json, const std::string& source) {
  ModelType out;
  FT_TRY(add(json, source, 0, out));
  return out;
}

static Result<std::vector<std::string>> read_harmless_keys() {
  FT_ASSIGN(const Json json, parse_json(find_asset(kHarmless), std::string(kHarmless)));
  JsonReader reader(json, std::string(kHarmless), "");
  std::vector<std::string> out;
  read_strings(reader, "keys", out);
  FT_TRY(reader.finish());
  return out;
}

const Result<std::vector<std::string>>& harmless_keys() {
  static const Result<std::vector<std::string>> keys = read_harmless_keys();
  return keys;
}

}  // namespace foretrain
