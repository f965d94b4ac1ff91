#include "tools/predict/run_file.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "hardware/presets.h"
#include "models/plan/keys/keys.h"
#include "sim/base/assets.h"
#include "sim/base/printable.h"
#include "tools/predict/defaults.h"
#include "tools/predict/divide.h"
#include "tools/predict/kernel_defaults.h"
#include "tools/predict/key_names.h"
#include "tools/predict/memory_report.h"
#include "tools/predict/ready_lists.h"
#include "tools/predict/run_notes.h"
#include "traces/file_kind.h"

namespace foretrain {
namespace {

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

bool is_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) && !is_folder(path);
}

/// Files that a RUN names lie beside it where they do not from the working directory.
void look_beside(Json& run, const std::filesystem::path& folder) {
  const auto look = [&folder](Json* value) {
    const std::string* name = value == nullptr ? nullptr : value->string();
    if (name == nullptr || is_file(*name)) return;
    const std::filesystem::path beside = folder / *name;
    if (is_file(beside.string())) *value = Json(beside.string());
  };
  for (const char* key : {"model", "cluster", "system", "profile", "schedule"}) {
    Json* value = run.find(key);
    look(value);
    if (value != nullptr && value->object() != nullptr) look(value->find("preset"));
  }
  Json* campaign = run.find("campaign");
  Json* reliability = campaign == nullptr ? nullptr : campaign->find("reliability");
  look(reliability);
  if (reliability != nullptr && reliability->object() != nullptr) {
    look(reliability->find("preset"));
    look(reliability->find("trace"));
  }
}

/// Keys whose text names a preset: it becomes an object where a field of it is set.
bool names_a_preset(const std::string& key) {
  return key == "cluster" || key == "model" || key == "device" || key == "topology" ||
         key == "reliability";
}

Status apply_set(Json& run, const std::string& text, std::map<std::string, std::string>& origins) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return input_error("--set " + text + ": expected KEY=VALUE, for example parallel.tensor=4");
  }
  const std::string value_text = text.substr(equals + 1);
  const Result<Json> parsed = parse_json(value_text, "--set");
  // What looks like a number or starts like a structure was meant as JSON; anything else is a text,
  // and so is a date.
  const bool date = text.starts_with("software=");
  const bool meant_as_json =
      !value_text.empty() && !date &&
      (std::string_view("{[\"").find(value_text[0]) != std::string_view::npos ||
       value_text.find_first_not_of("-+.0123456789eE") == std::string::npos);
  if (!parsed.ok() && meant_as_json && !is_file(value_text)) {
    return input_error("--set " + text + ": " + parsed.error().message);
  }
  const bool as_text = !parsed.ok() || (date && parsed.value().is_number());
  const Json value = as_text ? Json(value_text) : parsed.value();
  std::string path = current_path(text.substr(0, equals));
  Json* at = &run;
  std::string pointer;
  while (true) {
    const std::size_t dot = path.find('.');
    const std::string key = path.substr(0, dot);
    pointer += "/" + key;
    if (key.empty()) return input_error("--set " + text + ": an empty key");
    if (dot == std::string::npos) {
      at->set(key, value);
      break;
    }
    Json* next = at->find(key);
    if (next == nullptr) next = &at->set(key, Json(Json::Object{}));
    if (next->string() != nullptr && names_a_preset(key)) {
      Json object{Json::Object{}};
      object.set("preset", *next);
      *next = std::move(object);
    } else if (next->object() == nullptr) {
      return input_error("--set " + text + ": " + pointer + " is " + describe(*next) +
                         ", not an object");
    }
    at = next;
    path = path.substr(dot + 1);
  }
  origins[pointer] = "--set";
  return ok_status();
}

/// Of an entry of `Run::origins`: whether a system, or a release of it, set the value.
bool is_layered(const std::string& origin) {
  return origin.starts_with("system ") || origin.starts_with("software ");
}

/// Names the system where it, and not the RUN, set what a plan cannot be read from.
Error with_origin(Error error, const Run& run) {
  const auto say = [&run](Error& one) {
    const auto of = run.origins.find(one.pointer);
    if (of == run.origins.end() || !is_layered(of->second)) return;
    one.message += " (set by " + of->second + ")";
  };
  say(error);
  for (Error& one : error.more) say(one);
  return error;
}

