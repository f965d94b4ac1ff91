#include <algorithm>
#include <filesystem>
#include <set>

#include "sim/base/file.h"
#include "sim/base/json.h"
#include "tools/cli/verbs.h"
#include "tools/version.h"
#include "traces/chrome_trace.h"
#include "traces/file_kind.h"
#include "traces/trace_page.h"

namespace foretrain {
namespace {

namespace fs = std::filesystem;

/// Where links lead to no file yet, the file that they would make.
fs::path end_of_links(fs::path path) {
  constexpr int kMostLinks = 40;
  std::error_code error;
  for (int i = 0; i < kMostLinks && !fs::exists(path, error); ++i) {
    if (!fs::is_symlink(fs::symlink_status(path, error))) break;
    path = path.parent_path() / fs::read_symlink(path, error);
  }
  return path;
}

/// Where a path leads, if a file can stand there: devices and pipes may be written to twice.
fs::path place_of(const std::string& name) {
  std::error_code error;
  const fs::path path = end_of_links(name);
  const fs::path place = fs::weakly_canonical(fs::absolute(path, error), error);
  const bool other = fs::exists(place, error) && !fs::is_regular_file(place, error);
  return other ? fs::path() : place;
}

/// Files that are read, each once, whatever names lead to it.
class Inputs {
 public:
  void add(const fs::path& path) {
    std::error_code error;
    if (!fs::is_regular_file(path, error)) return;
    if (x_places.insert(place_of(path.string())).second) paths.push_back(path.string());
  }
  /// What a RUN, a --set, a model's or a cluster's file names: from the working directory or from
  /// the `folder` of the file that names it.
  void add_named(const Json& json, const fs::path& folder) {
    if (const Json::Array* rows = json.array()) {
      for (const Json& row : *rows) add_named(row, folder);
    }
    if (json.object() == nullptr) return;
    for (const auto& [key, value] : *json.object()) {
      const bool names =
          std::find(std::begin(kNaming), std::end(kNaming), key) != std::end(kNaming);
      if (const std::string* text = value.string(); names && text != nullptr && !text->empty()) {
        add(*text);
        add(folder / *text);
      }
      if (names || key == "network" || key == "run" || key == "campaign") add_named(value, folder);
    }
  }
  std::vector<std::string> paths;

 private:
  static constexpr std::string_view kNaming[] = {"model",       "cluster", "system", "profile",
                                                 "schedule",    "preset",  "device", "topology",
                                                 "reliability", "trace"};
  std::set<fs::path> x_places;
};

bool writes_files(const std::vector<Output>& outputs) {
  return std::any_of(outputs.begin(), outputs.end(), [](const Output& output) {
    return !output.path.empty() && output.path != "-";
  });
}

}  // namespace

std::vector<std::string> read_with(const std::vector<Output>& outputs, const std::string& run,
                                   const std::vector<std::string>& sets) {
  Inputs inputs;
  if (!writes_files(outputs)) return inputs.paths;
  inputs.add(run);
  for (const std::string& set : sets) {
    const std::size_t equals = set.find('=');
    if (equals == std::string::npos) continue;
    const std::string text = set.substr(equals + 1);
    const Result<Json> json = parse_json(text, "--set");
    Json named{Json::Object{}};
    named.set(set.substr(0, equals).substr(set.substr(0, equals).rfind('.') + 1),
              json.ok() ? json.value() : Json(text));
    inputs.add_named(named, fs::path());
  }
  for (std::size_t i = 0; i < inputs.paths.size(); ++i) {  // what they name in turn
    const fs::path path = inputs.paths[i];
    if (is_trace(path.string())) continue;  // names no files, and may be too large to hold
    const Result<Json> json = read_json_file(path.string());
    if (json.ok()) inputs.add_named(json.value(), path.parent_path());
  }
  return inputs.paths;
}

std::vector<std::string> read_with_rows(const std::vector<Output>& outputs,
                                        const std::vector<std::string>& rows) {
  std::vector<std::string> out;
  const auto add = [&](const std::string& file) {
    for (std::string& read : read_with(outputs, file, {})) out.push_back(std::move(read));
  };
  for (const std::string& path : rows) {
    add(path);
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
      if (entry.path().extension() == ".json") add(entry.path().string());
    }
  }
  return out;
}

Status write_output(const std::string& path, const std::string& text) {
  return write_text_file(path, text);
}

Status give_json(const std::string& path, Caller* caller, const std::function<Json()>& result) {
  if (path.empty() && caller == nullptr) return ok_status();
  Json json = result();
  if (!path.empty()) FT_TRY(write_output(path, dump_json(json) + "\n"));
  if (caller != nullptr) caller->result = std::move(json);
  return ok_status();
}

Status write_trace(const std::string& path, const TimelineSource& timeline,
                   const std::string& run) {
  FT_ASSIGN(AtomicFile file, AtomicFile::create(path));
  if (asks_for_page(path)) {
    FT_TRY(write_trace_page(timeline, file));
  } else {
    TraceOptions trace;
    if (!run.empty()) trace.about.emplace_back("run", run);
    trace.about.emplace_back("foretrain", kVersion);
    trace.about.emplace_back("revision", kRevision);
    FT_TRY(write_chrome_trace(timeline, trace, file));
  }
  return file.commit();
}

Status check_outputs(const std::vector<Output>& outputs, const std::vector<std::string>& inputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Output& one = outputs[i];
    if (one.path.empty()) continue;
    const fs::path place = one.path == "-" ? fs::path() : place_of(one.path);
    // Before hours of work, not after.
    std::error_code ignored;
    const fs::path folder = fs::absolute(one.path, ignored).parent_path();
    if (!place.empty() && !fs::is_directory(folder, ignored)) {
      const auto why = fs::exists(folder, ignored) ? std::errc::not_a_directory
                                                   : std::errc::no_such_file_or_directory;
      return input_error(std::string(one.option) + ": " + one.path + " cannot be written: " +
                         folder.string() + ": " + std::make_error_code(why).message());
    }
    for (std::size_t j = 0; j < i; ++j) {
      const Output& other = outputs[j];
      if (other.path.empty()) continue;
      const std::string both = std::string(other.option) + ", " + one.option + ": ";
      if (one.path == "-" && other.path == "-") {
        return input_error(both + "only one of them can be - (stdout)");
      }
      if (!place.empty() && other.path != "-" && place == place_of(other.path)) {
        return input_error(both + "both would be written to " + one.path);
      }
    }
    for (const std::string& input : inputs) {
      if (!place.empty() && !input.empty() && place == place_of(input)) {
        return input_error(std::string(one.option) + ": " + one.path +
                           " is read here and would be overwritten");
      }
    }
  }
  return ok_status();
}

}  // namespace foretrain
