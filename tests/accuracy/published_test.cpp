// How wrong are we? Predictions of published runs against what was measured.
#include <gtest/gtest.h>

#include <cmath>

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

}  // namespace
}  // namespace foretrain
