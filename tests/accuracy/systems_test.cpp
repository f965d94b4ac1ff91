// How wrong are we on what makers of training systems published? The tables of docs/results.md are
// made here: FORETRAIN_UPDATE_RESULTS=1 build/release/tests/foretrain_accuracy
// --gtest_filter='Systems.*' writes them there.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/base/file.h"
#include "tools/predict/predict.h"
#include "tools/report/report.h"
#include "tools/score/score.h"

namespace foretrain {
namespace {

const std::string kSystemRows = std::string(FORETRAIN_SOURCE_DIR) + "/configs/published_systems";
const std::string kChartRows = kSystemRows + "/charts";  // read off charts: less exact
const std::string kResultsPage = std::string(FORETRAIN_SOURCE_DIR) + "/docs/results.md";

Json test_data(const std::string& name) {
  return read_json_file(std::string(FORETRAIN_TEST_DATA) + "/" + name).value();
}

std::vector<Row> system_rows() { return read_rows({kSystemRows}).value(); }

std::string text_of(const Json& object, const char* key) { return *object.find(key)->string(); }

std::string percent(double share) { return fixed(100 * share, 1) + " %"; }

/// The lines from `header` to the first that is no row of a table.
std::string table_on_page(const std::string& page, const std::string& header) {
  const std::size_t begin = page.find(header);
  if (begin == std::string::npos) return "";
  std::size_t end = begin;
  while (end < page.size() && page[end] == '|') end = page.find('\n', end) + 1;
  return page.substr(begin, end - begin);
}

/// The page has this table, or is made to have it.
void expect_on_page(const std::string& table) {
  std::string page = read_text_file(kResultsPage).value();
  const std::string old = table_on_page(page, table.substr(0, table.find('\n') + 1));
  ASSERT_NE(old, "") << kResultsPage << " has no table that begins with\n" << table;
  if (std::getenv("FORETRAIN_UPDATE_RESULTS") != nullptr) {
    page.replace(page.find(old), old.size(), table);
    ASSERT_TRUE(write_text_file(kResultsPage, page).ok());
    return;
  }
  EXPECT_EQ(old, table) << "FORETRAIN_UPDATE_RESULTS=1 writes what is predicted now";
}

struct SystemErrors {
  std::vector<double> time, memory;
};

ErrorStatistics of(const std::vector<double>& errors) {
  return statistics(errors, std::vector<double>(errors.size(), 1.0));
}

std::map<std::string, SystemErrors> errors_by_system(const std::vector<Row>& rows) {
  std::map<std::string, SystemErrors> out;
  for (const Row& row : rows) {
    const RowResult result = score_row(row);
    EXPECT_EQ(result.state, RowResult::State::kOk) << row.id << ": " << result.reason;
    SystemErrors& errors = out[row.group.substr(0, row.group.find('|'))];
    if (row.step_time_s > 0) errors.time.push_back(result.time_error);
    if (row.peak_memory_gib > 0) errors.memory.push_back(result.memory_error);
  }
  return out;
}

std::string table_of(const std::string& first, const std::map<std::string, SystemErrors>& systems) {
  std::string out =
      "| " + first +
      " | step times | median error | 90th percentile | bias | memories | median error |\n"
      "| --- | --- | --- | --- | --- | --- | --- |\n";
  for (const auto& [name, errors] : systems) {
    const ErrorStatistics time = of(errors.time);
    out += "| " + name + " | " + std::to_string(time.count) + " | " + percent(time.median) + " | " +
           percent(time.p90) + " | " + (time.bias < 0 ? "" : "+") + percent(time.bias) + " | ";
    out += errors.memory.empty() ? "| |\n"
                                 : std::to_string(errors.memory.size()) + " | " +
                                       percent(of(errors.memory).median) + " |\n";
  }
  return out;
}

void expect_below_ceilings(const std::map<std::string, SystemErrors>& systems, const char* kind) {
  const Json all = test_data("system_ceilings.json");
  const Json& ceilings = *all.find(kind);
  ASSERT_EQ(ceilings.object()->size(), systems.size());
  for (const auto& [name, errors] : systems) {
    const Json* ceiling = ceilings.find(name);
    ASSERT_NE(ceiling, nullptr) << name;
    EXPECT_LE(of(errors.time).median, ceiling->number()) << name;
  }
}

// Step times of every system, as the page has them. A median may fall below its ceiling, which then
// falls with it, and never rise above.
TEST(Systems, MediansStayBelowTheirCeilings) {
  const std::map<std::string, SystemErrors> systems = errors_by_system(system_rows());
  expect_on_page(table_of("system", systems));
  expect_below_ceilings(systems, "rows");
}

TEST(Systems, MediansOfChartsStayBelowTheirCeilings) {
  const std::map<std::string, SystemErrors> systems =
      errors_by_system(read_rows({kChartRows}).value());
  expect_on_page(table_of("charts of", systems));
  expect_below_ceilings(systems, "charts");
}

/// What a claim compares: a row, a shipped run or a RUN, with changes.
class ClaimedRuns {
 public:
  ClaimedRuns() {
    const std::vector<Row> all = read_rows({kSystemRows, kChartRows}).value();
    for (const Row& row : all) rows_[row.id] = row.run;
  }

