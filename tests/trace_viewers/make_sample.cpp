// make_sample OUT TRACKS SPANS_PER_STREAM: writes a random timeline as a Chrome trace and prints
// what a viewer must find in it.
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "sim/base/file.h"
#include "sim/timeline/passes.h"
#include "tests/sample_timeline.h"
#include "traces/chrome_trace.h"

namespace {

std::int32_t number(const char* text) {
  std::int32_t value = 0;
  std::from_chars(text, text + std::strlen(text), value);
  return value;
}

foretrain::Status write(const foretrain::Timeline& timeline, const char* path) {
  FT_ASSIGN(foretrain::AtomicFile file, foretrain::AtomicFile::create(path));
  FT_TRY(foretrain::write_chrome_trace(timeline, {}, file));
  return file.commit();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: make_sample OUT TRACKS SPANS_PER_STREAM\n");
    return 2;
  }
  const auto timeline = foretrain::sample_timeline(1, number(argv[2]), number(argv[3]));
  const auto before = std::chrono::steady_clock::now();
  const foretrain::Status status = write(timeline, argv[1]);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - before;
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.error().message.c_str());
    return 1;
  }
  std::size_t slices = foretrain::schedule_passes(timeline).size() + timeline.host.size();
  for (const foretrain::Span& span : timeline.spans) {
    slices += span.begin < span.start ? 2 : 1;  // what it waits stands apart
  }
  std::printf("slices=%zu flows=%zu write_s=%.3f\n", slices, timeline.flows.size(), wall.count());
  return 0;
}
