#include "tools/import/documents.h"

#include <yaml-cpp/yaml.h>

#include <toml++/toml.h>
#include <algorithm>
#include <optional>
#include <sstream>

namespace foretrain {
namespace {

constexpr std::size_t kDeepestLevels = 64;
constexpr std::size_t kMostValues = 10'000;

Error too_large(const std::string& source) {
  return input_error(source + ": more than 64 levels or 10,000 values; is this a launch file?");
}

/// Brackets and indents nest deeper than a parser that recurses should follow.
bool nests_too_deep(std::string_view text) {
  std::size_t depth = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') ++depth;
    if ((c == ']' || c == '}') && depth > 0) --depth;
    if (depth > kDeepestLevels) return true;
  }
  // Block collections of YAML: "- - - -" on one line, or a deeper indent on each.
  std::size_t dashes = 0;
  std::size_t indent = 0;
  std::size_t deeper = 0;
  bool leads = true;
  for (const char c : text) {
    if (c == '\n') {
      dashes = indent = 0;
      leads = true;
      continue;
    }
    if (!leads) continue;
    if (c == ' ') {
      ++indent;
    } else if (c == '-' || c == '?' || c == ':') {
      ++dashes;
    } else {
      leads = false;
      deeper = std::max(deeper, indent);
    }
    if (dashes > kDeepestLevels) return true;
  }
  constexpr std::size_t kWidest = 512;
  return deeper > kWidest;
}

std::optional<Json> of_yaml(const YAML::Node& node, std::size_t depth, std::size_t& left) {
  if (depth > kDeepestLevels || left == 0) return std::nullopt;
  --left;
  if (node.IsSequence()) {
    Json::Array list;
    for (const YAML::Node& item : node) {
      std::optional<Json> value = of_yaml(item, depth + 1, left);
      if (!value) return std::nullopt;
      list.push_back(std::move(*value));
    }
    return Json(std::move(list));
  }
  if (node.IsMap()) {
    Json out{Json::Object{}};
    Json merged{Json::Object{}};
    for (const auto& item : node) {
      if (!item.first.IsScalar()) return std::nullopt;
      std::optional<Json> value = of_yaml(item.second, depth + 1, left);
      if (!value) return std::nullopt;
      const std::string& key = item.first.Scalar();
      (key == "<<" ? merged : out).set(key, std::move(*value));
    }
    if (const Json* below = merged.find("<<"); below != nullptr && below->object() != nullptr) {
      for (const auto& [key, value] : *below->object()) {
        if (out.find(key) == nullptr) out.set(key, value);
      }
    }
    return out;
  }
  if (!node.IsScalar()) return Json(nullptr);
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return Json(text);  // quoted
  if (text == "~" || text.empty()) return Json(nullptr);
  if (text == "yes" || text == "on" || text == "Yes" || text == "On" || text == "TRUE") {
    return Json(true);
  }
  if (text == "no" || text == "off" || text == "No" || text == "Off" || text == "FALSE") {
    return Json(false);
  }
  return value_of_word(text);
}

std::optional<Json> of_toml(const toml::node& node, std::size_t depth, std::size_t& left) {
  if (depth > kDeepestLevels || left == 0) return std::nullopt;
  --left;
  if (const toml::table* table = node.as_table()) {
    Json out{Json::Object{}};
    for (const auto& [key, item] : *table) {
      std::optional<Json> value = of_toml(item, depth + 1, left);
      if (!value) return std::nullopt;
      out.set(std::string(key.str()), std::move(*value));
    }
    return out;
  }
  if (const toml::array* array = node.as_array()) {
    Json::Array list;
    for (const toml::node& item : *array) {
      std::optional<Json> value = of_toml(item, depth + 1, left);
      if (!value) return std::nullopt;
      list.push_back(std::move(*value));
    }
    return Json(std::move(list));
  }
  if (const auto* text = node.as_string()) return Json(text->get());
  if (const auto* whole = node.as_integer()) return Json(whole->get());
  if (const auto* number = node.as_floating_point()) return Json(number->get());
  if (const auto* flag = node.as_boolean()) return Json(flag->get());
  std::ostringstream date;
  node.visit([&date](const auto& value) {
    if constexpr (toml::is_chronological<decltype(value)>) date << value.get();
  });
  return Json(date.str());
}

constexpr std::size_t kMostReferences = 16;

/// The text with ${a.b} in place of what stands there; the whole value where nothing else stands
/// beside it.
Json referred(const Json& document, const Json& value, const std::string& path,
              std::set<std::string>& missing) {
  Json at = value;
  for (std::size_t i = 0; i < kMostReferences; ++i) {
    const std::string* text = at.string();
    if (text == nullptr) return at;
    const std::size_t begin = text->find("${");
    const std::size_t end = begin == std::string::npos ? begin : text->find('}', begin);
    if (end == std::string::npos) return at;
    std::string name = text->substr(begin + 2, end - begin - 2);
    if (name.starts_with('.') && path.find('.') != std::string::npos) {  // beside this one
      name = path.substr(0, path.rfind('.')) + name;
    }
    const Json* found = find_path(document, name);
    const bool plain = found != nullptr && found->object() == nullptr && found->array() == nullptr;
    if (!plain) {
      missing.insert(name);
      return at;
    }
    if (begin == 0 && end + 1 == text->size()) {
      const Json whole = *found;
      at = whole;
      continue;
    }
    constexpr std::size_t kLongest = 4096;
    const std::string put = found->string() != nullptr ? *found->string() : dump_json(*found, -1);
    std::string out = text->substr(0, begin) + put + text->substr(end + 1);
    if (out.size() > kLongest) break;
    at = value_of_word(out);
  }
  if (at.string() != nullptr && at.string()->find("${") != std::string::npos) {
    missing.insert(*value.string());
  }
  return at;
}

void list_settings(const Json& document, const Json& at, const std::string& path,
                   const std::string& source, std::vector<Setting>& out) {
  if (at.object() != nullptr) {
    for (const auto& [key, value] : *at.object()) {
      std::string name = key;
      name.erase(0, std::min(name.find_first_not_of('-'), name.size()));
      std::replace(name.begin(), name.end(), '-', '_');
      list_settings(document, value, path.empty() ? name : path + "." + name, source, out);
    }
    return;
  }
  if (path.empty()) return;
  Setting setting{path, {}, "", source, {}};
  setting.value = referred(document, at, path, setting.missing);
  constexpr std::size_t kLongest = 100;
  std::string text = at.string() != nullptr ? *at.string() : dump_json(at, -1);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  setting.from = path + ": " + text;
  out.push_back(std::move(setting));
}

}  // namespace

