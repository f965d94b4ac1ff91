// How long lowering takes: one stage's Program, for plans that use many mechanisms.
#include <benchmark/benchmark.h>

#include "models/emit/emit.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

/// 1f1b with a sharded optimizer: many microbatches through few kinds of layers.
void lower_pipeline(benchmark::State& state) {
  const Model model = small_llama();
  Plan plan = small_plan(model, {2, 4, 1, 8}, 256);
  plan.sequence = true;
  plan.sharding = Sharding::kOptimizer;
  plan.overlap.gradient_reduce = plan.overlap.parameter_gather = true;
  for (auto _ : state) benchmark::DoNotOptimize(write_stage(model, plan, 1));
}

/// Gathers and reductions of units in every pass.
void lower_units(benchmark::State& state) {
  Model model = small_llama();
  model.layers = 64;
  Plan plan = small_plan(model, {1, 1, 1, 8}, 16);
  plan.sharding = Sharding::kParameters;
  for (auto _ : state) benchmark::DoNotOptimize(write_stage(model, plan, 0));
}

/// Drawn plans, each once: layouts and segments, which short steps are mostly made of.
void lower_drawn(benchmark::State& state) {
  std::vector<Drawn> plans;
  Rng rng(77);
  for (int i = 0; i < 40; ++i) plans.push_back(i % 2 == 0 ? draw_plan(rng) : draw_sparse_plan(rng));
  for (auto _ : state) {
    for (const Drawn& drawn : plans) {
      benchmark::DoNotOptimize(write_stage(drawn.model, drawn.plan, 0));
    }
  }
}

BENCHMARK(lower_pipeline)->Unit(benchmark::kMillisecond);
BENCHMARK(lower_units)->Unit(benchmark::kMillisecond);
BENCHMARK(lower_drawn)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace foretrain
