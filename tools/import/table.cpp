#include "tools/import/table.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/base/assets.h"

namespace foretrain {
namespace {

constexpr std::string_view kTables = "import/";

std::string word_of(const Json& value) {
  if (value.string() != nullptr) return *value.string();
  return dump_json(value, -1);
}

/// "YYYY-MM" of a release: as it is written, or as the table dates it; "": none.
std::string date_of(const std::string& software, const Json& releases) {
  const auto is_date = [](const std::string& text) {
    return text.size() >= 4 && text.find_first_not_of("0123456789-") == std::string::npos;
  };
  if (is_date(software)) return software.size() == 4 ? software + "-12" : software;
  const Json* date = releases.find(software);
  if (date != nullptr && date->string() != nullptr) return *date->string();
  const std::size_t dash = software.rfind("-20");  // torchtitan-2025-06
  if (dash == std::string::npos) return "";
  const std::string tail = software.substr(dash + 1);
  return is_date(tail) ? tail : "";
}

}  // namespace

std::vector<std::string> Table::names() {
  std::vector<std::string> out;
  for (const Asset& asset : assets()) {
    if (!asset.path.starts_with(kTables)) continue;
    std::string name(asset.path.substr(kTables.size()));
    out.push_back(name.substr(0, name.size() - std::string_view(".json").size()));
  }
  return out;
}

Result<Table> Table::load(const std::string& name) {
  const std::string path = std::string(kTables) + name + ".json";
  const std::string_view text = find_asset(path);
  FT_CHECK(!text.empty(), "no such table of imports");
  Table out;
  FT_ASSIGN(out.x_json, parse_json(text, path));
  const std::string like = text_at(out.x_json, "like");
  if (like.empty()) return out;
  FT_ASSIGN(Table base, load(like));
  for (const auto& [key, value] : *out.x_json.object()) {
    Json* below = base.x_json.find(key);
    if (below != nullptr && below->object() != nullptr && value.object() != nullptr) {
      for (const auto& [inner, item] : *value.object()) below->set(inner, item);
    } else if (below != nullptr && below->array() != nullptr && value.array() != nullptr) {
      Json::Array both = *below->array();
      both.insert(both.end(), value.array()->begin(), value.array()->end());
      *below = Json(std::move(both));
    } else {
      base.x_json.set(key, value);
    }
  }
  base.x_json.erase("like");
  return base;
}

std::vector<std::string> Table::names_of(const std::string& key) const {
  std::vector<std::string> out = {key};
  if (!true_at(x_json, "leaf")) return out;
  for (std::size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1)) {
    out.push_back(key.substr(dot + 1));
  }
  return out;
}

const Json* Table::row(const std::string& key) const {
  const Json* rows = x_json.find("rows");
  for (const std::string& name : names_of(key)) {
    if (const Json* found = rows->find(name)) return found;
  }
  return nullptr;
}

bool Table::has_no_effect(const std::string& key) const {
  const Json* list = x_json.find("no_effect");
  const std::vector<std::string> names = names_of(key);
  const auto is = [](const std::string& pattern, const std::string& name) {
    if (!pattern.ends_with('*')) return name == pattern;
    return name.starts_with(std::string_view(pattern).substr(0, pattern.size() - 1));
  };
  return std::any_of(list->array()->begin(), list->array()->end(), [&](const Json& one) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return is(*one.string(), name); });
  });
}

std::size_t Table::known(const std::vector<Setting>& settings) const {
  return static_cast<std::size_t>(
      std::count_if(settings.begin(), settings.end(),
                    [this](const Setting& one) { return row(one.key) != nullptr; }));
}

std::string Table::run_key(const std::string& to) const {
  if (to.starts_with("model.")) return "model";
  const Json* facts = x_json.find("facts");
  const Json* key = facts == nullptr ? nullptr : facts->find(to);
  return key == nullptr ? to : *key->string();
}

