#include "tools/import/kinds.h"

#include <algorithm>

#include "tools/import/documents.h"
#include "tools/import/launch_words.h"
#include "tools/import/table.h"

namespace foretrain {
namespace {

constexpr std::size_t kLargestFile = std::size_t{1} << 20;

enum class Form : std::uint8_t { kShell, kJson, kYaml, kToml };

/// The first line that is neither empty nor a comment.
std::string first_line(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line(text.substr(at, end - at));
    line.erase(0, std::min(line.find_first_not_of(" \t\r"), line.size()));
    if (!line.empty() && line[0] != '#' && !line.starts_with("//") && !line.starts_with("---")) {
      return line;
    }
    at = end + 1;
  }
  return "";
}

Form form_of(std::string_view text, const std::string& path) {
  const std::string line = first_line(text);
  if (text.starts_with("#!")) return Form::kShell;
  const auto ends = [&path](const char* tail) { return path.ends_with(tail); };
  if (ends(".toml")) return Form::kToml;
  if (ends(".yaml") || ends(".yml")) return Form::kYaml;
  if (ends(".json") || line.starts_with("{")) return Form::kJson;
  if (ends(".sh") || ends(".bash") || ends(".sbatch") || ends(".slurm")) return Form::kShell;
  if (line.starts_with("[") && line.find(']') != std::string::npos) return Form::kToml;
  const std::size_t colon = line.find(':');
  const bool key = colon != std::string::npos && line.find_first_of(" =$\"'(") > colon &&
                   (colon + 1 == line.size() || line[colon + 1] == ' ');
  return key ? Form::kYaml : Form::kShell;
}

/// The table of a document, by keys that no other framework has; "": none.
std::string framework_of(const Json& json, Form form) {
  const auto has = [&json](const char* path) { return find_path(json, path) != nullptr; };
  if (form == Form::kToml) {
    return has("training") || has("parallelism") || has("job") ? "torchtitan" : "";
  }
  if (form == Form::kJson) {
    return is_engine_config(json) ? "deepspeed" : "";
  }
  if (has("compute_environment") || has("distributed_type")) return "accelerate";
  if (has("max_seq_len") && (has("fsdp_config") || has("device_train_microbatch_size") ||
                             has("variables") || has("train_loader"))) {
    return "composer";
  }
  if (has("per_device_batch_size") || has("ici_fsdp_parallelism") || has("base_emb_dim") ||
      has("max_target_length")) {
    return "maxtext";
  }
  if (has("model") || has("trainer") || has("train") || has("recipe")) return "nemo";
  return "megatron-yaml";
}

/// The framework of arguments: the program's name tells, else the table that knows the most.
std::string framework_of(const Launch& launch) {
  for (const std::string& program : launch.programs) {
    if (program.find("axtext") != std::string::npos ||
        program.find("MaxText") != std::string::npos) {
      return "maxtext";
    }
    if (program.find("torchtitan") != std::string::npos) return "torchtitan";
    if (program.find("nemo") != std::string::npos) return "nemo";
  }
  std::string best = "megatron-lm";
  std::size_t most = 0;
  for (const char* name : {"megatron-lm", "torchtitan", "maxtext", "composer", "nemo"}) {
    const std::vector<std::string> names = Table::names();
    if (std::find(names.begin(), names.end(), name) == names.end()) continue;
    const Result<Table> table = Table::load(name);
    if (!table.ok()) continue;
    const std::size_t known = table.value().known(launch.settings);
    if (known > most) {
      most = known;
      best = name;
    }
  }
  return best;
}

Status read_document(const Json& json, Form form, const std::string& path, const std::string& from,
                     Launch& out) {
  if (json.object() == nullptr) {
    return input_error(path + ": found " + describe(json) + ", expected keys and values");
  }
  const bool model = json.find("model_type") != nullptr || json.find("architectures") != nullptr;
  if (form == Form::kJson && model) {
    out.models.push_back(json);
    return ok_status();
  }
  const std::string found = from.empty() ? framework_of(json, form) : from;
  if (found.empty()) {
    return input_error(path +
                       ": is no launch file that is known (DeepSpeed's JSON, a config.json, "
                       "torchtitan's TOML); --from says which framework it is for");
  }
  if (out.framework.empty()) out.framework = found;
  for (Setting& setting : settings_of(json, path)) out.settings.push_back(std::move(setting));
  return ok_status();
}

}  // namespace

bool is_engine_config(const Json& json) {
  constexpr const char* kKeys[] = {"zero_optimization", "train_micro_batch_size_per_gpu",
                                   "train_batch_size", "gradient_accumulation_steps"};
  return json.object() != nullptr &&
         std::any_of(std::begin(kKeys), std::end(kKeys),
                     [&json](const char* key) { return find_path(json, key) != nullptr; });
}

Status read_launch_text(std::string_view text, const std::string& path, const std::string& from,
                        Shell& shell, Launch& out) {
  if (text.size() > kLargestFile) {
    return input_error(path + ": more than 1 MiB; a launch file is smaller");
  }
  const Form form = form_of(text, path);
  if (form == Form::kShell) return shell.read(text, path);
  FT_ASSIGN(const Json json, form == Form::kYaml   ? parse_yaml(text, path)
                             : form == Form::kToml ? parse_toml(text, path)
                                                   : parse_json(text, path));
  return read_document(json, form, path, from, out);
}

Status settle_framework(const std::string& from, Launch& out) {
  if (!from.empty()) {
    out.framework = from;
  } else if (out.framework.empty() && out.settings.empty()) {
    return input_error(
        "a config.json tells the model alone; give the launch file too, or say --from SYSTEM");
  } else if (out.framework.empty()) {
    out.framework = framework_of(out);
  }
  const std::vector<std::string> names = Table::names();
  if (std::find(names.begin(), names.end(), out.framework) != names.end()) return ok_status();
  std::string accepted;
  for (const std::string& name : names) accepted += (accepted.empty() ? "" : ", ") + name;
  const std::string near = nearest_name(out.framework, names);
  return input_error("--from: found \"" + out.framework + "\", expected one of " + accepted +
                     (near.empty() ? "" : " (did you mean \"" + near + "\"?)"));
}

}  // namespace foretrain
