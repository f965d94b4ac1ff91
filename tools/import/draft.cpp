#include "tools/import/draft.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace foretrain {
namespace {

/// Keys whose text names a preset.
bool is_preset_key(std::string_view key) { return key == "model" || key == "cluster"; }

}  // namespace

const Json* find_path(const Json& json, std::string_view path) {
  const Json* at = &json;
  while (at != nullptr && !path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    at = at->object() == nullptr ? nullptr : at->find(path.substr(0, dot));
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return at;
}

void set_path(Json& json, std::string_view path, Json value) {
  Json* at = &json;
  while (true) {
    const std::size_t dot = path.find('.');
    const std::string_view key = path.substr(0, dot);
    if (dot == std::string_view::npos) {
      at->set(key, std::move(value));
      return;
    }
    Json* next = at->find(key);
    if (next == nullptr) next = &at->set(key, Json(Json::Object{}));
    if (next->object() == nullptr) {
      Json object{Json::Object{}};
      if (next->string() != nullptr && is_preset_key(key)) object.set("preset", *next);
      if (next->string() != nullptr && key == "precision") object.set("compute", *next);
      *next = std::move(object);
    }
    at = next;
    path.remove_prefix(dot + 1);
  }
}

void erase_path(Json& json, std::string_view path) {
  const std::size_t dot = path.rfind('.');
  if (dot == std::string_view::npos) return json.erase(path);
  auto* parent = const_cast<Json*>(find_path(json, path.substr(0, dot)));  // NOLINT: json is ours
  if (parent == nullptr || parent->object() == nullptr) return;
  parent->erase(path.substr(dot + 1));
  if (parent->object()->empty()) erase_path(json, path.substr(0, dot));
}

std::int64_t whole_at(const Json& json, std::string_view path, std::int64_t otherwise) {
  const Json* value = find_path(json, path);
  if (value == nullptr || !value->is_number()) return otherwise;
  const double number = value->number();
  if (std::isnan(number)) return otherwise;
  constexpr double kMost = 1e6;
  return static_cast<std::int64_t>(std::clamp(number, -kMost, kMost));
}

bool true_at(const Json& json, std::string_view path) {
  const Json* value = find_path(json, path);
  return value != nullptr && *value == Json(true);
}

const char* precision_of_flags(const Json& run) {
  if (true_at(run, "job.fp16")) return "fp16";
  return true_at(run, "job.bf16") ? "bf16" : "fp32";
}

std::string text_at(const Json& json, std::string_view path, const std::string& otherwise) {
  const Json* value = find_path(json, path);
  return value != nullptr && value->string() != nullptr ? *value->string() : otherwise;
}

void conclude(Draft& draft, const std::string& from, const std::string& to, Json value) {
  draft.translated.push_back({from, to, value, true});
  set_path(draft.run, to, std::move(value));
}

Json value_of_word(std::string_view word) {
  std::string text(word);
  const bool quoted = text.size() >= 2 && (text.front() == '"' || text.front() == '\'') &&
                      text.back() == text.front();
  if (quoted) return Json(text.substr(1, text.size() - 2));
  if (text == "True" || text == "true") return Json(true);
  if (text == "False" || text == "false") return Json(false);
  if (text == "None" || text == "null") return Json(nullptr);
  std::string number = text;
  number.erase(std::remove(number.begin(), number.end(), '_'), number.end());  // 4_096
  const bool numeric = !number.empty() &&
                       number.find_first_not_of("+-.0123456789eE") == std::string::npos &&
                       number.find_first_of("0123456789") != std::string::npos;
  if (numeric) {
    if (number[0] == '+') number.erase(0, 1);
    if (number[0] == '.') number.insert(0, "0");
    if (number.back() == '.') number += '0';
    const Result<Json> parsed = parse_json(number, "number");
    if (parsed.ok()) return parsed.value();
  }
  if (!text.empty() && (text[0] == '[' || text[0] == '{')) {
    std::replace(text.begin(), text.end(), '\'', '"');
    const Result<Json> parsed = parse_json(text, "list");
    if (parsed.ok()) return parsed.value();
    if (text[0] == '[' && text.back() == ']' &&
        text.find_first_of("*+\"[", 1) == std::string::npos) {
      Json::Array list;  // [a, b]
      for (std::size_t at = 1; at < text.size();) {
        const std::size_t end = text.find_first_of(",]", at);
        std::string item = text.substr(at, end - at);
        item.erase(0, item.find_first_not_of(' '));
        if (!item.empty()) list.emplace_back(item);
        at = end + 1;
      }
      return Json(std::move(list));
    }
  }
  return Json(std::string(word));
}

}  // namespace foretrain