/// The keys a RUN may have, refused early so that a misspelt one is not taken for a preset's.
Status check_keys(const Json& json, const std::string& source) {
  for (const char* key : {"model_type", "architectures"}) {
    if (json.find(key) == nullptr || json.find("model") != nullptr) continue;
    return input_error(source + ": /" + key +
                       ": this is a model; a RUN names it beside a cluster: {\"model\": {what is "
                       "here}, \"cluster\": {\"preset\": \"dgx-h100\", \"accelerators\": 64}}");
  }
  JsonReader reader(json, source, "");
  read_schema(reader, "foretrain/run/1");
  for (const char* key :
       {"name", "model", "cluster", "system", "software", "profile", "campaign", "search"}) {
    reader.ignore(key);
    reader.take(key);
  }
  for (const std::string& key : plan_keys()) reader.take(key);
  return reader.finish();
}

/// Checks the keys of a RUN. Unknown ones leave it and are added to `faults`, so that its other
/// faults are told as well.
Status take_unknown_keys(Json& run, const std::string& source, std::optional<Error>& faults) {
  const Status checked = check_keys(run, source);
  if (checked.ok()) return checked;
  Error error = checked.error();
  if (!error.unknown_key) return error;
  const auto erase = [&run](const std::string& pointer) {
    run.erase(pointer.empty() ? pointer : pointer.substr(1));
  };
  erase(error.pointer);
  for (const Error& one : error.more) erase(one.pointer);
  if (faults) {
    append(*faults, std::move(error));
  } else {
    faults = std::move(error);
  }
  return ok_status();
}

/// Images have no length: a default of it is none of the RUN's.
Status drop_sequence(Run& run) {
  const bool patches = run.model.ends.patch > 0;
  if (!run.model.is_network() && !patches) return ok_status();
  const auto origin = run.origins.find("/batch/sequence");
  if (origin == run.origins.end()) return ok_status();
  if (patches && is_users(origin->second)) {
    const double stated = value_at(run.resolved, "/batch/sequence")->number();
    if (stated == static_cast<double>(run.model.positions)) return ok_status();
    return input_error(run.source + ": /batch/sequence: " + run.model.name + " has images of " +
                       std::to_string(run.model.positions) +
                       " tokens, its patches and the class; leave it out");
  }
  if (is_users(origin->second)) {
    return input_error(run.source + ": /batch/sequence: " + run.model.name +
                       " takes images, whose size is the model's \"image\"; leave it out");
  }
  run.origins.erase(origin);
  run.resolved.find("batch")->erase("sequence");
  return ok_status();
}

/// Whether `pointer` is a system's default.
bool is_default(const Run& run, const std::string& pointer) {
  const auto origin = run.origins.find(pointer);
  return origin != run.origins.end() && !is_users(origin->second);
}

/// A system's defaults of what a RUN does not have: how ranks of a context exchange keys, experts.
void drop_unused(Run& run) {
  const Json* const parallel = run.resolved.find("parallel");
  const Json* const context = parallel == nullptr ? nullptr : parallel->find("context");
  const bool has_context = context != nullptr && context->is_number() && context->number() > 1;
  if (!has_context && is_default(run, "/kernels/context")) {
    run.origins.erase("/kernels/context");
    run.resolved.find("kernels")->erase("context");
  }
  Json* const moe = run.resolved.find("moe");
  if (moe == nullptr || moe->object() == nullptr || run.model.has_experts()) return;
  std::vector<std::string> keys;
  for (const auto& [key, value] : *moe->object()) keys.push_back(key);
  for (const std::string& key : keys) {
    const bool own = run.origins.find("/moe/" + key) != run.origins.end();
    if (!is_default(run, own ? "/moe/" + key : "/moe")) continue;
    run.origins.erase("/moe/" + key);
    moe->erase(key);
  }
  if (!moe->object()->empty() || !is_default(run, "/moe")) return;
  run.origins.erase("/moe");
  run.resolved.erase("moe");
}

