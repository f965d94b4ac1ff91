#include "models/plan/keys/keys.h"

#include <algorithm>

namespace foretrain {

bool KeyContext::asks(const char* section, const char* key, const Json& value) const {
  const Json* found = resolved.find(section);
  found = found == nullptr ? nullptr : found->find(key);
  return found != nullptr && *found == value;
}

PlanKeys run_keys() {
  return {
      PlanKey::elsewhere("name", KeyType::kText).says("A name for reports."),
      PlanKey::elsewhere("model")
          .else_("required")
          .says("A model preset, a path, or the keys of a config.json.")
          .probe("gpt3-350m"),
      PlanKey::elsewhere("cluster")
          .else_("required")
          .says("A cluster preset, a path, or an object with preset and accelerators.")
          .alias({"hardware"})
          .probe_set("cluster.preset=dgx-h100"),
      PlanKey::elsewhere("system")
          .fallback_to("megatron-lm")
          .says("A system preset or a path: the defaults of a training framework.")
          .value("fsdp", "pytorch-fsdp")
          .value("ddp", "pytorch-ddp")
          .value("fsdp2", "torchtitan")
          .value("hf", "transformers")
          .value("huggingface", "transformers")
          .value("trl", "accelerate")
          .value("automodel", "nemo-automodel")
          .value("nemo", "megatron-lm")
          .value("megatron", "megatron-lm")
          .value("jax", "maxtext")
          .value("zero", "deepspeed")
          .probe("deepspeed"),
      PlanKey::elsewhere("software", KeyType::kText)
          .else_("the system as it is today")
          .says("A release of the system (nemo-25.09), or a date (2025, 2025-09) whose release is "
                "taken: what was there and what was the default (`foretrain list software`).")
          .probe("nemo-25.09", {"model.preset=qwen3-30b-a3b", "model.num_hidden_layers=4",
                                "parallel.pipeline=1", "parallel.tensor=1", "parallel.expert=8"}),
      PlanKey::elsewhere("profile", KeyType::kText)
          .else_("of the cluster's device: the user's own, else the shipped one")
          .says("Measured prices: a profile's name or path."),
      PlanKey::elsewhere("search")
          .else_("what the flags of `foretrain search` say")
          .says("What `foretrain search` may change and must keep, by the names of its flags."),
      PlanKey("pipeline_stages", KeyType::kAny,
              [](const PlanKey& key, JsonReader& reader, Request& out) {
                if (const Json* json = reader.take(key.name)) out.lists.stages = *json;
              })
          .else_("all alike")
          .says("What each stage of the pipeline does otherwise, first to last: a list of objects "
                "with layers, tensor, recompute, sharding and offload "
                "(docs/explanation/layers-and-chunks.md).")
          .probe(R"([{"recompute":1},{}])"),
      PlanKey::number("dropout", [](Request& r, double v) { r.plan.dropout = v; })
          .range(0, 1)
          .else_("the model's, else 0.1 with unfused attention, else 0")
          .says("The rate of all dropouts.")
          .probe("0.1"),
  };
}

PlanKey asked_key(const std::string& path, PlanKey::Setter<Asked> set) {
  const auto read = [set = std::move(set)](const PlanKey& key, JsonReader& reader, Request& out) {
    const Json* json = reader.take(key.name);
    if (json == nullptr) return;
    if (*json == Json("auto")) return set(out, Asked::kWhereModelled);
    if (const bool* flag = std::get_if<bool>(&json->value)) {
      return set(out, *flag ? Asked::kYes : Asked::kNo);
    }
    reader.fail(key.name, "found " + describe(*json) + ", expected true, false or \"auto\"");
  };
  return PlanKey(path, KeyType::kFlag, read).auto_too();
}

const PlanKeys& all_run_keys() {
  static const PlanKeys all = [] {
    PlanKeys out;
    for (PlanKeys (*section)() :
         {run_keys, parallel_keys, sharding_keys, gradients_keys, batch_keys, precision_keys,
          recompute_keys, schedule_keys, overlap_keys, kernels_keys, moe_keys, offload_keys,
          launch_keys, allocator_keys, host_keys}) {
      for (PlanKey& key : section()) out.push_back(std::move(key));
    }
    return out;
  }();
  return all;
}

const std::vector<KeySection>& run_sections() {
  static const std::vector<KeySection> all = {
      {"", "Of the file itself."},
      {"parallel", "How ranks share the work."},
      {"sharding", "What data-parallel ranks hold in parts."},
      {"gradients", "How gradients are stored, added up and reduced."},
      {"batch", "What a step trains on."},
      {"precision", "The types that a model is trained in."},
      {"recompute", "What the backward pass computes again."},
      {"schedule", "In which order a stage runs its passes."},
      {"overlap", "What runs beside what."},
      {"kernels", "Which kernels the framework calls."},
      {"moe", "How tokens reach experts."},
      {"offload", "What lives in the host's memory or storage."},
      {"launch", "What the host pays for an operation."},
      {"allocator", "How the framework allocates memory."},
      {"host", "What the host does beside launches."},
  };
  return all;
}

Json default_run() {
  Json out{Json::Object{}};
  for (const PlanKey& key : all_run_keys()) {
    if (!key.fallback) continue;
    if (key.section.empty()) {
      out.set(key.name, *key.fallback);
      continue;
    }
    Json* section = out.find(key.section);
    if (section == nullptr) section = &out.set(key.section, Json(Json::Object{}));
    section->set(key.name, *key.fallback);
  }
  return out;
}

void read_request(JsonReader& run, Request& out) {
  for (const PlanKey& key : all_run_keys()) {
    if (!key.section.empty()) continue;
    const Json* json = run.take(key.name);
    if (key.or_object && json != nullptr && json->object() != nullptr) continue;
    key.read(run, out);
  }
  for (const KeySection& section : run_sections()) {
    if (section.name.empty()) continue;
    const Json* json = run.take(section.name);
    const auto whole = [&section](const PlanKey& key) {
      return key.pointer() == "/" + section.name;
    };
    const bool named = std::any_of(all_run_keys().begin(), all_run_keys().end(), whole);
    if (json == nullptr || (named && json->object() == nullptr)) continue;
    JsonReader reader(*json, run.source(), run.pointer(section.name));
    for (const PlanKey& key : all_run_keys()) {
      if (key.section == section.name) key.read(reader, out);
    }
    run.adopt(reader.finish());
  }
  out.experts.given = run.has("moe");
}

PlanKey formerly(std::string path, PlanKey key) {
  key.aliases.push_back({std::move(path), "", true});
  return key;
}

namespace {

/// Gives the value at the former path to the key. Returns whether there was one.
Result<bool> rename_former_key(Json& run, const std::string& source, const PlanKey& key,
                               const std::string& former) {
  const std::size_t dot = former.find('.');
  Json* const old_section = run.find(former.substr(0, dot));
  const std::string old_name = former.substr(dot + 1);
  if (old_section == nullptr || old_section->object() == nullptr) return false;
  const Json* const found = old_section->find(old_name);
  if (found == nullptr) return false;
  const Json value = *found;
  old_section->erase(old_name);
  Json* section = run.find(key.section);
  if (section == nullptr) section = &run.set(key.section, Json(Json::Object{}));
  if (section->object() == nullptr || section->find(key.name) != nullptr) {
    return input_error(source + ": " + key.pointer() + " and its former name " + former +
                       " are both given; leave out " + former);
  }
  section->set(key.name, value);
  return true;
}

}  // namespace

Result<std::vector<std::string>> rename_former_keys(Json& run, const std::string& source) {
  std::vector<std::string> notes;
  for (const PlanKey& key : all_run_keys()) {
    for (const KeyAlias& alias : key.aliases) {
      if (!alias.former) continue;
      FT_ASSIGN(const bool renamed, rename_former_key(run, source, key, alias.name));
      if (!renamed) continue;
      notes.push_back(alias.name + " is read as " + key.path() + ", the key's present name");
    }
  }
  return notes;
}

std::string current_path(const std::string& path) {
  for (const PlanKey& key : all_run_keys()) {
    for (const KeyAlias& alias : key.aliases) {
      if (alias.former && alias.name == path) return key.path();
    }
  }
  return path;
}

Sets with(Sets base, const Sets& more) {
  base.insert(base.end(), more.begin(), more.end());
  return base;
}

namespace {

PlanKey::Idle reason(std::string why, Sets base, PlanKey::Condition holds, std::string value = "") {
  PlanKey::Idle out;
  out.why = std::move(why);
  out.base = std::move(base);
  out.value = std::move(value);
  out.holds = holds;
  return out;
}

}  // namespace

PlanKey::Idle if_not_parameters(Sets base) {
  return reason("sharding.level is not parameters", std::move(base),
                [](const KeyContext& c) { return !c.plan.shards_parameters(); });
}

PlanKey::Idle if_not_by_units(Sets base) {
  return reason("sharding.level is neither gradients nor parameters", std::move(base),
                [](const KeyContext& c) { return !c.plan.by_units(); });
}

PlanKey::Idle if_contiguous_passes(std::string value) {
  return reason(
      "gradients.bucketing is contiguous",
      with(kShardedGradients, {"gradients.bucketing=contiguous"}),
      [](const KeyContext& c) { return c.plan.contiguous_passes(); }, std::move(value));
}

PlanKey::Idle if_no_tensor(Sets base, std::string value) {
  return reason(
      "parallel.tensor is 1", std::move(base),
      [](const KeyContext& c) { return c.plan.tensor == 1; }, std::move(value));
}

PlanKey::Idle if_no_pipeline(Sets base, std::string value) {
  return reason(
      "parallel.pipeline is 1", std::move(base),
      [](const KeyContext& c) { return c.plan.chunks() == 1; }, std::move(value));
}

PlanKey::Idle if_no_experts() {
  return reason("the model has no experts", {},
                [](const KeyContext& c) { return !c.model.has_experts(); });
}

PlanKey::Idle if_by_units(Sets base) {
  return reason("sharding.level is neither none nor optimizer", std::move(base),
                [](const KeyContext& c) { return c.plan.by_units(); });
}

PlanKey::Idle if_host_updates(Sets base) {
  return reason("the host updates the parameters itself", std::move(base),
                [](const KeyContext& c) { return c.plan.updates_on_host(); });
}

}  // namespace foretrain
