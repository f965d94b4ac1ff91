// How wrong are we? Predictions of published runs against what was measured.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "tools/score/fit_intervals.h"
#include "tools/score/published_errors.h"
#include "tools/score/ranking.h"
#include "tools/score/score.h"

namespace foretrain {
namespace {

std::vector<Row> rows_of(const std::string& group) {
  Result<std::vector<Row>> rows =
      read_rows({std::string(FORETRAIN_SOURCE_DIR) + "/configs/published"});
  EXPECT_TRUE(rows.ok()) << (rows.ok() ? "" : rows.error().message);
  std::vector<Row> out;
  if (!rows.ok()) return out;
  for (const Row& row : rows.value()) {
    if (row.group == group) out.push_back(row);
  }
  return out;
}

// Korthikanti et al. 2022, 22B and 530B, full and selective recomputation: step time within 15 %.
TEST(Accuracy, KorthikantiStepTimesWithin15Percent) {
  const std::vector<Row> rows = rows_of("korthikanti");
  ASSERT_EQ(rows.size(), 4U);
  for (const Row& row : rows) {
    const RowResult result = score_row(row);
    ASSERT_EQ(result.state, RowResult::State::kOk) << row.id << ": " << result.reason;
    EXPECT_LT(std::fabs(result.time_error), 0.15) << row.id;
  }
}

// The same paper, figure 1: model states and activations of the first stage within 5 %.
TEST(Accuracy, KorthikantiMemoryWithin5Percent) {
  const std::vector<Row> rows = rows_of("korthikanti-mem");
  ASSERT_EQ(rows.size(), 4U);
  for (const Row& row : rows) {
    const RowResult result = score_row(row);
    ASSERT_EQ(result.state, RowResult::State::kOk) << row.id << ": " << result.reason;
    EXPECT_LT(std::fabs(result.memory_error), 0.05) << row.id;
  }
}

// Table 4 of the zero-bubble paper, 8 to 32 A100 under 1f1b, interleaved-1f1b, zb-1p and zb-2p:
// peak memory at a median of 5 %, steps of 7 %.
TEST(Accuracy, ZeroBubbleRuns) {
  const Result<std::vector<Row>> rows = read_rows(
      {std::string(FORETRAIN_SOURCE_DIR) + "/configs/published_systems/zero-bubble.json"});
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  ASSERT_EQ(rows.value().size(), 20U);
  std::vector<double> memory;
  std::vector<double> time;
  for (const Row& row : rows.value()) {
    const RowResult result = score_row(row);
    ASSERT_EQ(result.state, RowResult::State::kOk) << row.id << ": " << result.reason;
    memory.push_back(result.memory_error);
    time.push_back(result.time_error);
    EXPECT_LT(std::fabs(result.memory_error), 0.10) << row.id;
    EXPECT_LT(std::fabs(result.time_error), 0.15) << row.id;
  }
  const std::vector<double> weights(memory.size(), 1.0);
  EXPECT_LT(statistics(memory, weights).median, 0.05);
  EXPECT_LT(statistics(time, weights).median, 0.07);
}

// Weighted quantiles: {1, 2, 3} with weights {1, 1, 2} stand at 0, 1 and 2.5, of which the half is
// 1.25. Of an even number of equal weights the median lies in the middle of two.
TEST(Accuracy, StatisticsWeighRows) {
  const ErrorStatistics s = statistics({-0.01, 0.02, 0.03}, {1, 1, 2});
  EXPECT_DOUBLE_EQ(s.median, 0.02 + 0.01 * 0.25 / 1.5);
  EXPECT_DOUBLE_EQ(s.p90, 0.02 + 0.01 * 1.25 / 1.5);
  EXPECT_DOUBLE_EQ(s.bias, (-0.01 + 0.02 + 0.06) / 4);
  EXPECT_DOUBLE_EQ(s.mean, (0.01 + 0.02 + 0.06) / 4);
  const ErrorStatistics even = statistics({0.04, -0.01, 0.03, 0.02}, {1, 1, 1, 1});
  EXPECT_DOUBLE_EQ(even.median, 0.025);
  EXPECT_DOUBLE_EQ(even.p90, 0.03 + 0.01 * 0.7);
  EXPECT_DOUBLE_EQ(statistics({0.5}, {2}).median, 0.5);
}

// Every shipped row has a verdict: predicted, or a reason why not.
TEST(Accuracy, EveryRowIsReadable) {
  const Result<std::vector<Row>> rows =
      read_rows({std::string(FORETRAIN_SOURCE_DIR) + "/configs/published"});
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows.value().size(), 934U);
  for (const Row& row : rows.value()) EXPECT_TRUE(row.step_time_s > 0 || row.peak_memory_gib > 0);
}

// The widths that ship cover what they say of published runs: every ninth, dense and with experts.
TEST(Accuracy, IntervalsCoverPublishedRuns) {
  const Result<std::vector<Row>> rows =
      read_rows({std::string(FORETRAIN_SOURCE_DIR) + "/configs/published"});
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  std::vector<Row> some;
  std::vector<RowResult> results;
  for (std::size_t i = 0; i < rows.value().size(); i += 9) {
    some.push_back(rows.value()[i]);
    results.push_back(score_row(rows.value()[i]));
  }
  const Coverage all = coverage(some, results);
  ASSERT_GE(all.rows, 100U);
  const double share = static_cast<double>(all.inside) / static_cast<double>(all.rows);
  EXPECT_GT(share, 0.85);
  EXPECT_LT(share, 0.98);
}

// What ships of runs like yours is what this version predicts: every 31st row, to the last digit.
// `foretrain score configs/published --errors configs/published_errors.json` renews the file.
TEST(Accuracy, ErrorsOfPublishedRunsAreCurrent) {
  const Result<std::vector<Row>> rows =
      read_rows({std::string(FORETRAIN_SOURCE_DIR) + "/configs/published"});
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  std::vector<Row> some;
  std::vector<RowResult> results;
  for (std::size_t i = 0; i < rows.value().size(); i += 31) {
    some.push_back(rows.value()[i]);
    results.push_back(score_row(rows.value()[i]));
  }
  const std::vector<PublishedRun> now = published_errors(some, results);
  ASSERT_GE(now.size(), 25U);
  std::map<std::string, PublishedRun> shipped;
  for (const PublishedRun& run : published_runs()) shipped[run.id] = run;
  EXPECT_EQ(shipped.size(), published_runs().size());
  EXPECT_GT(shipped.size(), 900U);
  for (const PublishedRun& run : now) {
    ASSERT_TRUE(shipped.contains(run.id)) << run.id;
    const PublishedRun& other = shipped.at(run.id);
    EXPECT_EQ(run.error, other.error) << run.id;
    EXPECT_EQ(run.inside, other.inside) << run.id;
    EXPECT_EQ(run.step_time_s, other.step_time_s) << run.id;
    EXPECT_EQ(run.model, other.model) << run.id;
    EXPECT_TRUE(run.traits == other.traits) << run.id;
  }
}

/// The row of a table in a document that begins with `label`; empty if there is none.
std::string table_row(const std::string& document, const std::string& label) {
  std::ifstream in(std::string(FORETRAIN_SOURCE_DIR) + "/" + document);
  std::string line;
  while (std::getline(in, line)) {
    if (line.rfind("| " + label, 0) == 0) return line;
  }
  return "";
}

// The tables that people read say what the shipped errors of published runs give.
TEST(Accuracy, TablesOfDocumentsAreOfTheShippedErrors) {
  const std::vector<std::array<const char*, 3>> tables = {
      {"README.md", "Megatron-LM on A100", "korthikanti"},
      {"README.md", "MosaicML", "mpt"},
      {"README.md", "torchtitan", "titan"},
      {"README.md", "all 930", ""},
      {"docs/results.md", "Korthikanti", "korthikanti"},
      {"docs/results.md", "NeMo documentation", "nemodocs"},
      {"docs/results.md", "NeMo 24.07", "nemo2407"},
      {"docs/results.md", "MLPerf Training", "mlperf"},
      {"docs/results.md", "MosaicML", "mpt"},
      {"docs/results.md", "torchtitan", "titan"},
      {"docs/results.md", "Moonlight on", "ablation"},
      {"docs/results.md", "Qwen3-235B", "moezoo"},
      {"docs/results.md", "NeMo AutoModel", "automodel"},
      {"docs/results.md", "InternEvo", "internevo"},
      {"docs/results.md", "SimuMax", "simumax"},
      {"docs/results.md", "BigScience", "bigscience"},
      {"docs/results.md", "vTrain, 256", "vtrain|multi"},
      {"docs/results.md", "vTrain, 1-8", "vtrain|single"},
      {"docs/results.md", "Megatron-LM continuous", "mlm-ci"},
      {"docs/results.md", "all |", ""}};
  for (const auto& [document, label, group] : tables) {
    std::vector<double> errors;
    for (const PublishedRun& run : published_runs()) {
      if (run.group.rfind(group, 0) == 0) errors.push_back(run.error);
    }
    const ErrorStatistics of = statistics(errors, std::vector<double>(errors.size(), 1));
    const std::string row = table_row(document, label);
    const std::size_t tail = row.find(" % | ");
    ASSERT_NE(tail, std::string::npos) << document << ": " << label;
    std::istringstream numbers(row.substr(row.rfind('|', tail) + 1));
    std::array<double, 3> said{};
    std::string sign;
    for (double& number : said)
      numbers >> number >> sign >> sign;  // the unit, and the column's end
    // Shipped errors have four digits, tables three.
    EXPECT_NEAR(said[0], 100 * of.median, 0.07) << document << ": " << row;
    EXPECT_NEAR(said[1], 100 * of.p90, 0.07) << document << ": " << row;
    EXPECT_NEAR(said[2], 100 * of.bias, 0.07) << document << ": " << row;
  }
}

// Widths of one source say nothing of another alone: fitted on what is known they are what they
// should be.
TEST(Accuracy, IntervalsAreWeightedPercentiles) {
  std::vector<Row> rows;
  std::vector<RowResult> results;
  for (int i = -50; i <= 50; ++i) {
    Row row;
    row.source = "repository" + std::to_string((i + 50) % 4) + ":file";
    row.group = "group";
    row.step_time_s = std::exp(0.01 * i);
    RowResult result;
    result.step_time_s = 1;
    result.facts.price_deviation = 0.001;
    rows.push_back(row);
    results.push_back(result);
  }
  const FittedIntervals fitted = fit_intervals(rows, results);
  EXPECT_NEAR(fitted.widths.dense.low, -0.45, 0.011);
  EXPECT_NEAR(fitted.widths.dense.high, 0.45, 0.011);
  EXPECT_EQ(fitted.dense, 101U);
  EXPECT_EQ(fitted.experts, 0U);
  EXPECT_NEAR(static_cast<double>(fitted.left_out.inside), 91, 3);
}

TEST(Accuracy, ProbabilityWithinIsHalfAtTheLimit) {
  const Deviation published{-0.2, 0.1};
  EXPECT_DOUBLE_EQ(probability_within(80, 80, published), 0.5);
  EXPECT_NEAR(probability_within(80, 80 * std::exp(0.1), published), 0.95, 1e-9);
  EXPECT_NEAR(probability_within(80, 80 * std::exp(-0.2), published), 0.05, 1e-9);
  EXPECT_EQ(probability_within(80, 81, Deviation()), 1);
  EXPECT_EQ(probability_within(80, 79, Deviation()), 0);
}

// Three plans: the one predicted best is the second, two of three pairs are in order.
TEST(Accuracy, RankingSaysWhatAChoiceCosts) {
  std::vector<Row> rows(3);
  std::vector<RowResult> results(3);
  const double measured[] = {1.0, 1.2, 2.0};
  const double predicted[] = {1.1, 1.0, 1.5};
  for (std::size_t i = 0; i < 3; ++i) {
    rows[i].group = "one model";
    rows[i].step_time_s = measured[i];
    results[i].step_time_s = predicted[i];
    results[i].facts.accelerators = 8;
    results[i].facts.tokens = 1000;
  }
  const std::vector<Ranking> all = rankings(rows, results);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_NEAR(all[0].regret, 0.2, 1e-12);
  EXPECT_NEAR(all[0].ordered, 2.0 / 3, 1e-12);
  EXPECT_NEAR(all[0].tau, 1.0 / 3, 1e-12);
}

}  // namespace
}  // namespace foretrain