  /// Sequences a second, of all accelerators or of one.
  double speed(const Json& side, bool per_accelerator) const {
    std::vector<std::string> sets;
    if (const Json* list = side.find("set")) {
      for (const Json& set : *list->array()) sets.push_back(*set.string());
    }
    const Result<Run> run = resolved(*side.find("run"), sets);
    EXPECT_TRUE(run.ok()) << (run.ok() ? "" : run.error().message);
    if (!run.ok()) return 0;
    Row row;
    row.run = run.value().resolved;
    row.step_time_s = 1;
    const RowResult result = score_row(row);
    EXPECT_EQ(result.state, RowResult::State::kOk) << result.reason;
    const double sequences = static_cast<double>(run.value().plan.global_batch);
    const auto accelerators = static_cast<double>(run.value().cluster.accelerators);
    return sequences / result.step_time_s / (per_accelerator ? accelerators : 1);
  }

 private:
  Result<Run> resolved(const Json& run, const std::vector<std::string>& sets) const {
    if (run.string() == nullptr) return resolve_run(run, "claim", sets);
    const auto row = rows_.find(*run.string());
    if (row != rows_.end()) return resolve_run(row->second, row->first, sets);
    return load_run(*run.string(), sets);
  }

  std::map<std::string, Json> rows_;
};

/// On the same side of one, or nearly the same.
bool same_order(double published, double predicted) {
  return (published > 1) == (predicted > 1) || std::fabs(predicted - published) < 0.03;
}

// What sources say of two runs: which is faster, and by how much.
TEST(Systems, ClaimsComeOutInTheirOrder) {
  const ClaimedRuns runs;
  std::string table = "| of speeds | published | predicted | order |\n| --- | --- | --- | --- |\n";
  const Json claims = test_data("system_claims.json");
  double right = 0;
  std::vector<double> ratios;
  for (const Json& claim : *claims.array()) {
    const bool each = text_of(claim, "measure") == "speed per accelerator";
    const double published = claim.find("published")->number();
    const double predicted =
        runs.speed(*claim.find("first"), each) / runs.speed(*claim.find("second"), each);
    const bool order = same_order(published, predicted);
    right += order ? 1 : 0;
    if (claim.find("ordering_only") == nullptr) ratios.push_back(predicted / published - 1);
    table += "| " + text_of(claim, "claim") + " | " + fixed(published, 2) + " | " +
             fixed(predicted, 2) + " | " + (order ? "right" : "wrong") + " |\n";
  }
  expect_on_page(table);
  const double share = right / static_cast<double>(claims.array()->size());
  EXPECT_LE(of(ratios).median, 0.11);  // may only fall
  EXPECT_GE(share, 0.95);              // may only rise
}

// A figure is a row, or stands with the reason why not.
TEST(Systems, WhatIsLeftOutHasAReason) {
  std::set<std::string> rows;
  for (const Row& row : system_rows()) {
    EXPECT_TRUE(rows.insert(row.id).second) << row.id;
  }
  std::set<std::string> left_out;
  const Json list = test_data("system_rows_left_out.json");
  for (const Json& group : *list.array()) {
    EXPECT_GT(text_of(group, "reason").size(), 20U);
    for (const Json& id : *group.find("ids")->array()) {
      EXPECT_TRUE(left_out.insert(*id.string()).second) << *id.string();
      EXPECT_EQ(rows.count(*id.string()), 0U) << *id.string();
    }
  }
}

}  // namespace
}  // namespace foretrain
