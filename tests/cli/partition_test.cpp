// How layers are divided over stages, from the command line.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cli/run_command.h"
#include "tools/predict/divide.h"
#include "tools/predict/predict.h"

namespace foretrain {
namespace {

/// A vocabulary of 128256 before and after 32 layers.
const char* const kTablesRun = R"({"model": "llama-3-8b", "cluster": {"preset": "dgx-h100",
    "accelerators": 8}, "batch": {"global": 32, "sequence": 2048}, "parallel": {"pipeline": 8}})";

/// Three layers without experts before 58 with them.
const char* const kDenseFirst = R"({"model": "deepseek-v3", "cluster": {"preset": "dgx-h100",
    "accelerators": 128}, "batch": {"global": 128, "sequence": 1024},
    "parallel": {"pipeline": 16, "expert": 8}, "launch": {"cuda_graph": "full"}})";

const std::string kPartition = "parallel.pipeline_partition=";

using Counts = std::vector<std::int64_t>;

foretrain::Run resolved(const char* text, const std::vector<std::string>& sets) {
  Result<foretrain::Run> run = resolve_run(parse_json(text, "text").value(), "run.json", sets);
  EXPECT_TRUE(run.ok()) << run.error().message;
  return run.value();
}

Counts divided(const char* text, std::vector<std::string> sets, const std::string& partition) {
  sets.push_back(kPartition + partition);
  return resolved(text, sets).plan.pipeline_layout;
}

double step_time(const Workplace& place, const std::string& partition) {
  return at(simulated(place, "run.json", {kPartition + partition}), "iteration_time_s").number();
}

TEST(Partition, TakesLayersFromTheHeadsStage) {
  const Workplace place;
  place.write("run.json", kTablesRun);
  EXPECT_EQ(divided(kTablesRun, {}, "layers"), Counts(8, 4));
  // A layer has 218 million parameters, either table 525: 2 + 2.4 layers beside up to 5.
  EXPECT_EQ(divided(kTablesRun, {}, "parameters"), (Counts{2, 5, 5, 5, 5, 4, 4, 2}));
  const Counts timed = divided(kTablesRun, {}, "profiled");
  EXPECT_LT(timed.back(), 4);
  EXPECT_GE(timed.front(), 4);  // whose embedding is looked up in no time
  const double even = step_time(place, "layers");
  EXPECT_LT(step_time(place, "profiled"), 0.9 * even);
  EXPECT_LT(step_time(place, "profiled"), step_time(place, "parameters"));
  EXPECT_LT(step_time(place, "parameters"), 0.9 * even);
}

TEST(Partition, GivesTheFirstStageMoreLayersWithoutExperts) {
  const Counts parameters = divided(kDenseFirst, {}, "parameters");
  const Counts timed = divided(kDenseFirst, {}, "profiled");
  const Counts even = divided(kDenseFirst, {}, "layers");
  EXPECT_GT(parameters.front(), even.front());
  EXPECT_GT(timed.front(), even.front());
  EXPECT_EQ(*std::max_element(parameters.begin() + 1, parameters.end()), 4);
  EXPECT_LT(timed.back(), even.back() + 1);
}

TEST(Partition, NoStageIsBusierThanTheBusiestOfTheEvenOne) {
  const auto busiest = [](const std::vector<LayerWeights>& times, const Counts& layout) {
    const Counts chunks = chunk_weights(times, layout);
    return *std::max_element(chunks.begin(), chunks.end());
  };
  const std::vector<std::vector<std::string>> cases = {
      {},
      {"recompute=full"},
      {"parallel.pipeline=4", "parallel.virtual_pipeline=2"},
      {"parallel.pipeline=4", "schedule=zb-v"},
      {"schedule=dualpipe"},
      {"schedule=1f1b-vocab-2"},
      {"parallel.tensor=2", "parallel.pipeline=4", "overlap.tensor=true"},
      {"parallel.context=2", "parallel.pipeline=4"},
      {"model=gpt3-125m", "launch.dispatch_us=100"},
      {"batch.sequence=512", "sharding.level=parameters", "parallel.pipeline=4"},
      {"offload.optimizer=cpu", "offload.device_share=\"auto\"", "sharding.level=gradients"}};
  for (const std::vector<std::string>& sets : cases) {
    const Counts even = divided(kTablesRun, sets, "layers");
    const foretrain::Run run = resolved(kTablesRun, sets);
    const Result<std::vector<LayerWeights>> times = pass_times(run);
    ASSERT_TRUE(times.ok()) << times.error().message;
    const Counts timed = divided(kTablesRun, sets, "profiled");
    EXPECT_LE(busiest(times.value(), timed), busiest(times.value(), even)) << sets.back();
    // Layers are alike, but for noise there is none of.
    const Counts& layers = times.value().front().layers;
    EXPECT_EQ(layers, Counts(layers.size(), layers.front()));
  }
}

// What a stage's kernels take by these times is what they take in the step, but for those that run
// beside messages and for the gradients' norm.
TEST(Partition, KnowsWhatAStageTakes) {
  for (const std::vector<std::string>& sets :
       {std::vector<std::string>{}, std::vector<std::string>{"recompute=full"}}) {
    const foretrain::Run run = resolved(kTablesRun, sets);
    const Result<Prediction> step = predict(run, {});
    ASSERT_TRUE(step.ok()) << step.error().message;
    double busy = 0;
    for (const Part part : {Part::kGemm, Part::kAttention, Part::kMemoryBound, Part::kRecompute}) {
      busy += step.value().breakdown[static_cast<std::size_t>(part)].seconds();
    }
    const Counts chunks = chunk_weights(pass_times(run).value(), run.plan.pipeline_layout);
    const auto stage = static_cast<std::size_t>(step.value().critical_rank);
    EXPECT_EQ(stage, 7U);
    EXPECT_NEAR(static_cast<double>(chunks[stage]) * 1e-12 / busy, 1, 0.02);
  }
}

