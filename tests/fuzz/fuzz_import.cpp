// Any text is imported as a launch file of one form (FORETRAIN_FUZZED_FILE, a target each), or
// refused with a message; what was imported has a model and a machine.
#include <cstddef>
#include <cstdint>
#include <string>

#include "tools/import/import.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foretrain;  // NOLINT(google-build-using-namespace): a main of its own
  const std::string text(reinterpret_cast<const char*>(data), size);
  const Result<Draft> draft = import_launch({{FORETRAIN_FUZZED_FILE, text}}, {});
  if (!draft.ok()) {
    FT_CHECK(!draft.error().message.empty(), "an error without a message");
    return 0;
  }
  FT_CHECK(draft.value().run.find("model") != nullptr, "a RUN without a model");
  FT_CHECK(draft.value().run.find("cluster") != nullptr, "a RUN without a cluster");
  FT_CHECK(!import_text(draft.value()).empty(), "nothing is told");
  FT_CHECK(!dump_json(import_json(draft.value())).empty(), "nothing is written");
  return 0;
}
