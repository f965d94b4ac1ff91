#include "tools/predict/defaults.h"

#include <algorithm>
#include <vector>

#include "hardware/presets.h"
#include "models/plan/keys/keys.h"
#include "sim/base/assets.h"
#include "tools/predict/key_names.h"
#include "tools/predict/run_notes.h"

namespace foretrain {
namespace {

/// A precision that is a name is the `compute` of one that is an object.
Json spelt_out(const Json& precision) {
  if (precision.string() == nullptr) return precision;
  Json out{Json::Object{}};
  out.set("compute", precision);
  return out;
}

/// A system supplies keys of plans alone: neither a model nor a cluster.
Status check_plan_keys(const Json& json, const std::string& source, const std::string& pointer) {
  JsonReader reader(json, source, pointer);
  for (const std::string& key : plan_keys()) reader.take(key);
  return reader.finish();
}

/// What a system has not: keys of plans, or of one a value.
Status read_lacking(const Json* lacks, const std::string& source, Run& run) {
  if (lacks == nullptr) return ok_status();
  if (lacks->array() == nullptr) {
    return input_error(source + ": /lacks: found " + describe(*lacks) +
                       ", expected a list of keys or KEY=VALUE");
  }
  for (std::size_t i = 0; i < lacks->array()->size(); ++i) {
    const Json& entry = (*lacks->array())[i];
    const std::string where = source + ": /lacks/" + std::to_string(i) + ": found ";
    const std::string* text = entry.string();
    if (text == nullptr) {
      return input_error(where + describe(entry) + ", expected a key or KEY=VALUE");
    }
    const std::vector<std::string>& keys = plan_keys();
    const std::string key = text->substr(0, text->find_first_of(".="));
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      const std::string near = nearest_name(key, keys);
      return input_error(where + "\"" + *text + "\", which begins with no key of a plan" +
                         (near.empty() ? "" : " (did you mean \"" + near + "\"?)"));
    }
    run.lacking.push_back(*text);
  }
  return ok_status();
}

/// Of a file's `architectures` what the run's device has. Of devices of several architectures only
/// what all of them have; else a note says so.
const Json* of_architecture(Run& run, const Json& architectures, const std::string& source) {
  const auto found = [&](const Cluster& cluster) {
    return architectures.find(name_of(cluster.device.architecture));
  };
  const Json* out = found(run.cluster);
  for (const Cluster& pool : run.cluster.pools) {
    const Json* other = found(pool);
    const bool same = (out == nullptr) == (other == nullptr) && (out == nullptr || *out == *other);
    if (same) continue;
    run.notes.push_back(source + " has other defaults for " + device_names(run.cluster) +
                        "; those of none of them are taken");
    return nullptr;
  }
  return out;
}

/// The `defaults` of a file, then of its `architectures` that of the run's device.
Status lay_defaults(Run& run, const Json* defaults, const Json* by_architecture,
                    const std::string& source) {
  if (defaults != nullptr) {
    FT_TRY(check_plan_keys(*defaults, source, "/defaults"));
    overlay(run.resolved, *defaults, source, "", run.origins);
  }
  if (by_architecture == nullptr) return ok_status();
  JsonReader architectures(*by_architecture, source, "/architectures");
  const Json* own = of_architecture(run, *by_architecture, source);
  for (const std::string& name : architecture_names()) {
    const Json* of_one = architectures.take(name);
    if (of_one == nullptr) continue;
    FT_TRY(check_plan_keys(*of_one, source, "/architectures/" + name));
    if (of_one != own) continue;
    overlay(run.resolved, *of_one, source + " on " + name, "", run.origins);
  }
  return architectures.finish();
}

// --- Releases ----------------------------------------------------------------------------------

constexpr const char* kReleases = "software";

/// A release, as configs/software/ has it: a file in the working directory is none.
struct Release {
  std::string name, system;
  std::string date;            ///< "2025-09"
  bool found_by_date = false;  ///< else by name alone: a recipe, a fork
  Json file;
  /// What the names of its like begin with: "nemo-".
  std::string family() const { return name.substr(0, name.find_first_of("0123456789")); }
};

/// All of them, by date.
const std::vector<Release>& releases() {
  static const std::vector<Release> all = [] {
    std::vector<Release> out;
    for (const std::string& name : preset_names(kReleases)) {
      Result<Json> file =
          parse_json(find_asset(std::string(kReleases) + "/" + name + ".json"), name);
      if (!file.ok()) continue;
      const auto text = [&file](const char* key) {
        const Json* value = file.value().find(key);
        return value == nullptr || value->string() == nullptr ? "" : *value->string();
      };
      const Json* by_date = file.value().find("found_by_date");
      out.push_back({name, text("system"), text("date"),
                     by_date != nullptr && *by_date == Json(true), std::move(file.value())});
    }
    const auto by_date = [](const Release& a, const Release& b) { return a.date < b.date; };
    std::stable_sort(out.begin(), out.end(), by_date);
    return out;
  }();
  return all;
}

/// The release of that name; null if the system has none.
const Release* release_named(const std::string& name, const std::string& system) {
  const auto is = [&](const Release& one) { return one.name == name && one.system == system; };
  const auto found = std::find_if(releases().begin(), releases().end(), is);
  return found == releases().end() ? nullptr : &*found;
}

bool are_digits(const std::string& text, std::size_t begin, std::size_t count) {
  if (text.size() < begin + count) return false;
  return std::all_of(text.begin() + static_cast<std::ptrdiff_t>(begin),
                     text.begin() + static_cast<std::ptrdiff_t>(begin + count),
                     [](char c) { return c >= '0' && c <= '9'; });
}

/// "2025" or "2025-09" as the last month meant: "2025-12", "2025-09"; "" if neither.
std::string month_of(const std::string& text) {
  if (!are_digits(text, 0, 4)) return "";
  if (text.size() == 4) return text + "-12";
  if (text.size() != 7 || text[4] != '-' || !are_digits(text, 5, 2)) return "";
  const std::string month = text.substr(5);
  return month >= "01" && month <= "12" ? text : "";
}

/// The last release of the system up to that month, of the family where that is not ""; null if
/// there is none as old.
const Release* current_at(const std::string& system, const std::string& month,
                          const std::string& family = "") {
  const Release* out = nullptr;
  for (const Release& one : releases()) {
    const bool is = family.empty() ? one.found_by_date : one.family() == family;
    if (is && one.system == system && one.date <= month) out = &one;
  }
  return out;
}

/// The date in "torchtitan-2024-12", "nemo-25.09", "dgxc-25.05.01", "pytorch-2024"; "" if none.
std::string date_in(const std::string& name) {
  for (std::size_t dash = name.find('-'); dash != std::string::npos;
       dash = name.find('-', dash + 1)) {
    const std::string rest = name.substr(dash + 1);
    if (!month_of(rest).empty()) return rest;
    if (!are_digits(rest, 0, 2) || (rest.size() > 2 && rest[2] != '.')) continue;
    const std::string year = "20" + rest.substr(0, 2);
    const std::string date = are_digits(rest, 3, 2) ? year + "-" + rest.substr(3, 2) : year;
    if (!month_of(date).empty()) return date;
  }
  return "";
}

/// `software` of a RUN as a text: a whole number is a year; "" where the value is neither.
std::string software_text(const Json& software) {
  if (const auto* year = std::get_if<std::int64_t>(&software.value)) return std::to_string(*year);
  return software.string() == nullptr ? "" : *software.string();
}

/// The release that `software` of a RUN names or means; null if there is none.
const Release* release_of(const std::string& software, const std::string& system) {
  const std::string month = month_of(software);
  return month.empty() ? release_named(software, system) : current_at(system, month);
}

/// The release of a run; null if its RUN names none.
const Release* release_of(const Run& run) {
  const Json* software = run.resolved.find("software");
  return software == nullptr ? nullptr : release_of(software_text(*software), run.system);
}

Error unknown_release(const Run& run, const std::string& software, const std::string& where) {
  std::vector<std::string> names;
  std::string other;
  for (const Release& one : releases()) {
    if (one.system == run.system) names.push_back(one.name);
    if (one.name == software) other = one.system;
  }
  const std::string is = other.empty() ? "no release of " + run.system
                                       : "a release of " + other + ", not of " + run.system;
  Error error = input_error(where + ": found \"" + software + "\", which is " + is +
                            "; expected one of its releases, which `foretrain list software` "
                            "names, or a date (2025, 2025-09)");
  const std::string near = other.empty() ? nearest_name(software, names) : "";
  if (!near.empty()) error.hint = " (did you mean \"" + near + "\"?)";
  error.message += error.hint;
  error.found = "\"" + software + "\"";
  error.pointer = "/software";
  return error;
}

}  // namespace

