// Writing traces: slices per second, through the formatter alone, with compression, and from the
// replay on.
#include <benchmark/benchmark.h>

#include "models/lower.h"
#include "sim/base/file.h"
#include "sim/engine/recorder.h"
#include "tests/sample_timeline.h"
#include "tests/support/small_plans.h"
#include "tests/support/test_prices.h"
#include "traces/chrome_trace.h"
#include "traces/timeline_json.h"
#include "traces/trace_page.h"

namespace foretrain {
namespace {

const Timeline& large_timeline() {
  static const Timeline timeline = sample_timeline(1, 16, 4000);
  return timeline;
}

Status write_chrome(const TimelineSource& timeline, AtomicFile& file) {
  return write_chrome_trace(timeline, {}, file);
}

void write(benchmark::State& state, const TimelineSource& timeline, const char* path,
           Status (*writer)(const TimelineSource&, AtomicFile&)) {
  for (auto _ : state) {
    auto file = AtomicFile::create(path);
    const bool good =
        file.ok() && writer(timeline, file.value()).ok() && file.value().commit().ok();
    if (!good) state.SkipWithError("cannot write");
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(timeline.span_count()));
}

void format_trace(benchmark::State& state) {
  write(state, HeldTimeline(large_timeline()), "/dev/null", write_chrome);
}
BENCHMARK(format_trace)->Unit(benchmark::kMillisecond);

void compress_trace(benchmark::State& state) {
  write(state, HeldTimeline(large_timeline()), "bench_trace.json.gz", write_chrome);
}
BENCHMARK(compress_trace)->Unit(benchmark::kMillisecond)->UseRealTime();

void format_page(benchmark::State& state) {
  write(state, HeldTimeline(large_timeline()), "/dev/null", write_trace_page);
}
BENCHMARK(format_page)->Unit(benchmark::kMillisecond);

void format_timeline(benchmark::State& state) {
  write(state, HeldTimeline(large_timeline()), "/dev/null", save_timeline);
}
BENCHMARK(format_timeline)->Unit(benchmark::kMillisecond);

/// A step of 32 ranks, 64 layers in 64 microbatches: replayed and recorded.
Recording record() {
  Model model = small_llama();
  model.layers = 64;
  Workload workload = lower(model, small_plan(model, {2, 4, 1, 4}, 64));
  TestPrices prices(plain_rates());
  Prepared prepared = prepare(workload, prices, true).value();
  Recorder recorder(std::vector<std::uint8_t>(prepared.quotient.actors.size(), 1));
  const Time end = replay(workload, prepared, &recorder).value().end;
  return recorder.take(std::move(workload), std::move(prepared), end,
                       [](RankId rank) { return std::to_string(rank.value); });
}

void record_step(benchmark::State& state) {
  std::size_t spans = 0;
  for (auto _ : state) spans += record().span_count();
  state.SetItemsProcessed(static_cast<std::int64_t>(spans));
}
BENCHMARK(record_step)->Unit(benchmark::kMillisecond);

void format_recorded(benchmark::State& state) { write(state, record(), "/dev/null", write_chrome); }
BENCHMARK(format_recorded)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace foretrain