// Where the host issues operations slower than the device runs them, all stages issue as many.
TEST(Partition, HeedsTheHost) {
  const std::vector<std::string> slow = {"launch.dispatch_us=3000"};
  EXPECT_GT(divided(kTablesRun, slow, "profiled").back(),
            divided(kTablesRun, {}, "profiled").back());
}

// One decision for all verbs, which the report tells.
TEST(Partition, IsTheSameForEveryVerb) {
  const Workplace place;
  place.write("run.json", kTablesRun);
  std::string numbers;
  for (const std::int64_t n : divided(kTablesRun, {}, "profiled")) {
    numbers += " " + std::to_string(n);
  }
  const std::vector<std::string> set = {"--set", kPartition + "profiled"};
  const CommandResult shown = place.run({"show", "run.json", set[0], set[1]});
  EXPECT_NE(shown.out.find("layers of each chunk" + numbers + "\n"), std::string::npos);
  const CommandResult last = place.run({"show", "run.json", "--program", "7", set[0], set[1]});
  EXPECT_NE(last.out.find("layer forward layer 31 "), std::string::npos);
  EXPECT_EQ(last.out.find("layer forward layer 28 "), std::string::npos);
  const CommandResult told = place.run({"simulate", "run.json", set[0], set[1]});
  EXPECT_NE(told.out.find("by 1f1b of 4 + 2 x 5 + 4 x 4 + 2 layers (profiled)"), std::string::npos)
      << told.out;
  const CommandResult given =
      place.run({"simulate", "run.json", "--set", "parallel.pipeline_layout=[4,5,5,4,4,4,4,2]"});
  EXPECT_NE(given.out.find("by 1f1b of 4 + 2 x 5 + 4 x 4 + 2 layers, data 1"), std::string::npos);
  const CommandResult even = place.run({"simulate", "run.json"});
  EXPECT_NE(even.out.find("pipeline 8 by 1f1b, data 1"), std::string::npos);
}

TEST(Partition, IsExecuted) {
  const Workplace place;
  place.write("run.json", R"({"model": {"model_type": "gpt2", "n_layer": 4, "n_embd": 32,
      "n_head": 4, "n_positions": 16, "vocab_size": 4096, "attn_pdrop": 0, "resid_pdrop": 0},
      "cluster": {"preset": "host", "accelerators": 2}, "parallel": {"pipeline": 2},
      "batch": {"global": 4, "micro": 1, "sequence": 16}, "precision": "fp32",
      "kernels": {"attention": "unfused"}})");
  const CommandResult result =
      place.run({"validate", "run.json", "--threads", "--steps", "2", "--seconds-per-op", "0.01",
                 "--json", "-", "--set", kPartition + "profiled"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Result<Json> json = parse_json(result.out, "stdout");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(at(json.value(), "numerics/matches_one_rank"), Json(true));
}

TEST(Partition, ThatCannotBe) {
  const Workplace place;
  place.write("run.json", kTablesRun);
  struct Bad {
    std::vector<std::string> sets;
    std::vector<std::string> parts;
  };
  const std::vector<Bad> bad = {
      {{kPartition + "even"}, {"/parallel/pipeline_partition", "layers", "profiled"}},
      {{kPartition + "3"}, {"/parallel/pipeline_partition", "3"}},
      {{kPartition + "parameters", "parallel.pipeline_layout=[4,4,4,4,4,4,4,4]"},
       {"/parallel/pipeline_partition", "pipeline_layout", "leave one"}},
      {{kPartition + "profiled", "parallel.pipeline_layout=[4,4,4,4,4,4,4,4]"},
       {"/parallel/pipeline_partition", "pipeline_layout", "leave one"}},
      {{kPartition + "profiled", "model.num_hidden_layers=2049"},
       {"/parallel/pipeline_partition", "2049 layers", "2048"}},
      {{kPartition + "parameters", "model.num_hidden_layers=5"},
       {"/parallel/pipeline", "8 pipeline chunks", "5 layers"}}};
  for (const Bad& one : bad) {
    expect_refused(place, place.run(with_sets({"simulate", "run.json"}, one.sets)), one.parts);
  }
}

// Orders that fit durations are made for those that the run has, W apart from B also where layers
// are computed again: zb-v leaves a smaller bubble than zb-h1, and one as large as its order for
// passes in which these are known.
TEST(Order, FitsTheRunsOwnPasses) {
  const Workplace place;
  place.write("run.json", R"({
    "model": {"model_type": "llama", "num_hidden_layers": 16, "hidden_size": 4096,
              "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 1024},
    "cluster": {"preset": "dgx-a100-80gb", "accelerators": 8, "rate_spread": 0},
    "parallel": {"pipeline": 8, "tensor": 1}, "sharding": {"level": "none"}, "dropout": 0,
    "batch": {"global": 24, "micro": 1, "sequence": 2048}, "precision": "bf16",
    "recompute": "full", "launch": {"cuda_graph": "full"}})");
  const auto takes = [&place](const std::string& schedule) {
    const CommandResult told = place.run(
        {"simulate", "run.json", "--no-advice", "--json", "-", "--set", "schedule=" + schedule});
    return at(parse_json(told.out, "stdout").value(), "iteration_time_s").number();
  };
  const double own = takes("zb-v");
  EXPECT_LT(own, takes("zb-h1"));
  EXPECT_NEAR(own / takes(R"({"name": "zb-v", "forward_us": 4000, "input_gradients_us": 8100,
                             "weight_gradients_us": 4000, "transfer_us": 50})"),
              1, 0.01);
}

}  // namespace
}  // namespace foretrain
