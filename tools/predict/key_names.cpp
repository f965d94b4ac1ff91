#include "tools/predict/key_names.h"

#include <algorithm>
#include <string>

#include "hardware/keys/cluster_keys.h"
#include "models/plan/keys/keys.h"
#include "sim/base/assets.h"
#include "sim/base/constants.h"

namespace foretrain {
namespace {

/// What is said of names of other systems that no key stands for.
const std::vector<std::pair<std::string, std::vector<std::string>>>& names_without_key() {
  static const std::vector<std::pair<std::string, std::vector<std::string>>> all = {
      {"not set: cluster.accelerators / (tensor x pipeline x context)",
       {"data", "data_parallel", "data_parallel_size", "dp", "dp_size"}},
      {"not set: cluster.accelerators / (tensor x pipeline x sharding.group_size)",
       {"data_parallel_replicate_degree"}}};
  return all;
}

template <typename Keys>
void add_names(const Keys& keys, std::map<std::string, std::string>& out) {
  for (const auto& key : keys) {
    for (const KeyAlias& alias : key.aliases) {
      if (!alias.former) out[alias.name] = key.path() + alias.says;  // former names are read
    }
  }
}

/// As declarations write them: --micro-batch-size is micro_batch_size.
std::string spelt(std::string_view key) {
  std::string out;
  for (const char letter : key) {
    if (letter != '-') {
      out += letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
    } else if (!out.empty()) {
      out += '_';
    }
  }
  return out;
}

/// Whether a key of that pointer may stand for `ours`: at the top or in the section of `ours`; a
/// name of several words in any but those of machines and hosts.
bool may_stand_for(std::string_view pointer, std::string_view key, std::string_view ours) {
  const std::string_view section = pointer.substr(0, pointer.size() - key.size());
  if (section == "/") return true;
  if (ours.starts_with("not set")) return section == "/parallel/";
  const std::string own = "/" + std::string(ours.substr(0, ours.find_first_of(".: ,"))) + "/";
  if (section == own) return true;
  constexpr std::string_view kNever[] = {"/cluster/", "/host/", "/launch/"};
  const bool never = std::any_of(std::begin(kNever), std::end(kNever),
                                 [&](std::string_view one) { return section.starts_with(one); });
  return !never && key.find('_') != std::string_view::npos;
}

/// What is known of a name stands in place of a guess by its letters.
void say(Error& error, const std::string& known) {
  error.message.resize(error.message.size() - error.hint.size());
  error.message += known;
  error.hint = known;
}

/// What `import` makes of another framework's argument; "": nothing, or not the whole of a key.
std::string argument_here(const std::string& name) {
  for (const Asset& asset : assets()) {
    if (!asset.path.starts_with("import/")) continue;
    const Result<Json> table = parse_json(asset.text, std::string(asset.path));
    if (!table.ok()) continue;
    const auto text_in = [&table](const char* list, const std::string& key) {
      const Json* found = table.value().find(list);
      found = found == nullptr ? nullptr : found->find(key);
      return found == nullptr || found->string() == nullptr ? "" : *found->string();
    };
    const std::string whose = "; " + member(table.value(), "framework").string()[0] + "'s: ";
    const Json* row = table.value().find("rows");
    row = row == nullptr ? nullptr : row->find(name);
    if (row != nullptr) {
      const std::string to = *row->find("to")->string();
      if (to == "job.unused") continue;
      if (to.starts_with("model.")) return whose + "here a key of the model's config.json";
      const std::string decides = text_in("facts", to);
      return whose + "here " + (decides.empty() ? to : decides) +
             ", which `foretrain import` writes";
    }
    const std::string why = text_in("not_modelled", name);
    if (!why.empty()) return whose + "not modelled, " + why;
  }
  return "";
}

void say_key(Error& error) {
  const std::string_view pointer = error.pointer;
  const std::string_view key = pointer.substr(pointer.rfind('/') + 1);
  const std::string name = spelt(key);
  const auto ours = names_of_others().find(name);
  if (ours == names_of_others().end()) {
    // Names of one word are too common to be anybody's.
    const bool may = name.find('_') != std::string::npos && may_stand_for(pointer, key, "model");
    const std::string here = may ? argument_here(name) : "";
    return here.empty() ? void() : say(error, here);
  }
  if (!may_stand_for(pointer, key, ours->second)) return;
  say(error, "; here it is " + ours->second);
}

void say_value(Error& error) {
  std::string pointer = error.pointer;
  if (pointer.ends_with("/preset")) pointer.resize(pointer.size() - std::string("/preset").size());
  const auto tell = [&](const std::string& theirs, const std::string& ours) {
    if (error.found != theirs && error.found != "\"" + theirs + "\"") return;
    say(error, "; " + theirs + " is " + ours + " here");
  };
  for (const PlanKey& key : all_run_keys()) {
    if (key.pointer() != pointer) continue;
    for (const auto& [theirs, ours] : key.values) tell(theirs, ours);
  }
  if (pointer != "/sharding") return;
  for (const char* level : {"zero1", "zero2", "zero3"}) {
    tell(level, std::string("{\"level\": \"") + level + "\"}");
  }
  tell("fsdp", "{\"level\": \"parameters\"}");
}

}  // namespace

const std::map<std::string, std::string>& names_of_others() {
  static const std::map<std::string, std::string> all = [] {
    std::map<std::string, std::string> out;
    add_names(all_run_keys(), out);
    add_names(cluster_keys(), out);
    for (const auto& [says, names] : names_without_key()) {
      for (const std::string& name : names) out[name] = says;
    }
    return out;
  }();
  return all;
}

Error with_our_name(Error error) {
  error.unknown_key ? say_key(error) : say_value(error);
  for (Error& one : error.more) one.unknown_key ? say_key(one) : say_value(one);
  return error;
}

std::string no_run(const std::string& name) {
  const auto is = [&name](const char* kind) {
    return !find_asset(std::string(kind) + "/" + name + ".json").empty();
  };
  const std::string one = is("models")     ? "model"
                          : is("clusters") ? "cluster"
                          : is("systems")  ? "system"
                                           : "";
  if (one.empty()) return "";
  const std::string model = one == "model" ? name : "MODEL";
  const std::string cluster = one == "cluster" ? name : "dgx-h100";
  const std::string system = one == "system" ? ", \"system\": \"" + name + "\"" : "";
  return "; it is a " + one + ", which a RUN names: {\"model\": {\"preset\": \"" + model +
         "\"}, \"cluster\": {\"preset\": \"" + cluster + "\", \"accelerators\": 64}" + system + "}";
}

}  // namespace foretrain