void overlay(Json& base, const Json& over, const std::string& origin, const std::string& pointer,
             std::map<std::string, std::string>& origins) {
  if (over.is_null() && base.object() != nullptr) return;  // null: not given
  if (over.object() == nullptr || base.object() == nullptr) {
    base = over;
    // Values below are no longer what they were.
    for (auto it = origins.lower_bound(pointer); it != origins.end();) {
      it = it->first.starts_with(pointer + "/") ? origins.erase(it) : std::next(it);
    }
    origins[pointer] = origin;
    return;
  }
  for (const auto& [key, value] : *over.object()) {
    const std::string at = pointer + "/" + key;
    if (Json* old = base.find(key)) {
      const bool unlike = (old->object() == nullptr) != (value.object() == nullptr);
      const bool spell = at == kPrecisionPointer && unlike;
      if (spell) *old = spelt_out(*old);
      overlay(*old, spell ? spelt_out(value) : value, origin, at, origins);
    } else {
      base.set(key, value);
      origins[at] = origin;
    }
  }
}

Status lay_system(Run& run, const Json& file) {
  const std::string source = "system " + run.system;
  JsonReader reader(file, source, "");
  read_schema(reader, "foretrain/system/1");
  for (const char* key : {"name", "description", "sources"}) reader.take(key);
  const Json* defaults = reader.take("defaults");
  const Json* by_architecture = reader.take("architectures");
  const Json* lacks = reader.take("lacks");
  reader.read("framework", run.framework);
  FT_TRY(read_devices(reader.take("devices"), source, run));
  FT_TRY(reader.finish());
  FT_TRY(read_lacking(lacks, source, run));
  return lay_defaults(run, defaults, by_architecture, source);
}

