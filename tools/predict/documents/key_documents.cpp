#include "tools/predict/documents/key_documents.h"

#include <cmath>

#include "hardware/keys/cluster_keys.h"
#include "hardware/keys/device_keys.h"
#include "hardware/presets.h"
#include "models/plan/keys/keys.h"
#include "sim/base/assets.h"
#include "sim/campaign/request.h"

namespace foretrain {
namespace {

using Facts = std::vector<const KeyFacts*>;

constexpr std::string_view kDeviceSection = "cluster.device";

}  // namespace

const std::vector<const KeyFacts*>& every_key() {
  static const Facts all = [] {
    Facts out;
    for (const PlanKey& key : all_run_keys()) out.push_back(&key);
    for (const ClusterKey& key : cluster_keys()) {
      if (key.section != kDeviceSection) out.push_back(&key);  // declared with the device's
    }
    for (const DeviceKey& key : device_keys()) out.push_back(&key);
    for (const CampaignKey& key : campaign_keys()) out.push_back(&key);
    return out;
  }();
  return all;
}

namespace {

bool is_section(const std::string& name) {
  for (const KeyFacts* key : every_key()) {
    if (key->section == name) return true;
  }
  return false;
}

/// Makers of keys write a choice that is no word, such as a path, as a sentence.
bool is_word(const std::string& choice) { return choice.find(' ') == std::string::npos; }

std::string number_text(double value) {
  const bool whole = std::floor(value) == value && std::fabs(value) < 1e15;
  if (whole && std::fabs(value) < 1e9) return std::to_string(static_cast<std::int64_t>(value));
  std::string text = dump_json(Json(value), -1);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

std::string default_text(const KeyFacts& key) {
  if (!key.fallback_rule.empty()) return key.fallback_rule;
  return key.fallback ? dump_json(*key.fallback, -1) : "";
}

// --- Schemas ---
Json one(const char* key, Json value) {
  Json out{Json::Object{}};
  out.set(key, std::move(value));
  return out;
}

Json enumeration(const KeyFacts& key) {
  Json::Array names;
  for (const std::string& choice : key.choices) {
    if (is_word(choice)) names.emplace_back(choice);
  }
  return one("enum", names);
}

Json bounded(const KeyFacts& key, const char* type) {
  Json out = one("type", type);
  const auto limit = [&](double value) {
    return std::floor(value) == value && std::fabs(value) < 9e15
               ? Json(static_cast<std::int64_t>(value))
               : Json(value);
  };
  if (key.high > key.low) out.set("minimum", limit(key.low));
  if (key.high > key.low && key.high < kNoLimit) out.set("maximum", limit(key.high));
  return out;
}

/// What the key's own value may be; null: anything.
Json value_schema(const KeyFacts& key) {
  switch (key.type) {
    case KeyType::kFlag:
      return one("type", "boolean");
    case KeyType::kCount:
      return bounded(key, "integer");
    case KeyType::kNumber:
      return bounded(key, "number");
    case KeyType::kText:
      return one("type", "string");
    case KeyType::kChoice:
      return enumeration(key);
    case KeyType::kNames: {
      Json out = one("type", "array");
      out.set("items", enumeration(key));
      return out;
    }
    case KeyType::kAny:
      return {};
  }
  return {};
}

Json section_schema(const std::string& section);

Json key_schema(const KeyFacts& key) {
  Json out{Json::Object{}};
  if (!key.doc.empty()) out.set("description", key.doc);
  if (key.fallback) out.set("default", *key.fallback);
  const bool section = is_section(key.path());
  Json::Array any;
  if (Json own = value_schema(key); !own.is_null()) any.push_back(std::move(own));
  if (section) any.push_back(section_schema(key.path()));
  if (any.empty()) return out;
  for (const std::string& choice : key.choices) {
    if (!is_word(choice)) any.push_back(one("pattern", "\\.json$"));
  }
  if (key.type == KeyType::kAny) any.push_back(one("type", "string"));
  if (key.or_auto) any.push_back(one("const", "auto"));
  any.push_back(one("type", "null"));
  out.set("anyOf", std::move(any));
  return out;
}

Json closed_object(Json properties) {
  Json out = one("type", "object");
  out.set("properties", std::move(properties));
  out.set("additionalProperties", false);
  return out;
}

void add_remarks(Json& properties) {
  for (const char* key : {"$schema", "schema"}) properties.set(key, one("type", "string"));
}

Json section_schema(const std::string& section) {
  Json properties{Json::Object{}};
  for (const KeyFacts* key : every_key()) {
    if (key->section == section) properties.set(key->name, key_schema(*key));
  }
  // Those may be files of their own, which name their sources.
  if (section == "cluster" || section == kDeviceSection) {
    add_remarks(properties);
    for (const char* key : {"sources", "figures_changed"}) {
      properties.set(key, Json(Json::Object{}));
    }
  }
  return closed_object(std::move(properties));
}

/// Every section of a plan, and its keys that have none.
Json plan_properties() {
  Json out{Json::Object{}};
  for (const KeySection& section : run_sections()) {
    if (section.name.empty()) continue;
    Json schema = section_schema(section.name);
    schema.set("description", section.doc);
    out.set(section.name, std::move(schema));
  }
  for (const PlanKey& key : all_run_keys()) {
    const bool machine = !key.section.empty() || key.name == "name" || key.name == "model" ||
                         key.name == "cluster" || key.name == "system" || key.name == "profile";
    if (!machine) out.set(key.name, key_schema(key));
  }
  return out;
}

Json run_schema() {
  Json properties{Json::Object{}};
  add_remarks(properties);
  for (const char* name : {"name", "model", "cluster", "system", "profile"}) {
    for (const PlanKey& key : all_run_keys()) {
      if (key.path() == name) properties.set(name, key_schema(key));
    }
  }
  const Json plan = plan_properties();
  for (const auto& [name, schema] : *plan.object()) properties.set(name, schema);
  Json campaign = section_schema("campaign");
  campaign.set("description", campaign_sections().front().second);
  properties.set("campaign", std::move(campaign));
  Json out = closed_object(std::move(properties));
  out.set("required", Json::Array{"model", "cluster"});
  return out;
}

Json system_schema() {
  Json properties{Json::Object{}};
  add_remarks(properties);
  for (const char* key : {"name", "description", "framework"}) {
    properties.set(key, one("type", "string"));
  }
  for (const char* key : {"sources", "devices", "lacks"}) properties.set(key, Json(Json::Object{}));
  properties.set("defaults", one("$ref", "#/$defs/plan"));
  Json architectures{Json::Object{}};
  for (const std::string& name : architecture_names()) {
    architectures.set(name, one("$ref", "#/$defs/plan"));
  }
  properties.set("architectures", closed_object(std::move(architectures)));
  Json out = closed_object(std::move(properties));
  out.set("$defs", one("plan", closed_object(plan_properties())));
  return out;
}

// --- The page ---
std::string join_names(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

std::string quoted_names(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) {
    out += (out.empty() ? "" : ", ") + (is_word(name) ? "`" + name + "`" : name);
  }
  return out;
}

std::string values_text(const KeyFacts& key) {
  std::string out;
  const auto limited = [&key](const char* kind) {
    if (key.high <= key.low) return std::string(kind);
    const std::string least = number_text(key.low);
    if (key.high == kNoLimit) return std::string(kind) + " from " + least;
    return std::string(kind) + ", " + least + " to " + number_text(key.high);
  };
  switch (key.type) {
    case KeyType::kFlag:
      out = "`true`, `false`";
      break;
    case KeyType::kCount:
      out = limited("whole number");
      break;
    case KeyType::kNumber:
      out = limited("number");
      break;
    case KeyType::kText:
      out = "text";
      break;
    case KeyType::kChoice:
      out = quoted_names(key.choices);
      break;
    case KeyType::kNames:
      out = "list of " + quoted_names(key.choices);
      break;
    case KeyType::kAny:
      break;
  }
  if (key.or_auto) out += ", `auto`";
  if (key.or_object) out += ", or the keys below";
  return out;
}

std::string row(const KeyFacts& key) {
  std::vector<std::string> names;
  for (const KeyAlias& alias : key.aliases) {
    names.push_back("`" + alias.name + "`" + alias.says +
                    (alias.former ? " (its former name)" : ""));
  }
  return "| `" + key.name + "` | " + key.doc + " | " + values_text(key) + " | " +
         default_text(key) + " | " + join_names(names) + " |\n";
}

std::string table(const std::string& section, const std::string& doc) {
  std::string out = "\n## " + (section.empty() ? "The file" : "`" + section + "`") + "\n\n" + doc +
                    "\n\n| key | meaning | values | default | elsewhere |\n| --- | --- | --- | --- "
                    "| --- |\n";
  for (const KeyFacts* key : every_key()) {
    const bool whole = key->section.empty() && key->name == section && key->or_object;
    const bool elsewhere = section.empty() && key->or_object;
    if ((key->section == section && !elsewhere) || whole) out += row(*key);
  }
  return out;
}

}  // namespace

const std::vector<std::string>& schema_kinds() {
  static const std::vector<std::string> all = {"run",      "cluster", "device",     "system",
                                               "campaign", "profile", "timeline",   "result",
                                               "search",   "goodput", "reliability"};
  return all;
}

Json schema_of(const std::string& kind) {
  // Assets hold the schemas of files that the program writes; keys give those that people write.
  if (const std::string_view text = find_asset("schemas/" + kind + ".json"); !text.empty()) {
    const Result<Json> file = parse_json(text, kind);
    FT_CHECK(file.ok(), "an embedded schema is JSON");
    return file.value();
  }
  const Json body = kind == "run"        ? run_schema()
                    : kind == "cluster"  ? section_schema("cluster")
                    : kind == "device"   ? section_schema("cluster.device")
                    : kind == "campaign" ? section_schema("campaign")
                                         : system_schema();
  Json out = one("$schema", "https://json-schema.org/draft/2020-12/schema");
  out.set("title", "foretrain " + kind);
  for (const auto& [key, value] : *body.object()) out.set(key, value);
  return out;
}

std::string keys_page() {
  std::string out =
      "# Keys of a RUN\n\n"
      "Made from their declarations (`models/plan/keys/`, `hardware/keys/`, "
      "`sim/campaign/request.cpp`) by\n"
      "`foretrain schema run --page > docs/reference/keys.md`; do not edit it. A key is written\n"
      "`section.key` for `--set`. \"Elsewhere\" lists what other systems call it.\n";
  for (const KeySection& section : run_sections()) out += table(section.name, section.doc);
  out += table("cluster", "The machine, beside a preset.");
  out += table("cluster.network", "What joins the nodes.");
  out += table("cluster.device", "A preset's name, a path, or an object of these.");
  for (const auto& [section, doc] : campaign_sections()) out += table(section, doc);
  return out;
}

}  // namespace foretrain