/// Buckets of plain data parallelism that a system has by default give way to shards that the RUN
/// asks for.
void drop_buckets(Run& run) {
  const Json* const level = value_at(run.resolved, "/sharding/level");
  Json* const gradients = run.resolved.find("gradients");
  const bool readable = level != nullptr && level->string() != nullptr && gradients != nullptr;
  if (!readable || is_default(run, "/sharding/level") || *level == Json("none")) return;
  std::string dropped;
  for (const char* key : {"bucketing", "bucket_copy", "no_sync", "inner_group", "compression",
                          "compression_rank", "cycle_us"}) {
    const std::string pointer = std::string("/gradients/") + key;
    const auto of = run.origins.find(pointer);
    if (of == run.origins.end() || !is_layered(of->second)) continue;
    if (asks(run, pointer.c_str(), Json("contiguous"))) continue;  // of shards too
    run.origins.erase(of);
    gradients->erase(key);
    dropped += (dropped.empty() ? "gradients." : ", ") + std::string(key);
  }
  if (dropped.empty()) return;
  run.notes.push_back(dropped + " of " + run.system +
                      " are of gradients that no ranks share: left out with sharding.level " +
                      *level->string());
}

Result<Model> load_model(const Json& json, const std::string& source) {
  if (const std::string* name = json.string()) {
    FT_ASSIGN(const Json preset, load_preset("models", *name, source + ": /model"));
    return read_model(preset, is_file(*name) ? *name : "model " + *name, "");
  }
  if (json.object() == nullptr) {
    return input_error(source + ": /model: found " + describe(json) +
                       ", expected a name, a path or an object");
  }
  const Json* preset = json.find("preset");
  if (preset == nullptr) return read_model(json, source, "/model");
  if (preset->string() == nullptr) {
    return input_error(source + ": /model/preset: found " + describe(*preset) +
                       ", expected a name or a path");
  }
  FT_ASSIGN(Json whole, load_preset("models", *preset->string(), source + ": /model/preset"));
  for (const auto& [key, value] : *json.object()) {
    if (key == "preset") continue;
    for (const std::string& other : spellings_of(key)) whole.erase(other);
    whole.set(key, value);
  }
  return read_model(whole, source, "/model");
}

/// The place of a cluster that nobody named yet.
Status refuse_open_cluster(const Json& cluster, const std::string& source) {
  const Json* preset = cluster.object() != nullptr ? cluster.find("preset") : &cluster;
  if (preset == nullptr || !(*preset == Json(kOpenCluster))) return ok_status();
  return input_error(source + ": /cluster: found \"" + std::string(kOpenCluster) +
                     "\", the place that `foretrain import` left for the machine; name it by --set "
                     "cluster.preset=NAME, for example dgx-h100 (`foretrain list clusters`)");
}

/// launch.cuda_graph: none, layer or full.
std::string cuda_graph(const Json& run) {
  const Json* launch = run.find("launch");
  const Json* graph = launch == nullptr ? nullptr : launch->find("cuda_graph");
  return graph == nullptr || graph->string() == nullptr ? "none" : *graph->string();
}

/// Host time of one operation by that key of `launch`.
Time launch_time(const Json& run, const char* key) {
  const Json* launch = run.find("launch");
  const Json* us = launch == nullptr ? nullptr : launch->find(key);
  return Time::from_us(us == nullptr ? 0 : us->number());
}

/// Inside a CUDA graph the device's own pace, in compiled code without the framework's dispatcher.
const char* dispatch_key(const Json& run) {
  if (cuda_graph(run) == "full") return "graph_dispatch_us";
  const Json* kernels = run.find("kernels");
  const Json* compile = kernels == nullptr ? nullptr : kernels->find("compile");
  const bool compiled = compile != nullptr && *compile == Json(true);
  return compiled ? "compiled_dispatch_us" : "dispatch_us";
}

