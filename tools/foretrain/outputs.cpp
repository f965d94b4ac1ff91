#include <algorithm>
#include <filesystem>

#include "sim/base/file.h"
#include "sim/base/json.h"
#include "tools/foretrain/verbs.h"

namespace foretrain {
namespace {

namespace fs = std::filesystem;

/// Where a path leads, if a file can stand there: devices and pipes may be written to twice.
fs::path place_of(const std::string& path) {
  std::error_code error;
  const fs::path place = fs::weakly_canonical(fs::absolute(path, error), error);
  const bool other = fs::exists(place, error) && !fs::is_regular_file(place, error);
  return other ? fs::path() : place;
}

/// Adds every file that a text in `json` leads to, from the working directory or from `folder`.
void add_files(const Json& json, const fs::path& folder, std::vector<std::string>& out) {
  if (const std::string* text = json.string()) {
    for (const fs::path& path : {fs::path(*text), folder / *text}) {
      std::error_code error;
      const bool known = std::find(out.begin(), out.end(), path.string()) != out.end();
      if (!text->empty() && !known && fs::is_regular_file(path, error))
        out.push_back(path.string());
    }
  } else if (const Json::Object* object = json.object()) {
    for (const auto& [key, value] : *object) add_files(value, folder, out);
  } else if (const Json::Array* array = json.array()) {
    for (const Json& value : *array) add_files(value, folder, out);
  }
}

}  // namespace

std::vector<std::string> read_with(const std::string& run, const std::vector<std::string>& sets) {
  std::vector<std::string> out;
  add_files(Json(run), fs::path(), out);
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(run, error)) {
    if (entry.path().extension() == ".json") out.push_back(entry.path().string());
  }
  for (const std::string& set : sets) {
    const std::string text = set.substr(set.find('=') + 1);
    const Result<Json> json = parse_json(text, "--set");
    add_files(json.ok() ? json.value() : Json(text), fs::path(), out);
  }
  for (std::size_t i = 0; i < out.size(); ++i) {  // what they name in turn
    const Result<Json> json = read_json_file(out[i]);
    if (json.ok()) add_files(json.value(), fs::path(out[i]).parent_path(), out);
  }
  return out;
}

Status write_output(const std::string& path, const std::string& text) {
  return write_text_file(path, text);
}

Status check_outputs(const std::vector<Output>& outputs, const std::vector<std::string>& inputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Output& one = outputs[i];
    if (one.path.empty()) continue;
    const fs::path place = one.path == "-" ? fs::path() : place_of(one.path);
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
