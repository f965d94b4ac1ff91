// How long one plan takes from its Plan to a step time: lowering, memory, prices, replay.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/threads.h"
#include "tools/predict/predict.h"
#include "tools/predict/run_file.h"

namespace foretrain {
namespace {

/// Of a shipped RUN with some of its fields changed.
void predict_run(benchmark::State& state, const std::string& name,
                 const std::vector<std::string>& sets, bool sensitivity) {
  const Result<Run> loaded = load_run(name, sets);
  if (!loaded.ok()) {
    state.SkipWithError(loaded.error().message.c_str());
    return;
  }
  const Run& run = loaded.value();
  PredictOptions options;
  options.verify = false;
  options.sensitivity = sensitivity;
  std::int64_t operations = 0;
  const auto on_one_core = [&](std::size_t) {
    for (auto _ : state) {
      const Result<Prediction> out = predict(run, options);
      if (!out.ok()) {
        state.SkipWithError(out.error().message.c_str());
        return;
      }
      operations += out.value().operations;
    }
  };
  in_parallel(1, on_one_core, 1);
  state.SetItemsProcessed(operations);
}

/// Without advice.
void predict_plan(benchmark::State& state, const std::string& name,
                  const std::vector<std::string>& sets) {
  predict_run(state, name, sets, false);
}

/// With what the step gains if a resource is faster.
void predict_gains(benchmark::State& state, const std::string& name) {
  predict_run(state, name, {}, true);
}

BENCHMARK_CAPTURE(predict_plan, llama_405b_16384, "llama-3.1-405b-16384-h100", {})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(predict_plan, llama_70b_512, "llama-3-8b-8-h100",
                  {"model=llama-3-70b", "cluster.accelerators=512", "parallel.tensor=8",
                   "parallel.pipeline=4", "batch.global=512", "sharding.level=optimizer"})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(predict_plan, gpt3_175b_64, "gpt3-175b-1024-a100",
                  {"cluster.accelerators=64", "batch.global=64", "parallel.virtual_pipeline=1"})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(predict_plan, llama_8b_8, "llama-3-8b-8-h100",
                  {"parallel.tensor=1", "sharding.level=parameters", "recompute=full"})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(predict_plan, gpt3_175b_64_1536, "gpt3-175b-1024-a100",
                  {"cluster.accelerators=64"})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(predict_gains, llama_405b_16384, "llama-3.1-405b-16384-h100")
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace foretrain
