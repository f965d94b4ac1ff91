#include "tools/key_names.h"

#include <string>

#include "sim/base/constants.h"

namespace foretrain {
namespace {

constexpr std::string_view kUnknown = ": unknown key";

/// As the file writes them: --micro-batch-size is micro_batch_size.
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

}  // namespace

Error with_our_name(Error error) {
  const std::size_t end = error.message.find(kUnknown);
  if (end == std::string::npos) return error;
  const std::size_t begin = error.message.rfind('/', end) + 1;
  const std::string key = spelt(std::string_view(error.message).substr(begin, end - begin));
  const Json names = load_constants("key_names.json");
  const Json* ours = member(names, "names").find(key);
  if (ours == nullptr) return error;
  error.message =
      error.message.substr(0, end) + std::string(kUnknown) + "; here it is " + *ours->string();
  return error;
}

}  // namespace foretrain
