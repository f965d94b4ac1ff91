#include "tools/import/import.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "models/plan/keys/keys.h"
#include "sim/base/printable.h"
#include "tools/import/frameworks.h"
#include "tools/import/kinds.h"
#include "tools/import/launch_words.h"
#include "tools/import/model_of.h"
#include "tools/predict/idle_keys.h"
#include "tools/predict/run_file.h"

namespace foretrain {
namespace {

/// A number of launchers: 4, "2:4" (elastic: the most), "gpu:8".
std::int64_t count_of(const Json* value) {
  if (value == nullptr) return 0;
  Json one = *value;
  if (const std::string* text = value->string()) {
    one = value_of_word(text->substr(text->rfind(':') + 1));
  }
  Json holder{Json::Object{}};
  holder.set("n", one);
  return whole_at(holder, "n", 0);
}

/// Ranks of one copy of the model.
std::int64_t model_ranks(const Json& run) {
  constexpr std::int64_t kMost = 1 << 20;
  const auto degree = [&run](const char* path) {
    return std::max<std::int64_t>(1, whole_at(run, path, 1));
  };
  const std::int64_t ranks =
      degree("parallel.tensor") * degree("parallel.pipeline") * degree("parallel.context");
  return std::min(ranks, kMost);
}

/// Ranks that the plan needs at least: experts are cut over ranks of the same stage.
std::int64_t least_ranks(const Json& run, bool experts_as_tensor) {
  const std::int64_t ranks = model_ranks(run);
  const std::int64_t expert = whole_at(run, "parallel.expert", 1);
  const std::int64_t tensor = experts_as_tensor ? whole_at(run, "parallel.tensor", 1) : 1;
  const std::int64_t cut = expert * whole_at(run, "parallel.expert_tensor", tensor);
  constexpr std::int64_t kMost = 1 << 20;
  if (expert < 2 || cut <= 0 || cut > kMost || ranks <= 0) return ranks;
  const std::int64_t stage = cut * std::max<std::int64_t>(1, whole_at(run, "parallel.pipeline", 1));
  const std::int64_t both = std::lcm(ranks, std::min(stage, kMost));
  return both <= kMost ? both : ranks;
}

std::int64_t find_world(const Shell& shell, const ImportOptions& options, bool experts_as_tensor,
                        Draft& draft) {
  if (options.accelerators > 0) return options.accelerators;
  const auto fact = [&draft](const char* path) { return count_of(find_path(draft.run, path)); };
  std::int64_t each = fact("job.per_node");
  if (each == 0) each = fact("job.gres");
  if (each == 0) each = fact("job.tasks_per_node");
  std::int64_t nodes = fact("job.nodes");
  std::int64_t world = fact("job.world");
  if (nodes > 0 && each > 0) world = nodes * each;
  if (world == 0) {
    if (const auto of = shell.variables.find("WORLD_SIZE");
        of != shell.variables.end() && !of->second.empty() && of->second.front().missing.empty()) {
      const Json value = value_of_word(of->second.front().text);
      world = count_of(&value);
    }
  }
  if (world == 0 && each > 0) {
    draft.unresolved.push_back(
        "accelerators: nothing says how many nodes there are; taken as 1 (--accelerators says)");
    world = each;
  }
  const std::int64_t least = least_ranks(draft.run, experts_as_tensor);
  if (world <= 0) {
    draft.unresolved.push_back("accelerators: nothing says how many there are; taken as " +
                               std::to_string(least) +
                               ", which the plan needs (--accelerators says)");
    return least;
  }
  if (world % least != 0) {
    const std::int64_t up = (world + least - 1) / least * least;
    draft.unresolved.push_back("accelerators: the launch starts " + std::to_string(world) +
                               " ranks, which its degrees do not divide; taken as " +
                               std::to_string(up) + " (--accelerators says)");
    return up;
  }
  return world;
}

Status write_cluster(const ImportOptions& options, std::int64_t accelerators, Draft& draft) {
  Json cluster{Json::Object{}};
  cluster.set("preset", options.cluster.empty() ? Json(kOpenCluster) : Json(options.cluster));
  cluster.set("accelerators", Json(accelerators));
  if (options.cluster.empty()) {
    draft.unresolved.push_back(
        "cluster: no launch file names the machine; --cluster of `import`, or --set "
        "cluster.preset=NAME of other verbs, does (`foretrain list clusters`)");
  } else {
    FT_TRY(load_preset("clusters", options.cluster, "--cluster"));
  }
  draft.run.set("cluster", std::move(cluster));
  return ok_status();
}

/// A batch that nobody gives is the framework's default.
void write_batch(std::int64_t accelerators, Draft& draft) {
  Json& run = draft.run;
  if (find_path(run, "batch.micro") == nullptr) {
    draft.unresolved.push_back("batch.micro: no file says it; taken as 1");
    set_path(run, "batch.micro", Json(1));
  }
  if (find_path(run, "batch.global") == nullptr &&
      find_path(run, "batch.accumulation") == nullptr) {
    const std::int64_t data = std::max<std::int64_t>(1, accelerators / model_ranks(run));
    const std::int64_t global = whole_at(run, "batch.micro", 1) * data;
    draft.unresolved.push_back("batch.global: no file says it; taken as " + std::to_string(global) +
                               ", one microbatch of every data-parallel rank");
    set_path(run, "batch.global", Json(global));
  }
  if (find_path(run, "batch.sequence") == nullptr) {
    draft.unresolved.push_back("batch.sequence: no file says it; the default is 2048");
  }
}

Status apply_sets(const ImportOptions& options, Draft& draft) {
  for (const std::string& set : options.sets) {
    const std::size_t equals = set.find('=');
    if (equals == std::string::npos || equals == 0) {
      return input_error("--set " + set + ": expected KEY=VALUE, for example parallel.tensor=4");
    }
    const std::string text = set.substr(equals + 1);
    const Result<Json> parsed = parse_json(text, "--set");
    set_path(draft.run, set.substr(0, equals), parsed.ok() ? parsed.value() : Json(text));
  }
  return ok_status();
}

/// The release of the framework that the user names, which decides its defaults.
std::string software_of(const ImportOptions& options) {
  constexpr std::string_view kKey = "software=";
  std::string out;
  for (const std::string& set : options.sets) {
    if (set.starts_with(kKey)) out = set.substr(kKey.size());
  }
  return out;
}

bool is_run_key(const std::string& name) {
  const PlanKeys& keys = all_run_keys();
  return std::any_of(keys.begin(), keys.end(),
                     [&name](const PlanKey& key) { return key.path() == name; });
}

/// Sections in the order in which people read them.
Json in_order(const Json& run) {
  constexpr std::array kOrder = {"name",      "model",    "cluster",   "system",  "software",
                                 "parallel",  "sharding", "gradients", "batch",   "precision",
                                 "recompute", "schedule", "overlap",   "kernels", "moe",
                                 "offload",   "launch",   "allocator", "host",    "dropout"};
  Json out{Json::Object{}};
  for (const char* key : kOrder) {
    if (const Json* value = run.find(key)) out.set(key, *value);
  }
  for (const auto& [key, value] : *run.object()) {
    if (key != "job" && out.find(key) == nullptr) out.set(key, value);
  }
  return out;
}

/// Looks at the RUN as `simulate` will. Defaults of the framework that mean nothing beside the
/// others are left out again; what is refused is told.
void look_at(bool open_cluster, Draft& draft) {
  Json shown = draft.run;
  if (!is_run_key("software")) shown.erase("software");
  if (open_cluster) {
    const bool tpu = text_at(draft.run, "system") == "maxtext";
    set_path(shown, "cluster.preset", Json(tpu ? "tpu-v5p" : "dgx-h100"));
  }
  const Result<Run> run = resolve_run(shown, "the RUN", {});
  if (!run.ok()) {
    draft.unresolved.push_back("simulate refuses the RUN as it is: " + run.error().message);
    return;
  }
  for (const std::string& text : idle_keys(run.value())) {
    std::string path = text.substr(1, text.find(' ') - 1);
    std::replace(path.begin(), path.end(), '/', '.');
    if (!draft.defaults.contains(path)) continue;
    erase_path(draft.run, path);
  }
}

/// Translations as a user reads them: keys of the RUN with the values that they have there. What
/// left no trace had no effect.
void tidy(const Table& table, Draft& draft) {
  std::vector<Translation> kept;
  const auto told = [&kept](const std::string& to) {
    return std::any_of(kept.begin(), kept.end(),
                       [&to](const Translation& one) { return one.to == to; });
  };
  for (const bool derived : {false, true}) {
    for (const Translation& one : draft.translated) {
      if (one.derived != derived) continue;
      const std::string to = table.run_key(one.to);
      const Json* value = find_path(draft.run, to);
      if (value == nullptr && !derived) draft.no_effect.push_back(one.from);
      if (value == nullptr || (derived && told(to) && to != "model")) continue;
      const bool part = to == "model" && one.to.starts_with("model.");
      kept.push_back({one.from, part ? one.to : to, part ? one.value : *value, derived});
    }
  }
  draft.translated = std::move(kept);
}

Status finish(const FinishContext& context, Draft& draft) {
  using Finish = Status (*)(const FinishContext&, Draft&);
  constexpr std::pair<std::string_view, Finish> kAll[] = {
      {"megatron", finish_megatron},
      {"torchtitan", finish_torchtitan},
      {"megatron-deepspeed", finish_megatron_deepspeed},
      {"deepspeed", finish_deepspeed},
      {"accelerate", finish_accelerate},
      {"maxtext", finish_maxtext},
      {"composer", finish_composer}};
  const std::string name = text_at(context.table.json(), "finish");
  for (const auto& [of, run] : kAll) {
    if (of == name) return run(context, draft);
  }
  return ok_status();
}

/// Programs that train other models than decoders.
void note_programs(const Launch& launch, Draft& draft) {
  for (const std::string& program : launch.programs) {
    for (const char* other : {"bert", "t5", "mamba", "hybrid", "vlm", "retro", "vision", "ict"}) {
      if (program.find(std::string("pretrain_") + other) == std::string::npos) continue;
      draft.not_modelled.push_back({program, "its model is taken as a GPT's; give a config.json"});
    }
  }
}

/// The model of a config.json, of a framework's name, or of sizes.
Status choose_model(const Launch& launch, Draft& draft) {
  if (!launch.models.empty()) return write_model(launch.models.back(), draft);
  const std::string preset = text_at(draft.run, "job.preset");
  if (preset.empty()) {
    if (find_path(draft.run, "model.hidden_size") == nullptr && launch.framework == "accelerate") {
      return input_error("import: no file says what the model is; give its config.json as well");
    }
    return write_model(draft);
  }
  draft.run.set("model", Json(preset));
  return ok_status();
}

}  // namespace

Result<Draft> import_launch(const std::vector<LaunchFile>& files, const ImportOptions& options) {
  Shell shell;
  Launch launch;
  std::string script;
  for (const LaunchFile& file : files) {
    const std::size_t before = launch.settings.size() + launch.models.size();
    FT_TRY(read_launch_text(file.text, file.path, options.from, shell, launch));
    if (launch.settings.size() + launch.models.size() == before) script = file.path;
  }
  if (!script.empty()) {
    const std::size_t documented = launch.settings.size();
    FT_TRY(add_launch(shell, script, launch));
    find_engine(shell, script, documented, launch);
  }
  FT_TRY(settle_framework(options.from, launch));
  FT_ASSIGN(const Table table, Table::load(launch.framework));
  Draft draft;
  draft.software = software_of(options);
  draft.unresolved = launch.unresolved;
  table.apply(launch.settings, draft);
  FT_TRY(apply_engine(launch, draft));
  table.add_defaults(draft);
  if (!draft.software.empty() && !is_run_key("software")) {
    draft.unresolved.push_back("software: decides the defaults of " + table.framework() +
                               " here; a RUN has no such key");
  }
  if (launch.framework == "maxtext") count_mesh(draft);
  const bool megatron = text_at(table.json(), "finish") == "megatron";
  const std::int64_t accelerators = find_world(shell, options, megatron, draft);
  FT_TRY(finish({table, accelerators, !launch.models.empty()}, draft));
  draft.run.set("name", Json(table.framework() + ", from " + files.front().path));
  if (draft.run.find("system") == nullptr) draft.run.set("system", Json(table.system()));
  note_programs(launch, draft);
  if (const Status model = choose_model(launch, draft); !model.ok()) {
    Error error = model.error();  // what nobody knows may be what is missing
    for (const std::string& text : draft.unresolved) append(error, input_error(text));
    return error;
  }
  write_batch(accelerators, draft);
  FT_TRY(write_cluster(options, accelerators, draft));
  FT_TRY(apply_sets(options, draft));
  if (!is_run_key("software")) draft.run.erase("software");
  draft.run = in_order(draft.run);
  look_at(options.cluster.empty(), draft);
  tidy(table, draft);
  return draft;
}

Json import_json(const Draft& draft) {
  Json out{Json::Object{}};
  out.set("schema", "foretrain/import/1");
  out.set("run", draft.run);
  Json::Array translated;
  for (const Translation& one : draft.translated) {
    translated.emplace_back(
        Json::Object{{"from", Json(one.from)}, {"to", Json(one.to)}, {"value", one.value}});
  }
  out.set("translated", std::move(translated));
  const auto texts = [](const std::vector<std::string>& list) {
    Json::Array array;
    for (const std::string& one : list) array.emplace_back(one);
    return Json(std::move(array));
  };
  out.set("no_effect", texts(draft.no_effect));
  Json::Array left;
  for (const NotModelled& one : draft.not_modelled) {
    left.emplace_back(Json::Object{{"from", Json(one.from)}, {"why", Json(one.why)}});
  }
  out.set("not_modelled", std::move(left));
  out.set("unresolved", texts(draft.unresolved));
  return out;
}

std::string import_text(const Draft& draft) {
  std::string out = "Translated\n";
  for (const Translation& one : draft.translated) {
    out += "  " + printable_line(one.from) + "  ->  " + printable_line(one.to) + " = " +
           dump_json(one.value, -1) + "\n";
  }
  if (!draft.no_effect.empty()) {
    out += "Without effect on speed and memory\n";
    for (const std::string& one : draft.no_effect) out += "  " + printable_line(one) + "\n";
  }
  if (!draft.unresolved.empty()) {
    out += "UNRESOLVED: only running it, or you, can tell\n";
    for (const std::string& one : draft.unresolved) out += "  " + printable_line(one) + "\n";
  }
  if (!draft.not_modelled.empty()) {
    out += "NOT MODELLED: the prediction is without these\n";
    for (const NotModelled& one : draft.not_modelled) {
      out += "  " + printable_line(one.from) + ": " + printable_line(one.why) + "\n";
    }
  }
  return out;
}

}  // namespace foretrain
