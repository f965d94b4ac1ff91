#include "tools/import/export.h"

#include <algorithm>
#include <set>

#include "models/layers/layer.h"
#include "models/plan/keys/keys.h"
#include "tools/import/model_of.h"
#include "tools/predict/idle_keys.h"

namespace foretrain {
namespace {

using Writer = std::vector<LaunchFile> (*)(Sheet&);
constexpr std::pair<const char*, Writer> kWriters[] = {{"megatron-lm", export_megatron},
                                                       {"deepspeed", export_deepspeed},
                                                       {"torchtitan", export_torchtitan},
                                                       {"maxtext", export_maxtext},
                                                       {"composer", export_composer}};

/// Keys that change nothing in the run.
std::set<std::string> idle_paths(const Run& run) {
  std::set<std::string> out;
  const KeyContext context = context_of(run);
  for (const PlanKey& key : all_run_keys()) {
    if (key.idle_in(context) != nullptr) out.insert(key.path());
  }
  if (!run.model.has_experts()) {
    for (const PlanKey& key : all_run_keys()) {
      if (key.section == "moe" || key.name.starts_with("expert")) out.insert(key.path());
    }
  }
  return out;
}

/// The framework's value that stands for ours; null: none does.
const std::string* theirs_of(const Json& row, const Json& ours) {
  const Json* values = row.find("values");
  if (values == nullptr) return nullptr;
  for (const auto& [theirs, value] : *values->object()) {
    if (value == ours) return &theirs;
  }
  return nullptr;
}

/// "auto" as what it comes to.
Json settled(const Run& run, const std::string& path, const Json& value) {
  if (path == "overlap.parameter_gather" && value == Json("auto")) {
    return Json(true_at(run.resolved, "overlap.gradient_reduce"));
  }
  return value;
}

/// Rows of the table, backwards: the first row of a key that has our value for it.
void put_rows(Sheet& sheet) {
  const std::set<std::string> idle = idle_paths(sheet.run);
  std::set<std::string> done;
  for (const auto& [key, row] : *sheet.table.json().find("rows")->object()) {
    const std::string to = *row.find("to")->string();
    const bool fact = to.starts_with("model.") || to.starts_with("job.");
    if (fact || done.contains(to) || idle.contains(to) || true_at(row, "old")) continue;
    const Json* found = find_path(sheet.run.resolved, to);
    if (found == nullptr || found->is_null()) continue;
    const Json value = settled(sheet.run, to, *found);
    const Json* usual = row.find("default");
    if (usual != nullptr && *usual == value) {
      done.insert(to);
      continue;
    }
    if (row.find("values") == nullptr) {
      if (value.object() != nullptr) continue;
      const Json* of_system = find_path(sheet.run.usual, to);
      const bool same = sheet.run.system == sheet.table.system();
      if (same && usual == nullptr && of_system != nullptr && *of_system == value) continue;
      put(sheet, to, key, value);
    } else {
      const std::string* theirs = theirs_of(row, value);
      if (theirs == nullptr) continue;
      put(sheet, to, key, value_of_word(*theirs));
    }
    done.insert(to);
  }
}

/// Leaves of a resolved RUN by their paths.
void list_leaves(const Json& json, const std::string& path, std::map<std::string, Json>& out) {
  const bool opens = json.object() != nullptr && path.find('.') == std::string::npos;
  if (!opens) {
    out[path] = json;
    return;
  }
  for (const auto& [key, value] : *json.object()) {
    list_leaves(value, path.empty() ? key : path + "." + key, out);
  }
}

/// Plans that differ in where their rate of dropout stands are alike.
bool same_plan(const Run& a, const Run& b) {
  const DropoutRates mine = dropout_of(a.model, a.plan);
  const DropoutRates theirs = dropout_of(b.model, b.plan);
  Plan one = a.plan;
  Plan other = b.plan;
  one.dropout = other.dropout = 0;
  return one == other && mine.hidden == theirs.hidden && mine.attention == theirs.attention &&
         a.dispatch == b.dispatch && a.graphs == b.graphs;
}

std::string shown(const Json& value) { return dump_json(value, -1); }

/// Where a value is from: its own entry, or that of the object that brought it.
std::string origin_at(const Run& run, const std::string& path) {
  std::string pointer = "/" + path;
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  auto found = run.origins.find(pointer);
  if (found == run.origins.end()) found = run.origins.find(pointer.substr(0, pointer.rfind('/')));
  return found == run.origins.end() ? "" : found->second;
}

/// Names the keys whose values make the imported run another one.
Status name_differences(const Run& run, Json back, const Run& again, Exported& out) {
  std::map<std::string, Json> mine;
  std::map<std::string, Json> theirs;
  list_leaves(run.resolved, "", mine);
  list_leaves(again.resolved, "", theirs);
  for (const auto& [path, unused] : theirs) mine.try_emplace(path);  // null: the default
  for (const auto& [path, value] : mine) {
    const bool apart = path == "name" || path == "system" || path.starts_with("model") ||
                       path.starts_with("cluster") || path.starts_with("campaign") ||
                       path == "search" || path == "profile" || path == "dropout";
    if (apart || theirs[path] == value) continue;
    Json changed = back;
    value.is_null() ? erase_path(changed, path) : set_path(changed, path, value);
    const Result<Run> with = resolve_run(changed, "export", {});
    const bool matters = !with.ok() || !same_plan(with.value(), again);
    if (!matters) continue;
    const std::string gives = "an import of the files gives " + shown(theirs[path]);
    const bool own = is_users(origin_at(run, path)) || run.system == again.system;
    out.not_expressed.push_back(
        {path + " = " + shown(value),
         own ? gives
             : "as " + run.system + " has it; " + gives + ", as " + again.system + " does"});
  }
  if (!(bare_model(run.model) == bare_model(again.model))) {
    out.not_expressed.push_back({"model", "an import of the files gives another model"});
  }
  const bool told = !out.not_expressed.empty();
  if (!told && !same_plan(run, again)) {
    out.not_expressed.push_back({"the plan", "an import of the files gives another one"});
  }
  return ok_status();
}

/// Imports the files and compares.
Status check_export(const Run& run, const std::string& to, Exported& out) {
  ImportOptions options;
  options.from = to;
  options.accelerators = run.cluster.accelerators;
  FT_ASSIGN(const Draft draft, import_launch(out.files, options));
  Json back = draft.run;
  back.erase("campaign");
  back.set("cluster", *run.resolved.find("cluster"));
  if (const Json* profile = run.resolved.find("profile")) back.set("profile", *profile);
  const Result<Run> again = resolve_run(back, "export", {});
  if (!again.ok()) {
    out.not_expressed.push_back(
        {"the plan", "an import of the files is refused: " + again.error().message});
    return ok_status();
  }
  return name_differences(run, back, again.value(), out);
}

}  // namespace

void put(Sheet& sheet, const std::string& from, const std::string& key, Json value) {
  sheet.translated.push_back({from, key, value, false});
  sheet.settings.set(key, std::move(value));
}

std::vector<std::string> export_targets() {
  std::vector<std::string> out;
  for (const auto& [name, unused] : kWriters) out.emplace_back(name);
  return out;
}

std::string compute_of(const Run& run) {
  const Json* precision = run.resolved.find("precision");
  if (precision == nullptr) return "bf16";
  if (precision->string() != nullptr) return *precision->string();
  return text_at(*precision, "compute", "bf16");
}

std::string recompute_of(const Run& run) {
  const Json* recompute = run.resolved.find("recompute");
  if (recompute == nullptr) return "none";
  return recompute->string() != nullptr ? *recompute->string() : "";
}

Json config_of(const Run& run) {
  Json model = *run.resolved.find("model");
  const Json* preset = model.object() != nullptr ? model.find("preset") : &model;
  Json out = model;
  if (preset != nullptr && preset->string() != nullptr) {
    const Result<Json> base = load_preset("models", *preset->string(), "export");
    out = base.ok() ? base.value() : Json(Json::Object{});
    if (model.object() != nullptr) {
      for (const auto& [key, value] : *model.object()) out.set(key, value);
    }
  }
  for (const char* key : {"preset", "name", "source", "parameters_published", "$schema"}) {
    out.erase(key);
  }
  return out;
}

std::string name_of_model(const Sheet& sheet) {
  const Json* models = sheet.table.json().find("models");
  if (models == nullptr) return "";
  const Model mine = bare_model(sheet.run.model);
  for (const auto& [name, preset] : *models->object()) {
    const Result<Json> json = load_preset("models", *preset.string(), "export");
    if (!json.ok()) continue;
    const Result<Model> model = read_model(json.value(), *preset.string(), "");
    if (model.ok() && bare_model(model.value()) == mine) return name;
  }
  return "";
}

Result<Exported> export_run(const Run& run, const std::string& to) {
  if (!run.cluster.pools.empty()) {
    return unsupported(run.source + ": /cluster/pools: launch files are of nodes of one kind");
  }
  const auto* writer = std::find_if(std::begin(kWriters), std::end(kWriters),
                                    [&to](const auto& one) { return one.first == to; });
  if (writer == std::end(kWriters)) {
    std::string accepted;
    for (const std::string& name : export_targets()) {
      accepted += (accepted.empty() ? "" : ", ") + name;
    }
    const std::string near = nearest_name(to, export_targets());
    return input_error("--to: found \"" + to + "\", expected one of " + accepted +
                       (near.empty() ? "" : " (did you mean \"" + near + "\"?)"));
  }
  if (run.model.is_network() || run.model.is_encoder_decoder()) {
    return unsupported(run.source + ": /model: " + to + " trains decoders here; " + run.model.name +
                       " is none");
  }
  FT_ASSIGN(const Table table, Table::load(to));
  Sheet sheet{run, table, Json(Json::Object{}), {}};
  put_rows(sheet);
  Exported out;
  out.files = writer->second(sheet);
  out.translated = std::move(sheet.translated);
  FT_TRY(check_export(run, to, out));
  return out;
}

Json export_json(const Exported& exported) {
  Json out{Json::Object{}};
  out.set("schema", "foretrain/export/1");
  Json::Array files;
  for (const LaunchFile& file : exported.files) {
    files.emplace_back(Json::Object{{"name", Json(file.path)}, {"text", Json(file.text)}});
  }
  out.set("files", std::move(files));
  Json::Array translated;
  for (const Translation& one : exported.translated) {
    translated.emplace_back(
        Json::Object{{"from", Json(one.from)}, {"to", Json(one.to)}, {"value", one.value}});
  }
  out.set("translated", std::move(translated));
  Json::Array left;
  for (const NotModelled& one : exported.not_expressed) {
    left.emplace_back(Json::Object{{"from", Json(one.from)}, {"why", Json(one.why)}});
  }
  out.set("not_expressed", std::move(left));
  return out;
}

std::string export_text(const Exported& exported) {
  std::string out;
  if (exported.not_expressed.empty()) return "An import of the files gives the RUN again.\n";
  out += "NOT EXPRESSED: the framework's files do not say\n";
  for (const NotModelled& one : exported.not_expressed) {
    out += "  " + one.from + ": " + one.why + "\n";
  }
  return out;
}

}  // namespace foretrain
