// Does any code or constant know a model, a published run or its source by name?
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "models/plan/keys/keys.h"
#include "sim/base/assets.h"
#include "sim/base/json.h"

namespace foretrain {
namespace {

namespace fs = std::filesystem;

/// Beginnings of the names of files that hold laws of messages, collectives and experts.
constexpr std::array kLaws = {"nccl",  "message_cost", "direct_messages", "collective_cost",
                              "mesh_", "torus_",       "expert_plan",     "moe_"};

const fs::path& root() {
  static const fs::path path = FORETRAIN_SOURCE_DIR;
  return path;
}

std::string lowered_text(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::vector<fs::path> files_of(const std::string& folder, const std::set<std::string>& endings) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::recursive_directory_iterator(root() / folder)) {
    if (endings.contains(entry.path().extension().string())) out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  EXPECT_FALSE(out.empty()) << folder;
  return out;
}

Json json_of(const fs::path& path) {
  const Result<Json> json = read_json_file(path.string());
  EXPECT_TRUE(json.ok()) << json.error().message;
  return json.ok() ? json.value() : Json();
}

void add_name(std::set<std::string>& names, const Json* name) {
  if (name == nullptr || name->string() == nullptr || name->string()->size() < 4) return;
  names.insert(lowered_text(*name->string()));
}

/// Models, systems, shipped runs, and of published ones ids, groups, models and repositories.
std::set<std::string> names_nobody_may_know() {
  std::set<std::string> names;
  for (const char* kind : {"configs/models", "configs/systems", "configs/runs"}) {
    for (const fs::path& path : files_of(kind, {".json"})) {
      names.insert(lowered_text(path.stem().string()));
      const Json file = json_of(path);
      add_name(names, file.find("name"));
    }
  }
  for (const fs::path& path : files_of("configs/published", {".json"})) {
    const Json rows = json_of(path);
    for (const Json& row : *rows.array()) {
      add_name(names, row.find("id"));
      add_name(names, row.find("group"));
      const std::string source = *row.find("source")->string();
      const Json repository(source.substr(0, source.find(':')));
      add_name(names, &repository);
      const Json* model = row.find("run")->find("model");
      add_name(names, model->string() != nullptr ? model : model->find("name"));
    }
  }
  return names;
}

/// As a word of its own.
bool mentions(const std::string& text, const std::string& name) {
  const auto inner = [&text](std::size_t at) {
    return at < text.size() &&
           (text[at] == '_' || std::isalnum(static_cast<unsigned char>(text[at])) != 0);
  };
  for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    if ((at == 0 || !inner(at - 1)) && !inner(at + name.size())) return true;
  }
  return false;
}

/// The strings of a line of C++, without comments and what it includes.
std::vector<std::string> strings_of(const std::string& line) {
  std::vector<std::string> out;
  if (line.find_first_not_of(' ') == line.find('#')) return out;
  bool inside = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (!inside && line.compare(i, 2, "//") == 0) break;
    if (inside && line[i] == '\\') {
      out.back() += line.substr(i++, 2);
    } else if (line[i] == '"' && (inside || i == 0 || line[i - 1] != '\'')) {
      if (!inside) out.emplace_back();
      inside = !inside;
    } else if (inside) {
      out.back() += line[i];
    }
  }
  return out;
}

/// As the compiler reads quotation marks in a string.
std::string unescaped(const std::string& literal) {
  return std::regex_replace(literal, std::regex(R"(\\")"), "\"");
}

/// All texts of the declarations of keys, which no prediction reads: documents, defaults, choices,
/// names in other systems, probes.
std::string declared_texts() {
  std::string out;
  const auto add = [&out](const std::string& text) { out += lowered_text(text) + "\n"; };
  const auto add_all = [&add](const Sets& sets) {
    for (const std::string& set : sets) add(set);
  };
  for (const PlanKey& key : all_run_keys()) {
    for (const std::string& text : {key.path(), key.doc, key.fallback_rule}) add(text);
    if (key.fallback) add(dump_json(*key.fallback, -1));
    add_all(key.choices);
    for (const KeyAlias& alias : key.aliases) add(alias.name + alias.says);
    for (const auto& [theirs, ours] : key.values) add(theirs + "\n" + ours);
    for (const Probe& probe : key.probes) add(probe.set), add_all(probe.base);
    for (const auto& idle : key.idle_reasons()) add(idle.why), add_all(idle.base), add(idle.value);
  }
  return out;
}

