#include <filesystem>

#include "sim/base/file.h"
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

}  // namespace

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
