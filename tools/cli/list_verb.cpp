// `list`: what ships, what each is and how large.
#include <algorithm>
#include <cctype>

#include "hardware/cluster.h"
#include "hardware/device.h"
#include "hardware/presets.h"
#include "tools/cli/verbs.h"
#include "tools/predict/documents/model_support.h"
#include "tools/report/report.h"

namespace foretrain {
namespace {

/// A preset as a line of the list.
struct Entry {
  std::string name, size, about;
};

std::string text_at(const Json& json, const char* pointer) {
  const Json* value = value_at(json, pointer);
  return value != nullptr && value->string() != nullptr ? *value->string() : std::string();
}

/// "16,384": with commas.
std::string whole_text(double count) {
  std::string out = fixed(count, 0);
  for (auto at = static_cast<std::ptrdiff_t>(out.size()) - 3; at > 0; at -= 3) {
    out.insert(static_cast<std::size_t>(at), ",");
  }
  return out;
}

/// A description, or its first clause where a line would be too long.
std::string clause(const std::string& text) {
  constexpr std::size_t kMost = 80;
  std::string out = text.ends_with('.') ? text.substr(0, text.size() - 1) : text;
  for (const char* end : {". ", "; ", ": "}) {
    if (out.size() > kMost) out = out.substr(0, out.find(end));
  }
  return out;
}

void add_model(const Json& json, Entry& out) {
  const Result<Model> model = read_model(json, out.name, "");
  if (!model.ok()) return;
  out.size = parameters_text(parameter_count(model.value()));
  out.about = model.value().is_network() ? "layers" : model.value().type;
  if (model.value().name != out.name) out.about += ", " + model.value().name;
  if (!model.value().has_experts()) return;
  out.about +=
      ", " + parameters_text(active_parameter_count(model.value())) + " at work on a token";
}

/// From the file itself, or where that builds on another, from all that it says with these.
void add_cluster(const Json& json, Entry& out) {
  const Json* per_node = json.find("accelerators_per_node");
  out.about = text_at(json, "/device");
  if (per_node != nullptr && !out.about.empty()) {
    out.size = whole_text(per_node->number()) + " a node";
    return;
  }
  const Result<Cluster> cluster = read_cluster(Json(out.name), out.name, "");
  if (!cluster.ok()) return;
  out.size = whole_text(static_cast<double>(cluster.value().accelerators_per_node)) + " a node";
  out.about = cluster.value().device.name;
}

/// The same.
void add_device(const Json& json, Entry& out) {
  const auto number = [&json](const char* key) {
    const Json* value = json.find(key);
    return value == nullptr ? 0.0 : value->number();
  };
  double memory = number("memory_gib");
  double half = std::max(number("bf16_tflops"), number("fp16_tflops"));
  if (json.find("preset") != nullptr || memory == 0) {
    const Result<DeviceSpec> device = read_device(Json(out.name), out.name, "");
    if (!device.ok()) return;
    memory = device.value().memory_gib;
    half = std::max(device.value().bf16_tflops, device.value().fp16_tflops);
  }
  out.size = fixed(memory, 0) + " GiB";
  if (half >= 1) out.about = fixed(half, 0) + " TFLOP/s in 16 bits";
}

/// What a RUN says of its model, its cluster and its system.
void add_run(const Json& json, Entry& out) {
  const Json* accelerators = value_at(json, "/cluster/accelerators");
  out.size = accelerators == nullptr ? "" : whole_text(accelerators->number());
  std::string cluster = text_at(json, "/cluster/preset");
  if (cluster.empty()) cluster = text_at(json, "/cluster");
  out.about = cluster;
  if (const std::string system = text_at(json, "/system"); !system.empty()) {
    out.about += ", " + system;
  }
  if (const std::string name = text_at(json, "/name"); !name.empty()) out.about += ": " + name;
}

Entry entry_of(const std::string& kind, const std::string& name) {
  Entry out;
  out.name = name;
  const Result<Json> json = load_preset(kind, name, "list");
  if (!json.ok()) return out;
  if (kind == "models") add_model(json.value(), out);
  if (kind == "clusters") add_cluster(json.value(), out);
  if (kind == "devices") add_device(json.value(), out);
  if (kind == "runs") add_run(json.value(), out);
  if (kind == "fabrics") out.about = text_at(json.value(), "/kind");
  if (kind == "software") out.size = text_at(json.value(), "/date");
  if (kind == "profiles") {
    const Json* samples = json.value().find("samples");
    const bool listed = samples != nullptr && samples->array() != nullptr;
    out.size = listed ? whole_text(static_cast<double>(samples->array()->size())) + " samples" : "";
    out.about = text_at(json.value(), "/machine/processor");
  }
  if (const std::string text = text_at(json.value(), "/description"); !text.empty()) {
    out.about = clause(text);
  }
  return out;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// Whether all words of the filter stand in it, of any case.
bool passes(const Entry& entry, const std::vector<std::string>& filter) {
  const std::string text = lower(entry.name + " " + entry.size + " " + entry.about);
  return std::all_of(filter.begin(), filter.end(), [&text](const std::string& word) {
    return text.find(lower(word)) != std::string::npos;
  });
}

/// The kinds that are asked for.
Result<std::vector<std::string>> kinds_of(const std::string& text) {
  const std::vector<std::string>& all = preset_kinds();
  std::vector<std::string> out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string kind = text.substr(at, comma - at);
    at = comma + 1;
    if (kind == "all") return all;
    if (std::find(all.begin(), all.end(), kind) != all.end()) {
      out.push_back(kind);
      continue;
    }
    const std::string near = nearest_name(kind, all);
    return input_error(
        "list: found \"" + kind +
        "\", expected models, clusters, devices, fabrics, systems, software, reliability, "
        "profiles, runs or all" +
        (near.empty() ? "" : " (did you mean \"" + near + "\"?)"));
  }
  return out.empty() ? all : out;
}

std::string table(const std::vector<Entry>& entries) {
  std::size_t name = 0;
  std::size_t size = 0;
  for (const Entry& entry : entries) {
    name = std::max(name, entry.name.size());
    size = std::max(size, entry.size.size());
  }
  std::string out;
  for (const Entry& entry : entries) {
    std::string line = "  " + entry.name + std::string(name - entry.name.size() + 2, ' ');
    line += std::string(size - entry.size.size(), ' ') + entry.size + "  " + entry.about;
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

}  // namespace

const std::vector<std::string>& preset_kinds() {
  static const std::vector<std::string> names = {"models",      "clusters", "devices",
                                                 "fabrics",     "systems",  "software",
                                                 "reliability", "profiles", "runs"};
  return names;
}

Status list(const ListArgs& args) {
  if (args.page) {
    if (args.kinds != "models" || !args.filter.empty()) {
      return input_error("list: --page is of all models: foretrain list models --page");
    }
    FT_ASSIGN(const std::string page, models_page());
    return print(args.quiet, page);
  }
  FT_ASSIGN(const std::vector<std::string> wanted, kinds_of(args.kinds));
  Json json{Json::Object{}};
  Json about{Json::Object{}};
  std::string out;
  std::size_t found = 0;
  for (const std::string& kind : wanted) {
    std::vector<Entry> entries;
    for (const std::string& name : preset_names(kind)) {
      Entry entry = entry_of(kind, name);
      if (passes(entry, args.filter)) entries.push_back(std::move(entry));
    }
    Json::Array names;
    Json::Object described;
    for (const Entry& entry : entries) {
      names.emplace_back(entry.name);
      described.emplace_back(entry.name, Json(Json::Object{{"size", Json(entry.size)},
                                                           {"description", Json(entry.about)}}));
    }
    json.set(kind, std::move(names));
    about.set(kind, Json(std::move(described)));
    found += entries.size();
    if (!entries.empty()) out += kind + "\n" + table(entries);
  }
  json.set("about", std::move(about));
  if (found == 0) {
    std::string words;
    for (const std::string& word : args.filter) words += (words.empty() ? "" : " ") + word;
    return input_error("list: nothing that ships has \"" + words + "\" in its name or description");
  }
  if (args.json.empty()) return print(args.quiet, out);
  return write_output(args.json, dump_json(json) + "\n");
}

}  // namespace foretrain