// Types of a config.json, a schedule that a system is named after, and the shipped run that a
// calibration takes operations from. Files of keys may name models and systems in the texts of
// their declarations, and nowhere else.
TEST(KeyedConstants, NoCodeKnowsAName) {
  const std::set<std::string> names = names_nobody_may_know();
  ASSERT_GT(names.size(), 500U);
  const std::set<std::pair<std::string, std::string>> allowed = {
      {"model_config.cpp", "deepseek_v3"},    {"model_config.cpp", "grok-1"},
      {"model_config.cpp", "gpt2"},           {"sparse_config.cpp", "deepseek_v3"},
      {"sparse_config.cpp", "grok-1"},        {"sparse_config.cpp", "gpt2"},
      {"plan_schedule.cpp", "gpipe"},         {"model_of.cpp", "gpt2"},
      {"plan_network.cpp", "gpipe"},          {"calibration.cpp", "gpt-small-host"},
      {"calibration.cpp", "llama-small-host"}};
  const std::string declared = declared_texts();
  std::size_t looked_at = 0;
  for (const char* folder : {"sim", "hardware", "models", "executor", "traces", "tools"}) {
    for (const fs::path& path : files_of(folder, {".cpp", ".h", ".cu", ".cuh"})) {
      const std::string file = path.filename().string();
      if (file == "command_line.cpp") continue;  // the examples of its help
      const bool of_keys = path.parent_path() == root() / "models" / "plan" / "keys";
      const bool translates = path.parent_path() == root() / "tools" / "import";
      const Result<std::string> text = read_text_file(path.string());
      ASSERT_TRUE(text.ok());
      for (std::size_t begin = 0, end = 0; begin < text.value().size(); begin = end + 1) {
        end = std::min(text.value().find('\n', begin), text.value().size());
        for (const std::string& quoted : strings_of(text.value().substr(begin, end - begin))) {
          ++looked_at;
          const std::string literal = lowered_text(quoted);
          if (of_keys && declared.find(unescaped(literal)) != std::string::npos) continue;
          for (const std::string& name : names) {
            if (translates && !find_asset("systems/" + name + ".json").empty()) continue;
            if (!mentions(literal, name) || allowed.contains({file, name})) continue;
            ADD_FAILURE() << path.string() << ": \"" << quoted << "\" names " << name;
          }
        }
      }
    }
  }
  EXPECT_GT(looked_at, 5000U);
}

// Measures and other programs' numbers stand in `configs/` beside their sources.
TEST(KeyedConstants, NoLawOfMessagesAndExpertsHoldsItsNumbers) {
  const std::regex measure(
      R"(constexpr (double|std::int32_t|std::array<double)|deviation = [0-9])");
  std::size_t looked_at = 0;
  for (const char* folder : {"hardware", "models"}) {
    for (const fs::path& path : files_of(folder, {".cpp"})) {
      const std::string file = path.filename().string();
      const bool law = std::any_of(kLaws.begin(), kLaws.end(),
                                   [&](const char* name) { return file.starts_with(name); });
      if (!law) continue;
      ++looked_at;
      const std::string text = read_text_file(path.string()).value();
      std::smatch found;
      EXPECT_FALSE(std::regex_search(text, found, measure))
          << path.string() << ": \"" << found.str() << "\" belongs into a file of configs/";
    }
  }
  EXPECT_GE(looked_at, 12U);
}

/// Keys and strings of a file of constants, its sources apart.
void collect(const Json& json, std::vector<std::string>& out) {
  if (json.string() != nullptr) out.push_back(*json.string());
  if (const Json::Array* items = json.array()) {
    for (const Json& item : *items) collect(item, out);
  }
  if (const Json::Object* object = json.object()) {
    for (const auto& [key, value] : *object) {
      if (key.find("source") != std::string::npos) continue;
      out.push_back(key);
      collect(value, out);
    }
  }
}

TEST(KeyedConstants, NoPriceKnowsAName) {
  const std::set<std::string> names = names_nobody_may_know();
  std::vector<fs::path> files;
  for (const char* folder : {"configs/kernels", "configs/gemm", "configs/devices",
                             "configs/clusters", "configs/fabrics"}) {
    for (const fs::path& path : files_of(folder, {".json"})) files.push_back(path);
  }
  for (const char* file : {"nccl.json", "mesh.json", "torus.json", "memory.json", "moe.json"}) {
    files.push_back(root() / "configs" / file);
  }
  for (const fs::path& path : files) {
    std::vector<std::string> texts;
    collect(json_of(path), texts);
    for (const std::string& text : texts) {
      for (const std::string& name : names) {
        if (name == lowered_text(path.stem().string())) continue;
        EXPECT_FALSE(mentions(lowered_text(text), name)) << path.string() << ": " << text;
      }
    }
  }
}

}  // namespace
}  // namespace foretrain
