// Any document is read as a timeline or refused; a timeline that was read can be traced.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "traces/chrome_trace.h"
#include "traces/timeline_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foretrain;  // NOLINT(google-build-using-namespace): a main of its own
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<Json> json = parse_json(text, "fuzz");
  if (!json.ok()) return 0;
  const Result<Timeline> timeline = read_timeline(json.value(), "fuzz");
  if (!timeline.ok()) return 0;
  Result<AtomicFile> file = AtomicFile::create("/dev/null");
  FT_CHECK(write_chrome_trace(timeline.value(), {}, file.value()).ok(), "cannot write");
  return 0;
}
