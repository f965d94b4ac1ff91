// Any bytes either parse or are refused with a message; what parses survives writing and reading.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "sim/base/json.h"

namespace foretrain {
namespace {

void check(std::string_view text) {
  const Result<Json> json = parse_json(text, "fuzz");
  if (!json.ok()) {
    FT_CHECK(!json.error().message.empty(), "an error without a message");
    return;
  }
  const Result<Json> again = parse_json(dump_json(json.value()), "fuzz, written and read");
  FT_CHECK(again.ok(), "what was written does not parse");
  FT_CHECK(again.value() == json.value(), "writing and reading changed a document");
}

}  // namespace
}  // namespace foretrain

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  foretrain::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