/// The RUN's profile, else that of the cluster's device in the user's folder, else the shipped one,
/// if there is one.
Status find_profile(Run& run, const Json& user, const std::string& source) {
  if (const Json* profile = user.find("profile"); profile != nullptr && !profile->is_null()) {
    if (profile->string() == nullptr) {
      return input_error(source + ": /profile: found " + describe(*profile) +
                         ", expected a name or a path");
    }
    return use_profile(run, *profile->string(), source + ": /profile");
  }
  const std::string own = profile_folder() + "/" + run.cluster.device.name + ".json";
  if (!is_file(own)) return use_shipped_profile(run);
  const Status used = use_profile(run, own, own);
  if (used.ok()) return used;
  // Nobody asked for it by name.
  run.notes.push_back(
      "not priced from the profile that lies in the user's folder: " + used.error().message +
      "; delete it, or measure again by `foretrain calibrate`");
  return use_shipped_profile(run);
}

/// Of every pool the profile of its device in the user's folder, or the shipped one.
Status find_pool_profiles(Run& run, const Json& user, const std::string& source) {
  if (const Json* profile = user.find("profile"); profile != nullptr && !profile->is_null()) {
    return input_error(source +
                       ": /profile: is of one device, and /cluster/pools has several; leave it "
                       "out: profiles in the user's folder are found by device");
  }
  const DeviceSpec first = run.cluster.device;
  std::vector<std::string> notes = run.notes;
  for (const Cluster& pool : run.cluster.pools) {
    run.notes.clear();
    run.cluster.device = pool.device;
    FT_TRY(find_profile(run, user, source));
    run.pool_profiles.push_back(std::exchange(run.profile, nullptr));
    notes.insert(notes.end(), run.notes.begin(), run.notes.end());
  }
  run.notes = std::move(notes);
  run.cluster.device = first;
  run.profile_source.clear();
  return ok_status();
}

/// Whether every device computes in the types of the plan.
Status check_types(const Run& run, const DeviceSpec& device) {
  for (const DType type : {run.plan.precision.matrix, run.plan.precision.linear}) {
    if (peak_tflops(device, type) > 0) continue;
    return unsupported(run.source + ": /precision: " + device.name + " has no arithmetic in " +
                       std::string(name_of(type)) + "; it has " + types_of(device));
  }
  return ok_status();
}

/// What a file is that is no JSON but may be a launch file of a framework; "": neither.
std::string launch_form_of(const std::string& path) {
  const auto ends = [&path](std::string_view tail) { return path.ends_with(tail); };
  if (ends(".sh") || ends(".bash") || ends(".sbatch")) return "a shell script";
  if (ends(".yaml") || ends(".yml")) return "YAML";
  if (ends(".toml")) return "TOML";
  const Result<std::string> text = read_text_file(path);
  if (!text.ok() || !text.value().starts_with("#!")) return "";
  return "a shell script";
}

/// A file of JSON; one that may be a launch file is sent to the verb that reads those.
Result<Json> read_run_file(const std::string& path) {
  Result<Json> json = read_json_file(path);
  const std::string form = json.ok() || path == kStandardInput ? "" : launch_form_of(path);
  if (form.empty()) return json;
  return input_error(path + ": is " + form + ", expected JSON; `foretrain import " + path +
                     " --out run.json` makes a RUN of a framework's launch file");
}

}  // namespace

bool is_inline_run(const std::string& run) {
  const std::size_t first = run.find_first_not_of(" \t\r\n");
  return first != std::string::npos && run[first] == '{' && !is_file(run);
}

std::string source_of_run(const std::string& run) { return is_inline_run(run) ? "RUN" : run; }

bool is_users(const std::string& origin) { return origin == "RUN" || origin == "--set"; }

const Json* value_at(const Json& json, const std::string& pointer) {
  const Json* out = &json;
  for (std::size_t at = 0; out != nullptr && at < pointer.size();) {
    const std::size_t end = std::min(pointer.find('/', at + 1), pointer.size());
    out = out->object() == nullptr ? nullptr : out->find(pointer.substr(at + 1, end - at - 1));
    at = end;
  }
  return out;
}

std::string precision_text(const Run& run) {
  const Json* whole = value_at(run.resolved, "/precision");
  const Json* part = value_at(run.resolved, "/precision/compute");
  const Json* named = whole != nullptr && whole->string() != nullptr ? whole : part;
  const bool text = named != nullptr && named->string() != nullptr;
  return text ? *named->string() : std::string(name_of(run.plan.precision.matrix));
}

