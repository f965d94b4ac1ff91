// Did a Program change? FORETRAIN_UPDATE_GOLDEN=1 rewrites the files that a change was meant to
// alter.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "models/lower.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

void expect_golden(const std::string& name, const std::string& text) {
  const std::string path = std::string(FORETRAIN_SOURCE_DIR) + "/tests/golden/" + name;
  if (const char* update = std::getenv("FORETRAIN_UPDATE_GOLDEN"); update && *update == '1') {
    std::ofstream(path, std::ios::binary) << text;
  }
  std::ifstream file(path, std::ios::binary);
  std::stringstream expected;
  expected << file.rdbuf();
  ASSERT_FALSE(expected.str().empty()) << path << ": run with FORETRAIN_UPDATE_GOLDEN=1";
  std::istringstream now(text);
  std::string line;
  std::string line_expected;
  for (int number = 1; std::getline(expected, line_expected); ++number) {
    std::getline(now, line);
    ASSERT_EQ(line, line_expected) << path << ":" << number;
  }
  EXPECT_FALSE(std::getline(now, line)) << "more lines than in " << path << ": " << line;
}

// Two stages, tensor and sequence parallelism, a sharded optimizer: each of its Programs.
TEST(Golden, TwoStages) {
  Model model = small_llama();
  model.layers = 2;
  model.tied_embeddings = true;
  Plan plan = small_plan(model, {2, 2, 1, 2}, 2);
  plan.sequence = true;
  plan.sharding = Sharding::kOptimizer;
  const Workload workload = lower(model, plan);
  ASSERT_EQ(workload.programs.size(), 2U);
  expect_golden("two_stages_first.txt", text_of(workload.programs[0]));
  expect_golden("two_stages_last.txt", text_of(workload.programs[1]));
}

}  // namespace
}  // namespace foretrain
