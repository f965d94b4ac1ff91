// Do predictions choose among plans as measurements do, and do searches find what planners tuned?
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tools/score/ranking.h"
#include "tools/score/score.h"
#include "tools/search/search.h"

namespace foretrain {
namespace {

// Several plans of one model on one machine: at least 85 % of pairs in the order that was measured,
// the plan predicted fastest at most 1 % slower than the fastest.
TEST(PublishedSearches, PlansAreRankedAsMeasured) {
  const Result<std::vector<Row>> rows =
      read_rows({std::string(FORETRAIN_SOURCE_DIR) + "/configs/published_searches"});
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  std::vector<RowResult> results;
  for (const Row& row : rows.value()) {
    results.push_back(score_row(row));
    EXPECT_EQ(results.back().state, RowResult::State::kOk) << row.id << results.back().reason;
  }
  const PairsInOrder pairs = pairs_in_order(rows.value(), results);
  EXPECT_GE(pairs.pairs, 9U);
  EXPECT_GE(static_cast<double>(pairs.ordered), 0.85 * static_cast<double>(pairs.pairs));
  const std::vector<Ranking> all = rankings(rows.value(), results);
  ASSERT_FALSE(all.empty());
  for (const Ranking& one : all) {
    EXPECT_GE(one.tau, 0.7) << one.group;
    EXPECT_LE(one.regret, 0.01) << one.group;
  }
}

double seconds_of(const Json& written) {
  const Result<Run> run = resolve_run(written, "a published choice", {}, {});
  EXPECT_TRUE(run.ok()) << (run.ok() ? "" : run.error().message);
  if (!run.ok()) return 0;
  PredictOptions alone;
  alone.verify = alone.sensitivity = false;
  alone.step_alone = true;
  const Result<Prediction> one = predict(run.value(), alone);
  EXPECT_TRUE(one.ok()) << (one.ok() ? "" : one.error().message);
  return one.ok() ? one.value().iteration_time_s : 0;
}

/// The members of `more` over those of `run`, section by section.
Json with(Json run, const Json& more) {
  for (const auto& [key, value] : *more.object()) {
    Json* section = run.find(key);
    if (section == nullptr || section->object() == nullptr || value.object() == nullptr) {
      run.set(key, value);
      continue;
    }
    for (const auto& [name, inner] : *value.object()) section->set(name, inner);
  }
  return run;
}

// Plans that Mist tuned stage by stage, on up to four devices, where a proof takes seconds: the
// search finds as good a plan, but for 0.2 %, or a better one.
TEST(PublishedSearches, TunedPlansAreFoundOrBeaten) {
  const Json choices =
      read_json_file(std::string(FORETRAIN_TEST_DATA) + "/published_choices.json").value();
  constexpr double kMostDevices = 4;
  std::size_t asked = 0;
  for (const Json& choice : *choices.array()) {
    const Json& run = *choice.find("run");
    const bool fused = *run.find("kernels")->find("attention") == Json("flash");
    if (run.find("cluster")->find("accelerators")->number() > kMostDevices || !fused) continue;
    ++asked;
    SearchOptions options;
    options.space.free = {"pipeline_stages"};
    options.budget_s = 1e6;
    const Result<SearchResult> found = search_plans(run, "a published choice", options, {});
    ASSERT_TRUE(found.ok()) << found.error().message;
    ASSERT_FALSE(found.value().plans.empty());
    EXPECT_TRUE(found.value().certificate.complete);
    EXPECT_LE(found.value().plans.front().iteration_time_s,
              1.002 * seconds_of(with(run, *choice.find("plan"))))
        << *choice.find("id")->string();
  }
  EXPECT_EQ(asked, 4U);
}

}  // namespace
}  // namespace foretrain
