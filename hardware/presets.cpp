#include "hardware/presets.h"

#include <algorithm>
#include <filesystem>

#include "sim/base/assets.h"

namespace foretrain {
namespace {

bool looks_like_path(const std::string& name) {
  std::error_code ignored;
  return name.find('/') != std::string::npos || name.ends_with(".json") ||
         std::filesystem::is_regular_file(name, ignored);
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

std::vector<std::string> preset_names(std::string_view folder) {
  std::vector<std::string> names;
  const std::string prefix = std::string(folder) + "/";
  for (const Asset& asset : assets()) {
    if (!asset.path.starts_with(prefix) || !asset.path.ends_with(".json")) continue;
    names.emplace_back(asset.path.substr(prefix.size(), asset.path.size() - prefix.size() - 5));
  }
  std::sort(names.begin(), names.end());  // files are in the order of their paths
  return names;
}

Result<NamedJson> load_preset(std::string_view folder, const std::string& name,
                              const std::string& source, const std::string& pointer) {
  if (looks_like_path(name)) {
    FT_ASSIGN(Json json, read_json_file(name));
    return NamedJson{std::move(json), name};
  }
  const std::string path = std::string(folder) + "/" + name + ".json";
  const std::string_view text = find_asset(path);
  if (text.empty()) {
    const std::vector<std::string> names = preset_names(folder);
    const std::string near = nearest_name(name, names);
    const std::string which = near.empty() ? "; accepted: a path or one of " + joined(names)
                                           : " (did you mean \"" + near + "\"?); `foretrain list " +
                                                 std::string(folder) + "` lists them";
    return input_error(place_in(source, pointer) + "no preset \"" + name + "\" in " +
                       std::string(folder) + which);
  }
  FT_ASSIGN(Json json, parse_json(text, "preset " + name));
  return NamedJson{std::move(json), "preset " + name};
}

Result<NamedJson> load_base(std::string_view folder, const std::string& name,
                            const std::string& source, const std::string& pointer, int depth) {
  constexpr int kMostDepth = 8;
  if (depth >= kMostDepth) {
    return input_error(place_in(source, pointer) + "presets build on each other without end at \"" +
                       name + "\"");
  }
  return load_preset(folder, name, source, pointer);
}

void read_remarks(JsonReader& reader, const std::string& expected) {
  read_schema(reader, expected);
  for (const char* key : {"sources", "figures_changed"}) reader.ignore(key);
}

std::string figures_changed(const std::string& folder, const std::string& name) {
  const Result<NamedJson> file = load_preset(folder, name, "", "");
  const Json* month = file.ok() ? file.value().json.find("figures_changed") : nullptr;
  return month == nullptr || month->string() == nullptr ? "" : *month->string();
}

std::map<std::string, std::string> preset_sources(const std::string& folder,
                                                  const std::string& name) {
  std::map<std::string, std::string> out;
  const Result<NamedJson> file = load_preset(folder, name, "", "");
  const Json* sources = file.ok() ? file.value().json.find("sources") : nullptr;
  if (sources == nullptr || sources->object() == nullptr) return out;
  for (const auto& [key, text] : *sources->object()) {
    if (text.string() == nullptr) continue;
    out["/" + key] = *text.string();
    if (key != "peaks") continue;
    for (const auto& [field, unused] : *file.value().json.object()) {
      if (field.ends_with("_tflops") || field == "int8_tops") out["/" + field] = *text.string();
    }
  }
  return out;
}

NamedGpu gpu_called(const std::string& name) {
  for (const std::string& device : preset_names("devices")) {
    const Result<NamedJson> file = load_preset("devices", device, "", "");
    if (!file.ok()) continue;
    const Json* const names = file.value().json.find("cuda_names");
    const Json* const cluster = file.value().json.find("usual_cluster");
    if (names == nullptr || names->array() == nullptr || cluster == nullptr ||
        cluster->string() == nullptr) {
      continue;
    }
    const Json::Array& all = *names->array();
    if (std::find(all.begin(), all.end(), Json(name)) != all.end()) {
      return {device, *cluster->string()};
    }
  }
  return {};
}

}  // namespace foretrain
