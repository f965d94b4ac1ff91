// The errors of a group split by family of time: right where its plans differ, silent where not.
#include "tools/score/explanation.h"

#include <gtest/gtest.h>

#include <cmath>

namespace foretrain {
namespace {

struct Step {
  double gemm, data, host;
};

/// What is told of plans whose GEMMs truly take 1.1 times as long and whose exchanges 1.5 times.
Explanation explanation_of(const std::vector<Step>& steps) {
  std::vector<Row> rows;
  std::vector<RowResult> results;
  for (const Step& step : steps) {
    Row row;
    row.group = "plans";
    row.step_time_s = 1.1 * step.gemm + 1.5 * step.data + step.host;
    RowResult result;
    result.step_time_s = step.gemm + step.data + step.host;
    auto& parts = result.facts.parts_s;
    parts[static_cast<std::size_t>(Part::kGemm)] = step.gemm;
    parts[static_cast<std::size_t>(Part::kExposedData)] = step.data;
    parts[static_cast<std::size_t>(Part::kHost)] = step.host;
    rows.push_back(row);
    results.push_back(result);
  }
  const std::vector<Explanation> all = explanations(rows, results);
  EXPECT_EQ(all.size(), 1U);
  return all.empty() ? Explanation() : all.front();
}

TEST(Explanation, FindsTheFactorsOfPlansThatDiffer) {
  const Explanation found =
      explanation_of({{8, 0.5, 1}, {7, 2, 1}, {6, 4, 1}, {5, 5, 0.5}, {9, 0.5, 2}, {3, 6, 1}});
  EXPECT_EQ(found.rows, 6U);
  std::size_t checked = 0;
  for (const PartFactor& one : found.told) {
    const double truth = one.part == Part::kGemm ? 1.1 : one.part == Part::kExposedData ? 1.5 : 1;
    EXPECT_LE(std::fabs(one.factor - truth), 2 * one.deviation) << name_of(one.part);
    ++checked;
  }
  ASSERT_GE(checked, 2U);
  // What explains most of the group's error comes first.
  EXPECT_EQ(found.told.front().part, Part::kExposedData);
  EXPECT_GT(found.told.front().factor, 1.4);
}

TEST(Explanation, TellsNothingOfPlansThatAreAlike) {
  const Explanation found = explanation_of({{5, 3, 2}, {5, 3, 2}, {10, 6, 4}, {2.5, 1.5, 1}});
  EXPECT_TRUE(found.told.empty());
  ASSERT_EQ(found.untold.size(), 3U);
  EXPECT_EQ(found.untold.front().part, Part::kGemm);
  // Together the factors still give what was measured.
  double sum = 0;
  for (const PartFactor& one : found.untold) sum += one.factor * one.share;
  EXPECT_NEAR(sum, 1.1 * 0.5 + 1.5 * 0.3 + 0.2, 0.01);
}

TEST(Explanation, NeedsFourRows) {
  EXPECT_TRUE(explanations({}, {}).empty());
  EXPECT_NE(explanation_lines({}).find("four rows"), std::string::npos);
}

}  // namespace
}  // namespace foretrain
