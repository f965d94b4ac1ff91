// Does a simulation take what was estimated? By counts of bytes and operations, not by a clock.
#include "tools/predict/bounds/bounds.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "models/lower.h"
#include "tests/robust/failing_allocator.h"
#include "tests/support/sanitized.h"
#include "tools/predict/bounds/fewer_stages.h"
#include "tools/predict/predict.h"

namespace foretrain {
namespace {

Run run_of(const std::string& text) {
  const Result<Run> run = resolve_run(parse_json(text, "RUN").value(), "RUN", {});
  EXPECT_TRUE(run.ok()) << (run.ok() ? "" : run.error().message);
  return run.value();
}

std::string gpt(const std::string& parallel, int accelerators, int batch,
                const std::string& more = "") {
  return R"({"model": {"preset": "gpt2", "n_layer": 16}, "cluster": {"preset": "dgx-h100",
    "accelerators": )" +
         std::to_string(accelerators) + R"(}, "parallel": {)" + parallel +
         R"(}, "batch": {"global": )" + std::to_string(batch) +
         R"(, "micro": 1, "sequence": 256})" + more + "}";
}

/// 64 stages of a layer each.
std::string deep(int accelerators, int batch, const std::string& more = "") {
  return R"({"model": {"preset": "llama-3-8b", "num_hidden_layers": 64}, "cluster": {"preset":
    "dgx-h100", "accelerators": )" +
         std::to_string(accelerators) + R"(}, "parallel": {"pipeline": 64}, "batch": {"global": )" +
         std::to_string(batch) + R"(, "sequence": 2048})" + more + "}";
}

std::string ring(int accelerators) {
  return R"({"model": {"preset": "llama-3-8b", "num_hidden_layers": 2}, "cluster": {"preset":
    "dgx-h100", "accelerators": )" +
         std::to_string(accelerators) + R"(}, "parallel": {"context": )" +
         std::to_string(accelerators) + R"(}, "batch": {"global": 1, "sequence": 131072}})";
}

std::vector<std::string> small_runs() {
  return {gpt("\"pipeline\": 1", 8, 512),
          gpt("\"pipeline\": 16", 16, 32),
          gpt("\"pipeline\": 4, \"virtual_pipeline\": 2", 8, 64),
          gpt("\"pipeline\": 8", 8, 64, R"(, "schedule": "zb-h1")"),
          gpt("\"pipeline\": 2", 4096, 16384),
          ring(64)};
}

PredictOptions alone() {
  PredictOptions out;
  out.verify = out.sensitivity = false;
  return out;
}

// What a simulation holds at once is what was estimated within a factor of two.
TEST(Bounds, MemoryIsAsEstimated) {
  if (kSanitized) GTEST_SKIP() << "sanitizers have an operator new of their own";
  for (const std::string& text : small_runs()) {
    const auto run = run_of(text);
    ASSERT_TRUE(predict(run, alone()).ok());  // what is read once is there from now on
    watch_bytes();
    const long before = bytes_now();
    const Result<Prediction> prediction = predict(run, alone());
    ASSERT_TRUE(prediction.ok());
    const double taken = static_cast<double>(most_bytes() - before) / kGiB;
    const double estimated = prediction.value().simulated.estimated.gib;
    EXPECT_LT(estimated, 2 * taken) << text;
    EXPECT_GT(estimated, taken / 2) << text;
  }
}

// Programs of two stages with few microbatches tell the operations of all with many, and bytes.
TEST(Bounds, LoweringIsAsEstimated) {
  for (const std::string& text : small_runs()) {
    const auto run = run_of(text);
    const std::int64_t microbatches = run.plan.microbatches();
    const SimulationCost cost = cost_of_lowering(run.model, run.plan, microbatches);
    const LoweredStep step = lower_step(run.model, run.plan);
    double operations = 0;
    for (std::size_t p = 0; p < step.workload.programs.size(); ++p) {
      operations += static_cast<double>(count_ops(step, p));
    }
    EXPECT_NEAR(static_cast<double>(cost.operations), operations, 0.25 * operations) << text;
    PredictOptions whole = alone();
    whole.whole = true;
    const Result<Prediction> prediction = predict(run, whole);
    ASSERT_TRUE(prediction.ok());
    // Several classes of ranks of one stage, as those of a ring, are not known before.
    const double all = prediction.value().simulated.estimated.gib;
    EXPECT_LT(cost.gib, 1.25 * all) << text;
    EXPECT_GT(cost.gib, all / 3) << text;
  }
}

// A bound that a plan exceeds is met with the coarser law, where that is enough.
TEST(Bounds, FarMessagesComeBeforeARefusal) {
  const auto run = run_of(ring(512));
  const Result<Prediction> each = predict(run, alone());
  ASSERT_TRUE(each.ok());
  const SimulationCost all = each.value().simulated.estimated;
  EXPECT_FALSE(each.value().simulated.far_messages);
  PredictOptions bounded = alone();
  bounded.bounds.seconds = all.seconds / 2;
  const Result<Prediction> far = predict(run, bounded);
  ASSERT_TRUE(far.ok()) << far.error().message;
  EXPECT_TRUE(far.value().simulated.far_messages);
  EXPECT_LT(far.value().simulated.estimated.seconds, all.seconds / 2);
  EXPECT_GE(far.value().iteration_time_s, each.value().iteration_time_s);
  bounded.bounds.seconds = all.seconds / 1e4;
  const Result<Prediction> refused = predict(run, bounded);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("--budget"), std::string::npos);
}