bool asks(const Run& run, const char* pointer, const Json& value) {
  const Json* asked = value_at(run.resolved, pointer);
  return asked != nullptr && *asked == value;
}

Result<Json> load_preset(const std::string& kind, const std::string& name_or_path,
                         const std::string& where) {
  if (kind == "runs" && is_inline_run(name_or_path)) return parse_json(name_or_path, "RUN");
  const bool input = name_or_path == kStandardInput;
  if (!input && is_file(name_or_path)) FT_TRY(refuse_trace(name_or_path));
  if (input || is_file(name_or_path)) return read_run_file(name_or_path);
  const std::string_view text = find_asset(kind + "/" + name_or_path + ".json");
  if (!text.empty()) return parse_json(text, name_or_path);
  if (is_folder(name_or_path)) {
    return input_error(where + ": " + name_or_path + " is a directory, expected a file or a name");
  }
  const std::string one = kind.substr(0, kind.size() - 1);
  Error error = input_error(where + ": no " + one + " \"" + name_or_path + "\" and no such file");
  if (kind == "runs") error.message += no_run(name_or_path);
  error.message += "; `foretrain list " + kind + "` lists them";
  const std::string near = nearest_name(name_or_path, preset_names(kind));
  if (!near.empty()) error.hint = " (did you mean \"" + near + "\"?)";
  error.message += error.hint;
  error.found = "\"" + name_or_path + "\"";
  const std::size_t pointer = where.rfind(": /");
  if (pointer != std::string::npos) error.pointer = where.substr(pointer + 2);
  return error;
}

namespace {

Result<Json> written_run(const std::string& name_or_path) {
  FT_ASSIGN(Json json, load_preset("runs", name_or_path, "RUN"));
  if (is_file(name_or_path)) {
    look_beside(json, std::filesystem::path(name_or_path).parent_path());
  }
  return json;
}

}  // namespace

Result<Json> read_run(const std::string& name_or_path, const std::vector<std::string>& sets) {
  FT_ASSIGN(Json json, written_run(name_or_path));
  FT_ASSIGN(const std::vector<std::string> notes,
            rename_former_keys(json, source_of_run(name_or_path)));
  std::map<std::string, std::string> origins;
  for (const std::string& set : sets) FT_TRY(apply_set(json, set, origins));
  return json;
}

Result<Run> load_run(const std::string& name_or_path, const std::vector<std::string>& sets,
                     const ChoosePrices& prices) {
  FT_ASSIGN(const Json json, written_run(name_or_path));
  return resolve_run(json, source_of_run(name_or_path), sets, prices);
}

