// DeepSpeed's JSON, as deepspeed/runtime/config.py and zero/config.py have it; Accelerate's YAML,
// which chooses among DDP, FSDP, DeepSpeed and Megatron-LM.
#include <algorithm>

#include "tools/import/documents.h"
#include "tools/import/frameworks.h"
#include "tools/import/kinds.h"

namespace foretrain {
namespace {

/// train_batch_size = micro x accumulation x ranks: two of the three tell the last.
void finish_batches(const FinishContext& context, Draft& draft) {
  Json& run = draft.run;
  const std::int64_t data = data_ranks(draft, context.accelerators);
  const std::int64_t steps = whole_at(run, "batch.accumulation", 0);
  const std::int64_t global = whole_at(run, "batch.global", 0);
  if (global > 0 && find_path(run, "batch.micro") == nullptr) {
    const std::int64_t micro =
        global / std::max<std::int64_t>(1, data) / std::max<std::int64_t>(1, steps);
    conclude(draft, "train_batch_size, gradient_accumulation_steps", "batch.micro",
             Json(std::max<std::int64_t>(1, micro)));
  }
  if (global > 0) erase_path(run, "batch.accumulation");
}

/// Keys of stage 3 mean nothing below it.
void drop_stage_3(Draft& draft) {
  if (text_at(draft.run, "sharding.level") == "parameters") return;
  for (const char* key : {"gather_elements", "persist_elements", "live_elements", "reuse_elements",
                          "secondary_group", "gather_dtype"}) {
    erase_path(draft.run, std::string("sharding.") + key);
  }
}

void finish_offload(Draft& draft) {
  Json& run = draft.run;
  const bool offloads = text_at(run, "offload.optimizer", "none") != "none";
  if (!offloads) {
    erase_path(run, "offload.pageable");
    return;
  }
  if (find_path(run, "offload.pageable") == nullptr) {
    conclude(draft, "default of DeepSpeed, without pin_memory", "offload.pageable", Json(true));
  }
  if (const Json* ratio = find_path(run, "job.offloaded_share")) {
    conclude(draft, "offload_optimizer.ratio", "offload.device_share",
             Json(1.0 - std::clamp(ratio->number(), 0.0, 1.0)));
  }
}

// --- The engine beside Megatron's arguments -----------------------------------------------------

const Setting* setting_of(const std::vector<Setting>& settings, const std::string& key) {
  const auto found = std::find_if(settings.rbegin(), settings.rend(),
                                  [&key](const Setting& one) { return one.key == key; });
  return found == settings.rend() ? nullptr : &*found;
}

bool asks_megatron(const std::vector<Setting>& settings) {
  return setting_of(settings, "num_layers") != nullptr &&
         setting_of(settings, "hidden_size") != nullptr;
}

/// The file of the engine's configuration, as arguments name it; "": none do.
std::string engine_file(const std::vector<Setting>& settings) {
  for (const char* key : {"deepspeed_config", "deepspeed"}) {
    const Setting* setting = setting_of(settings, key);
    if (setting != nullptr && setting->value.string() != nullptr) return *setting->value.string();
  }
  return "";
}

/// What nobody can tell stands as ${NAME} or $(...): null, which says nothing.
std::string without_missing(const ShellWord& document) {
  std::string text = document.text;
  for (const std::string& name : document.missing) {
    const std::string written = name.starts_with("$(") ? name : "${" + name + "}";
    for (std::size_t at = text.find(written); at != std::string::npos; at = text.find(written)) {
      text.replace(at, written.size(), "null");
    }
  }
  return text;
}

/// Settings of the engine's configuration that a script writes by a here-document.
std::vector<Setting> written_engine(const Shell& shell, const std::string& script,
                                    const std::string& asked, Launch& launch) {
  for (const auto& [file, document] : shell.documents) {
    if (!asked.empty() && file != asked && shell.documents.size() > 1) continue;
    const std::string source = script + ":" + std::to_string(document.line);
    const Result<Json> json = parse_json(without_missing(document), source);
    if (!json.ok()) {
      if (asked.empty() || file != asked) continue;
      launch.unresolved.push_back(file + ", which the script writes: " + json.error().message);
      continue;
    }
    if (!is_engine_config(json.value())) continue;
    std::string missing;
    for (const std::string& name : document.missing) {
      missing += (missing.empty() ? "" : ", ") + name;
    }
    if (!missing.empty()) {
      launch.unresolved.push_back(file + ", which the script writes: nothing sets " + missing);
    }
    return settings_of(json.value(), file + " of " + script);
  }
  return {};
}

}  // namespace

void find_engine(const Shell& shell, const std::string& script, std::size_t documented,
                 Launch& launch) {
  std::vector<Setting>& settings = launch.settings;
  const bool megatron = asks_megatron(settings);
  const auto has = [&settings](const char* key) { return setting_of(settings, key) != nullptr; };
  const bool engine = has("deepspeed") || has("deepspeed_config") || has("zero_stage") ||
                      has("deepspeed_activation_checkpointing");
  if (launch.framework == "deepspeed" && megatron) {  // its file is given
    const auto end = settings.begin() + static_cast<std::ptrdiff_t>(documented);
    launch.engine.assign(settings.begin(), end);
    settings.erase(settings.begin(), end);
    launch.framework = "megatron-deepspeed";
    return;
  }
  const bool open = launch.framework.empty() || launch.framework == "megatron-deepspeed";
  if (!open || !engine) return;
  const std::string asked = engine_file(settings);
  std::vector<Setting> written = written_engine(shell, script, asked, launch);
  if (megatron) {
    launch.framework = "megatron-deepspeed";
    launch.engine = std::move(written);
    if (launch.engine.empty()) {
      launch.unresolved.push_back(
          (asked.empty() ? "the engine's configuration" : asked) +
          ": is not read; give that file to `import` as well. ZeRO is taken from --zero-stage");
    }
  } else if (!written.empty()) {
    launch.framework = "deepspeed";
    settings.insert(settings.begin(), written.begin(), written.end());
  }
}

Status apply_engine(const Launch& launch, Draft& draft) {
  if (launch.engine.empty()) return ok_status();
  FT_ASSIGN(const Table table, Table::load("deepspeed"));
  erase_path(draft.run, "gradients.clip_norm");  // the engine clips, not Megatron's optimizer
  table.apply(launch.engine, draft);
  table.add_defaults(draft);
  return ok_status();
}

void finish_engine(const FinishContext& context, Draft& draft) {
  drop_stage_3(draft);
  finish_offload(draft);
  finish_batches(context, draft);
}

Status finish_deepspeed(const FinishContext& context, Draft& draft) {
  Json& run = draft.run;
  conclude(draft, "default of DeepSpeed, without bf16 and fp16", "precision",
           Json(precision_of_flags(run)));
  const bool stage_3 = text_at(run, "sharding.level") == "parameters";
  if (find_path(run, "overlap.gradient_reduce") == nullptr) {
    conclude(draft, "default of DeepSpeed, without overlap_comm", "overlap.gradient_reduce",
             Json(stage_3));
  }
  if (whole_at(run, "parallel.tensor", 1) > 1) {
    conclude(draft, "DeepSpeed's tensor parallelism", "parallel.sequence", Json(false));
  }
  finish_engine(context, draft);
  if (find_path(run, "recompute") == nullptr) {
    draft.unresolved.push_back(
        "recompute: DeepSpeed's file does not say whether the script checkpoints activations; "
        "taken as none");
    set_path(run, "recompute", Json("none"));
  }
  if (!context.has_config) return ok_status();
  // The model is Hugging Face's code, not Megatron-DeepSpeed's.
  const std::string from = "the code of Hugging Face's models";
  if (text_at(run, "kernels.attention", "flash") == "flash") {
    conclude(draft, from, "kernels.flash", Json("flash2"));
  }
  conclude(draft, from, "kernels.fusion", Json("eager"));
  conclude(draft, from, "kernels.loss", Json("torch"));
  return ok_status();
}

Status finish_accelerate(const FinishContext& context, Draft& draft) {
  Json& run = draft.run;
  const std::string system = text_at(run, "job.type", "pytorch-ddp");
  const bool fsdp = system == "pytorch-fsdp";
  if (fsdp && whole_at(run, "job.fsdp", 1) == 2) {
    conclude(draft, "fsdp_version", "system", Json("accelerate"));
  } else {
    conclude(draft, "distributed_type", "system", Json(system));
  }
  if (fsdp) {
    if (find_path(run, "job.strategy") == nullptr) set_path(run, "job.strategy", Json("full"));
    conclude_strategy(draft);
    if (const Json* reshard = find_path(run, "job.reshard")) {
      const Json value = *reshard;
      conclude(draft, "fsdp_reshard_after_forward", "sharding.reshard_after_forward", value);
    }
    if (true_at(run, "job.offload")) {
      conclude(draft, "fsdp_offload_params", "offload.parameters", Json("cpu"));
      conclude(draft, "fsdp_offload_params", "offload.optimizer", Json("cpu"));
    }
  }
  if (system == "deepspeed") {
    drop_stage_3(draft);
    finish_offload(draft);
  }
  if (system == "megatron-lm" && find_path(run, "sharding.level") == nullptr) {
    conclude(draft, "default of Megatron-LM, without the distributed optimizer", "sharding.level",
             Json("none"));
  }
  finish_batches(context, draft);
  return ok_status();
}

std::int64_t data_ranks(const Draft& draft, std::int64_t accelerators) {
  const std::int64_t model = whole_at(draft.run, "parallel.tensor", 1) *
                             whole_at(draft.run, "parallel.pipeline", 1) *
                             whole_at(draft.run, "parallel.context", 1);
  return std::max<std::int64_t>(1, accelerators / std::max<std::int64_t>(1, model));
}

void conclude_strategy(Draft& draft) {
  const std::string strategy = text_at(draft.run, "job.strategy", "full");
  const bool gradients = strategy.ends_with("gradients");
  conclude(draft, "sharding_strategy", "sharding.level",
           Json(strategy == "none" ? "none"
                : gradients        ? "gradients"
                                   : "parameters"));
  if (!strategy.starts_with("hybrid")) return;
  constexpr int kNode = 8;
  draft.unresolved.push_back(
      "sharding.group_size: HYBRID_SHARD shards within a node; taken as 8 accelerators");
  set_path(draft.run, "sharding.group_size", Json(kNode));
}

Status conclude_preset(const FinishContext& context, const std::string& name, Draft& draft) {
  const Json* models = context.table.json().find("models");
  const Json* preset = models == nullptr ? nullptr : models->find(name);
  if (preset != nullptr) {
    set_path(draft.run, "job.preset", *preset);
    return ok_status();
  }
  std::vector<std::string> names;
  for (const auto& [key, unused] : *models->object()) names.push_back(key);
  const std::string near = nearest_name(name, names);
  return input_error("import: no model ships for " + context.table.framework() + "'s \"" + name +
                     "\"" + (near.empty() ? "" : " (did you mean \"" + near + "\"?)") +
                     "; give its config.json to `import` as well");
}

}  // namespace foretrain
