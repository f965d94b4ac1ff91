// Writing traces: slices per second, through the formatter alone and with compression.
#include <benchmark/benchmark.h>

#include "sim/base/file.h"
#include "tests/sample_timeline.h"
#include "traces/chrome_trace.h"

namespace foretrain {
namespace {

const Timeline& large_timeline() {
  static const Timeline timeline = sample_timeline(1, 16, 4000);
  return timeline;
}

void write_trace(benchmark::State& state, const char* path) {
  for (auto _ : state) {
    auto file = AtomicFile::create(path);
    const bool good = file.ok() && write_chrome_trace(large_timeline(), {}, file.value()).ok();
    if (!good) state.SkipWithError("cannot write");
  }
  state.SetItemsProcessed(state.iterations() *
                          static_cast<std::int64_t>(large_timeline().spans.size()));
}

void format_trace(benchmark::State& state) { write_trace(state, "/dev/null"); }
BENCHMARK(format_trace)->Unit(benchmark::kMillisecond);

void compress_trace(benchmark::State& state) { write_trace(state, "bench_trace.json.gz"); }
BENCHMARK(compress_trace)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace foretrain