namespace {

Result<Run> resolve(const Json& json, const std::string& source,
                    const std::vector<std::string>& sets, const ChoosePrices& prices,
                    const KnownParts& known, std::optional<Error>& unknown) {
  Run run;
  run.source = source;
  Json user = json;
  FT_ASSIGN(run.notes, rename_former_keys(user, source));
  FT_TRY(take_unknown_keys(user, source, unknown));
  for (const char* other : {"$schema", "schema", "search"}) user.erase(other);
  std::map<std::string, std::string> set_origins;
  for (const std::string& set : sets) FT_TRY(apply_set(user, set, set_origins));
  FT_TRY(take_unknown_keys(user, source + " with --set", unknown));

  run.resolved = default_run();
  for (const auto& [key, value] : *run.resolved.object()) {
    Json empty{Json::Object{}};
    overlay(empty, value, "default", "/" + key, run.origins);
    if (value.object() == nullptr) continue;
    run.origins.erase("/" + key);
    for (const auto& [inner, unused] : *value.object()) {
      run.origins["/" + key + "/" + inner] = "default";
    }
  }
  const Json* system = user.find("system");
  run.system = system != nullptr && system->string() ? *system->string()
                                                     : *run.resolved.find("system")->string();
  if (system != nullptr && system->string() == nullptr && !system->is_null()) {
    return input_error(source + ": /system: found " + describe(*system) + ", expected a name");
  }
  FT_ASSIGN(const Json system_file, load_preset("systems", run.system, source + ": /system"));
  for (const char* key : {"model", "cluster"}) {
    if (user.find(key) == nullptr) {
      return input_error(source + ": /" + key +
                         ": is missing, expected a preset's name or an object");
    }
  }
  FT_TRY(refuse_open_cluster(*user.find("cluster"), source));
  Result<Cluster> cluster = known.cluster != nullptr
                                ? Result<Cluster>(*known.cluster)
                                : read_cluster(*user.find("cluster"), source, "/cluster");
  if (!cluster.ok()) {
    Error error = cluster.error();
    const Result<Model> model = load_model(*user.find("model"), source);
    if (!model.ok()) append(error, model.error());
    return error;
  }
  run.cluster = std::move(cluster.value());
  FT_TRY(lay_system(run, system_file));
  if (const Json* software = user.find("software"); software != nullptr && !software->is_null()) {
    FT_TRY(lay_software(run, *software, source));
  }
  run.usual = run.resolved;
  overlay(run.resolved, user, "RUN", "", run.origins);
  for (const auto& [pointer, origin] : set_origins) {
    const Json* given = value_at(user, pointer);
    const bool spelt = pointer == kPrecisionPointer && given != nullptr &&
                       given->string() != nullptr &&
                       value_at(run.resolved, pointer)->object() != nullptr;
    run.origins[spelt ? pointer + "/compute" : pointer] = origin;
  }

  if (const Json* name = user.find("name"); name != nullptr && !name->is_null()) {
    if (name->string() == nullptr) {
      return input_error(source + ": /name: found " + describe(*name) + ", expected a text");
    }
    run.name = *name->string();
    if (printable_line(run.name) != run.name) {
      return input_error(source + ": /name: found " + describe(*name) +
                         ", expected a text of one line, without control characters");
    }
  }
  if (run.name.empty()) run.name = source;
  FT_ASSIGN(run.model, known.model != nullptr ? Result<Model>(*known.model)
                                              : load_model(*user.find("model"), source));
  FT_TRY(drop_sequence(run));
  drop_unused(run);
  drop_buckets(run);
  Result<Plan> plan = read_plan(run.resolved, source, run.model, run.cluster.accelerators);
  if (plan.ok() && derive_attention(run, plan.value())) {
    plan = read_plan(run.resolved, source, run.model, run.cluster.accelerators);
  }
  if (!plan.ok()) return with_origin(plan.error(), run);
  run.plan = std::move(plan.value());
  FT_TRY(check_types(run, run.cluster.device));
  for (const Cluster& pool : run.cluster.pools) FT_TRY(check_types(run, pool.device));
  run.dispatch.each = launch_time(run.resolved, dispatch_key(run.resolved));
  run.dispatch.captured = launch_time(run.resolved, "graph_dispatch_us");
  run.graphs = cuda_graph(run.resolved) == "full";
  run.graphs_by_layer = cuda_graph(run.resolved) == "layer";
  const auto find = run.cluster.pools.empty() ? find_profile : find_pool_profiles;
  FT_TRY(prices ? prices(run) : find(run, user, source));
  note_limits(run);
  return run;
}

/// What depends on times: the division of layers, orders that fit durations, the states that stay
/// on the device, what a coordinator's cycles find ready. Nothing before it simulates.
Status decide(Run& run) {
  FT_TRY(divide_by_time(run));
  FT_TRY(order_by_time(run));
  FT_TRY(place_states(run));
  return list_ready(run);
}

}  // namespace

Result<Run> resolve_run(const Json& json, const std::string& source,
                        const std::vector<std::string>& sets, const ChoosePrices& prices,
                        const KnownParts& known) {
  std::optional<Error> unknown;
  Result<Run> run = resolve(json, source, sets, prices, known, unknown);
  if (unknown) {
    if (!run.ok()) append(*unknown, run.error());
    return with_our_name(*unknown);
  }
  if (!run.ok()) return with_our_name(run.error());
  FT_TRY(decide(run.value()));
  return run;
}

}  // namespace foretrain