// Before a Program is written a plan of many stages is refused.
TEST(Bounds, ManyStagesAreRefusedBeforeTheyAreWritten) {
  const auto run = run_of(gpt("\"pipeline\": 8", 8, 32));
  PredictOptions bounded = alone();
  bounded.bounds.gib = 1e-4;
  const Result<Prediction> refused = predict(run, bounded);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("a simulation of 8 stages would take about"),
            std::string::npos)
      << refused.error().message;
}

// Two pipelines of fewer stages stand for a longer one within one per cent of its time, and of its
// memory.
TEST(Bounds, LongPipelinesLieOnTheLineOfTwoShorterOnes) {
  for (const std::string& text : {deep(64, 64), deep(64, 96), deep(128, 128)}) {
    const auto run = run_of(text);
    const Result<Prediction> each = predict(run, alone());
    ASSERT_TRUE(each.ok());
    const auto stages = fewer_stages(run);
    ASSERT_TRUE(stages) << text;
    EXPECT_EQ(*stages, std::pair(std::int64_t{16}, std::int64_t{32}));
    const Result<Prediction> a = predict(with_stages(run, stages->first), alone());
    const Result<Prediction> b = predict(with_stages(run, stages->second), alone());
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_TRUE(on_a_line(run, a.value(), b.value(), *stages)) << text;
    const Prediction line = with_more_stages(run, a.value(), b.value(), *stages);
    const Prediction& own = each.value();
    EXPECT_NEAR(line.iteration_time_s, own.iteration_time_s, 0.01 * own.iteration_time_s) << text;
    EXPECT_NEAR(line.memory.peak_gib, own.memory.peak_gib, 0.01 * own.memory.peak_gib) << text;
    EXPECT_NEAR(line.hfu, own.hfu, 0.01 * own.hfu) << text;
    EXPECT_EQ(line.memory.peak_rank, own.memory.peak_rank) << text;
    EXPECT_EQ(line.memory.fits, own.memory.fits) << text;
    Time sum;
    for (const Time part : line.breakdown) sum += part;
    EXPECT_NEAR(sum.seconds(), line.iteration_time_s, 1e-6 * line.iteration_time_s) << text;
    EXPECT_LT(line.operations, own.operations) << text;
  }
}

// What makes stages unlike is not for the line.
TEST(Bounds, StagesThatAreNotAlikeAreSimulated) {
  EXPECT_TRUE(fewer_stages(run_of(deep(64, 64))));
  EXPECT_FALSE(fewer_stages(run_of(gpt("\"pipeline\": 16", 16, 32))));
  EXPECT_FALSE(fewer_stages(run_of(deep(64, 32))));
  EXPECT_FALSE(fewer_stages(run_of(deep(64, 64, R"(, "schedule": "gpipe")"))));
  EXPECT_FALSE(fewer_stages(run_of(deep(64, 64, R"(, "schedule": "zb-h1")"))));
}

// Where a bound asks for it the line stands for the pipeline, and the prediction says so.
TEST(Bounds, FewerStagesComeBeforeARefusal) {
  const auto run = run_of(deep(64, 128));  // too few to leave microbatches out
  PredictOptions whole = alone();
  const Result<Prediction> each = predict(run, whole);
  ASSERT_TRUE(each.ok());
  EXPECT_EQ(each.value().simulated.stages, 0);
  PredictOptions bounded = alone();
  bounded.bounds.seconds =
      0.5 * cost_of_lowering(run.model, run.plan, run.plan.microbatches()).seconds;
  const Result<Prediction> line = predict(run, bounded);
  ASSERT_TRUE(line.ok()) << line.error().message;
  EXPECT_EQ(line.value().simulated.stages, 32);
  EXPECT_NEAR(line.value().iteration_time_s, each.value().iteration_time_s,
              0.01 * each.value().iteration_time_s);
  EXPECT_NEAR(line.value().mfu, each.value().mfu, 0.01 * each.value().mfu);
}

// Bounds that are kept change nothing.
TEST(Bounds, ThatAreKeptChangeNothing) {
  const auto run = run_of(gpt("\"pipeline\": 4", 16, 32));
  const Result<Prediction> free = predict(run, alone());
  PredictOptions bounded = alone();
  bounded.bounds = {100, 4};
  const Result<Prediction> within = predict(run, bounded);
  ASSERT_TRUE(free.ok() && within.ok());
  EXPECT_EQ(within.value().iteration_time_s, free.value().iteration_time_s);
  EXPECT_EQ(within.value().operations, free.value().operations);
}

TEST(Bounds, OfTheMachineAreItsMemory) {
  const double gib = available_memory_gib();
  EXPECT_GE(gib, 0.25);
  EXPECT_LT(gib, 1 << 16);
}

// Files that a control group holds in memory are given back: they are no reason to refuse a run.
TEST(Bounds, FilesInMemoryAreFree) {
  const std::filesystem::path group =
      std::filesystem::path(testing::TempDir()) / "foretrain-control-group";
  std::filesystem::create_directories(group);
  const auto write = [&group](const char* name, const char* text) {
    std::ofstream(group / name) << text;
  };
  EXPECT_LT(free_of_group(group), 0);
  write("memory.max", "2000\n");
  write("memory.current", "1900\n");
  EXPECT_EQ(free_of_group(group), 100);
  write("memory.stat", "anon 300\ninactive_file 1000\nactive_file 400\nslab_reclaimable 50\n");
  EXPECT_EQ(free_of_group(group), 1550);
  write("memory.max", "max\n");
  EXPECT_LT(free_of_group(group), 0);
  std::filesystem::remove_all(group);
}

}  // namespace
}  // namespace foretrain
