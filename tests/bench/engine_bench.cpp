// How many operations does the replay do in a second?
#include <benchmark/benchmark.h>

#include "models/lower.h"
#include "sim/engine/replay.h"
#include "sim/program/allocator.h"
#include "sim/program/memory.h"
#include "tests/support/small_plans.h"
#include "tests/support/test_prices.h"

namespace foretrain {
namespace {

Workload many_layers(PlanDegrees degrees, std::int64_t microbatches) {
  Model model = small_llama();
  model.layers = 64;
  Plan plan = small_plan(model, degrees, microbatches);
  plan.sequence = plan.tensor > 1;
  plan.sharding = Sharding::kOptimizer;
  plan.bucket_elements = 4'000'000;
  return lower(model, plan);
}

void run(benchmark::State& state, const Workload& workload, const Rates& rates, bool full) {
  TestPrices prices(rates);
  const Result<Prepared> prepared = prepare(workload, prices, full);
  if (!prepared.ok()) return state.SkipWithError(prepared.error().message.c_str());
  std::int64_t operations = 0;
  std::int64_t events = 0;
  for (auto step : state) {
    const Result<Replay> result = replay(workload, prepared.value(), nullptr);
    if (!result.ok()) return state.SkipWithError(result.error().message.c_str());
    benchmark::DoNotOptimize(result.value().end);
    operations += result.value().operations;
    events += result.value().events;
  }
  state.SetItemsProcessed(operations);
  state.counters["events"] =
      benchmark::Counter(static_cast<double>(events), benchmark::Counter::kAvgIterations);
}

void one_actor(benchmark::State& state) {
  run(state, many_layers({1, 1, 1, 1}, 64), plain_rates(), false);
}
void many_actors(benchmark::State& state) {
  run(state, many_layers({2, 8, 1, 4}, 64), plain_rates(), true);
}
void held_sms(benchmark::State& state) {
  run(state, many_layers({2, 8, 1, 4}, 64), holding_rates(), true);
}
void shared_ports(benchmark::State& state) {
  Rates rates = sharing_rates();
  rates.node = 1;
  run(state, many_layers({2, 8, 1, 4}, 64), rates, true);
}
void preparation(benchmark::State& state) {
  const Workload workload = many_layers({8, 8, 1, 64}, 64);
  for (auto step : state) {
    TestPrices prices(plain_rates());
    benchmark::DoNotOptimize(prepare(workload, prices, false).ok());
  }
}

/// The same where other prices have folded it.
void preparation_again(benchmark::State& state) {
  const Workload workload = many_layers({8, 8, 1, 64}, 64);
  TestPrices others(plain_rates());
  const Result<Prepared> folded = prepare(workload, others, false);
  if (!folded.ok()) return state.SkipWithError(folded.error().message.c_str());
  for (auto step : state) {
    TestPrices prices(plain_rates());
    benchmark::DoNotOptimize(price_again(workload, prices, folded.value()).ok());
  }
}

/// Both walks over a Program's memory, by its operations: live bytes, and what an allocator holds.
template <typename Walk>
void walk_memory(benchmark::State& state, Walk walk) {
  const Workload workload = many_layers({2, 8, 1, 4}, 64);
  const Program& program = workload.programs.front();
  for (auto step : state) benchmark::DoNotOptimize(walk(program));
  state.SetItemsProcessed(state.iterations() * count_ops(program));
}
void live_bytes(benchmark::State& state) {
  walk_memory(state, [](const Program& p) { return memory_peak(p).bytes; });
}
void reserved_bytes(benchmark::State& state) {
  walk_memory(state,
              [](const Program& p) { return caching_allocator(p, AllocatorRules(), 0).reserved; });
}

BENCHMARK(one_actor)->Unit(benchmark::kMillisecond);
BENCHMARK(many_actors)->Unit(benchmark::kMillisecond);
BENCHMARK(held_sms)->Unit(benchmark::kMillisecond);
BENCHMARK(shared_ports)->Unit(benchmark::kMillisecond);
BENCHMARK(preparation)->Unit(benchmark::kMillisecond);
BENCHMARK(preparation_again)->Unit(benchmark::kMillisecond);
BENCHMARK(live_bytes)->Unit(benchmark::kMillisecond);
BENCHMARK(reserved_bytes)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace foretrain