Status lay_software(Run& run, const Json& value, const std::string& source) {
  const std::string software = software_text(value);
  if (software.empty()) {
    return input_error(source + ": /software: found " + describe(value) +
                       ", expected a release or a date, such as \"nemo-25.09\" or \"2025-09\"");
  }
  const Release* release = release_of(software, run.system);
  if (release == nullptr) {
    if (month_of(software).empty()) {
      return unknown_release(run, software, source + ": /software");
    }
    run.notes.push_back("software " + software + ": no release of " + run.system +
                        " is described that is as old; its system's defaults stand");
    return ok_status();
  }
  if (release->name != software) {
    run.notes.push_back("software " + software + ": taken as " + release->name);
  }
  const std::string of = "software " + release->name;
  JsonReader reader(release->file, of, "");
  for (const char* key : {"name", "description", "system", "date", "versions", "found_by_date"})
    reader.take(key);
  read_remarks(reader, "foretrain/software/1");
  const Json* defaults = reader.take("defaults");
  const Json* by_architecture = reader.take("architectures");
  const Json* lacks = reader.take("lacks");
  const Json* required = reader.take("required");
  FT_TRY(reader.finish());
  FT_TRY(read_lacking(lacks, of, run));
  FT_TRY(lay_defaults(run, defaults, by_architecture, of));
  return required == nullptr ? ok_status() : lay_defaults(run, required, nullptr, of);
}

std::string release_in(const Run& run) {
  const Release* release = release_of(run);
  return release == nullptr ? "" : release->name;
}

std::vector<std::string> unlike_release(const Run& run) {
  std::vector<std::string> out;
  const Release* release = release_of(run);
  if (release == nullptr || !run.model.has_experts()) return out;
  const Json* required = release->file.find("required");
  if (required == nullptr || required->object() == nullptr) return out;
  for (const auto& [section, keys] : *required->object()) {
    if (keys.object() == nullptr) continue;
    for (const auto& [key, value] : *keys.object()) {
      const std::string pointer = "/" + section + "/" + key;
      const auto origin = run.origins.find(pointer);
      if (origin == run.origins.end() || !is_users(origin->second)) continue;
      if (asks(run, pointer.c_str(), value)) continue;
      const Json tensor(run.plan.tensor);
      if (pointer == "/parallel/expert_tensor" && asks(run, pointer.c_str(), tensor)) continue;
      out.push_back(section + "." + key + "=" + dump_json(value, -1));
    }
  }
  return out;
}

std::string software_called(const std::string& text, const std::string& system) {
  const std::string bare = text.starts_with('~') ? text.substr(1) : text;
  const std::string name = bare.substr(0, bare.find('+'));
  if (release_named(name, system) != nullptr) return name;
  const std::string date = date_in(name);
  if (date.empty()) return "";
  const std::string family = name.substr(0, name.find_first_of("0123456789"));
  const Release* relative = current_at(system, month_of(date), family);
  return relative != nullptr ? relative->name : date;
}

}  // namespace foretrain