Result<Json> parse_yaml(std::string_view text, const std::string& source) {
  if (nests_too_deep(text)) return too_large(source);
  try {
    const YAML::Node node = YAML::Load(std::string(text));
    std::size_t left = kMostValues;
    std::optional<Json> out = of_yaml(node, 0, left);
    if (out) return std::move(*out);
    return too_large(source);
  } catch (const YAML::Exception& error) {
    const bool placed = error.mark.line >= 0;
    return input_error(source + (placed ? ":" + std::to_string(error.mark.line + 1) : "") + ": " +
                       error.msg + " (as YAML)");
  }
}

Result<Json> parse_toml(std::string_view text, const std::string& source) {
  if (nests_too_deep(text)) return too_large(source);
  try {
    const toml::table table = toml::parse(text);
    std::size_t left = kMostValues;
    std::optional<Json> out = of_toml(table, 0, left);
    if (out) return std::move(*out);
    return too_large(source);
  } catch (const toml::parse_error& error) {
    return input_error(source + ":" + std::to_string(error.source().begin.line) + ": " +
                       std::string(error.description()) + " (as TOML)");
  }
}

std::vector<Setting> settings_of(const Json& document, const std::string& source) {
  std::vector<Setting> out;
  list_settings(document, document, "", source, out);
  return out;
}

}  // namespace foretrain