void Table::apply_one(const Setting& setting, Draft& draft) const {
  const Json* entry = row(setting.key);
  const std::string at = setting.place + ": " + setting.from;
  if (!setting.missing.empty() && !has_no_effect(setting.key)) {
    std::string names;
    for (const std::string& name : setting.missing) names += (names.empty() ? "" : ", ") + name;
    draft.unresolved.push_back(at + ": nothing sets " + names);
    return;
  }
  if (entry != nullptr && setting.value == Json("auto") &&
      (entry->find("values") == nullptr || entry->find("values")->find("auto") == nullptr)) {
    draft.unresolved.push_back(at + ": the program that is started fills it in");
    return;
  }
  if (entry == nullptr) {
    const bool asks =
        !(setting.value == Json(false) || setting.value == Json(0) || setting.value == Json(""));
    if (!asks || has_no_effect(setting.key)) return draft.no_effect.push_back(setting.from);
    const Json* whys = x_json.find("not_modelled");
    for (const std::string& name : names_of(setting.key)) {
      const Json* why = whys == nullptr ? nullptr : whys->find(name);
      if (why != nullptr) return draft.not_modelled.push_back({setting.from, *why->string()});
    }
    std::vector<std::string> names;
    for (const auto& [key, unused] : *x_json.find("rows")->object()) names.push_back(key);
    const std::string near = nearest_name(setting.key, names);
    std::string text = "the table of " + framework() + " has no such setting";
    if (!near.empty()) text += "; did you mean " + near + "?";
    return draft.not_modelled.push_back({setting.from, text});
  }
  const std::string to = *entry->find("to")->string();
  Json value = setting.value;
  if (const Json* values = entry->find("values")) {
    const Json* ours = values->find(word_of(value));
    if (ours == nullptr) {
      std::string accepted;
      for (const auto& [theirs, unused] : *values->object()) {
        accepted += (accepted.empty() ? "" : ", ") + theirs;
      }
      return draft.not_modelled.push_back({setting.from, "modelled are " + accepted});
    }
    if (ours->is_null()) return draft.no_effect.push_back(setting.from);
    value = *ours;
  }
  // 5e8 is a number of elements.
  constexpr double kMostExact = 9007199254740992.0;
  const auto* number = std::get_if<double>(&value.value);
  if (number != nullptr && *number >= 1000 && *number < kMostExact &&
      *number == std::floor(*number)) {
    value = Json(static_cast<std::int64_t>(*number));
  }
  draft.translated.push_back({setting.from, to, value, false});
  set_path(draft.run, to, std::move(value));
}

void Table::apply(const std::vector<Setting>& settings, Draft& draft) const {
  std::map<std::string, std::size_t> last;  // of a setting that is given twice the last one holds
  for (std::size_t i = 0; i < settings.size(); ++i) last[settings[i].key] = i;
  for (std::size_t i = 0; i < settings.size(); ++i) {
    if (last[settings[i].key] != i || settings[i].value.is_null()) continue;
    apply_one(settings[i], draft);
  }
}

Json Table::default_of(const Json& row, const Draft& draft) const {
  const Json* value = row.find("default");
  const Json* was = row.find("was");
  if (was != nullptr && !draft.software.empty()) {
    const Json* releases = x_json.find("releases");
    const std::string date = date_of(draft.software, releases == nullptr ? Json() : *releases);
    for (const Json& one : *was->array()) {
      if (!date.empty() && date < *one.find("before")->string()) return *one.find("default");
    }
  }
  return value == nullptr ? Json() : *value;
}

void Table::add_defaults(Draft& draft) const {
  for (const auto& [key, entry] : *x_json.find("rows")->object()) {
    const std::string to = *entry.find("to")->string();
    Json value = default_of(entry, draft);
    if (value.is_null() || find_path(draft.run, to) != nullptr) continue;
    std::string from = "default of " + framework();
    if (!draft.software.empty()) from += " (" + draft.software + ")";
    draft.translated.push_back({from + ", without " + key, to, value, true});
    draft.defaults.insert(to);
    set_path(draft.run, to, std::move(value));
  }
}

}  // namespace foretrain
