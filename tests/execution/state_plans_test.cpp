// Does a state that one plan saved hold the same numbers for every other plan of the model? Drawn
// plans write, one rank reads and writes, the drawn plan reads again: every weight and moment must
// stay what it was, and the next step must be the one that nothing disturbed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "executor/execute.h"
#include "executor/state/state_map.h"
#include "models/lower.h"
#include "sim/base/file.h"
#include "sim/base/threads.h"
#include "tests/execution/device_plans.h"
#include "tests/execution/drawn_plans.h"
#include "tests/execution/one_rank.h"
#include "tests/support/sanitized.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

namespace fs = std::filesystem;

Workload state_workload(const Model& model, Plan plan) {
  if (plan.pipeline_layout.empty()) plan.pipeline_layout = default_layout(model.layers, 1);
  return lower(model, plan);
}

StateFolder folder_at(const std::string& path, std::int64_t every) {
  StateFolder out;
  out.path = path;
  out.every = every;
  return out;
}

/// Losses of steps `first` + 1 to `steps`; a folder gets the state of the last one.
std::vector<double> losses_of(const Workload& workload, std::int64_t first, std::int64_t steps,
                              const std::string& from, const std::string& to) {
  ExecuteOptions options;
  options.host = options_for_tests();
  options.host.training.first_step = first;
  options.steps = steps - first;
  options.name_of = [](RankId rank) { return std::to_string(rank.value); };
  if (!from.empty() || !to.empty()) {
    options.states = folder_at(from.empty() ? to : from, to.empty() ? 1000 : steps);
  }
  const Result<Executed> done = execute_threads(workload, options);
  EXPECT_TRUE(done.ok()) << done.error().message;
  std::vector<double> out;
  if (!done.ok()) return out;
  for (const StepMeasure& step : done.value().steps) out.push_back(step.loss);
  return out;
}

/// All ranks read the state after two steps from one folder and write it into another.
void copy_state(const Workload& workload, const std::string& from, const std::string& to) {
  std::vector<std::string> notes;
  StateFolder source = folder_at(from, 1);
  const Result<SavedPoint> point = newest_state(source, workload, notes);
  ASSERT_TRUE(point.ok()) << point.error().message;
  ASSERT_EQ(point.value().steps, 2);
  ASSERT_EQ(notes, std::vector<std::string>{});
  source.of_other_plan = point.value().of_other_plan;
  const auto transport = make_thread_transport(workload);
  std::vector<Status> done(workload.ranks.size(), ok_status());
  const Status all = all_at_once(done.size(), [&](std::size_t r) {
    done[r] = [&]() -> Status {
      HostRank<float> rank(workload, RankId(r), *transport, options_for_tests());
      FT_TRY(rank.set_up());
      FT_TRY(load_state(source, rank, RankId(r), *transport, 2));
      FT_TRY(save_state(folder_at(to, 1), workload, rank, RankId(r), *transport, 2));
      return ok_status();
    }();
    if (!done[r].ok()) transport->abort(done[r].error().message);
  });
  ASSERT_TRUE(all.ok());
  for (const Status& status : done) ASSERT_TRUE(status.ok()) << status.error().message;
}

using Values = std::map<std::string, std::vector<float>>;

/// Every weight and moment of a folder's state after two steps.
Values values_in(const std::string& folder) {
  std::vector<fs::path> files;
  std::vector<std::vector<StateRun>> runs;
  for (std::size_t r = 0;; ++r) {
    const fs::path base = fs::path(folder) / "step-2" / ("rank-" + std::to_string(r));
    if (!fs::exists(base.string() + ".json")) break;
    const Json map = read_json_file(base.string() + ".json").value();
    files.emplace_back(base.string() + ".state");
    runs.push_back(read_state_runs(*map.find("runs"), base.string()).value());
  }
  const StateSource source(files, runs);
  Values out;
  for (const std::vector<StateRun>& of_rank : runs) {
    for (const StateRun& run : of_rank) {
      StateRun whole = run;
      whole.first_row = whole.first_col = whole.begin = 0;
      whole.cols = run.width;
      whole.count = run.rows * run.width;
      for (std::size_t part = 0; part < kStateParts; ++part) {
        std::vector<float>& values =
            out[run.tensor + " " + std::to_string(run.layer) + " part " + std::to_string(part)];
        if (!values.empty()) continue;
        values.resize(static_cast<std::size_t>(whole.count));
        const Status read = source.read(whole, part, values.data());
        EXPECT_TRUE(read.ok()) << read.error().message;
      }
    }
  }
  return out;
}

void expect_state_moves(std::uint64_t seed, DrawnKind kind) {
  Rng rng(seed);
  const Drawn drawn = draw_small(rng, kind);
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(drawn.model, drawn.plan));
  const Workload many = state_workload(drawn.model, drawn.plan);
  const Workload one = state_workload(drawn.model, on_one_rank(drawn.plan));
  const fs::path place = fs::path(testing::TempDir()) /
                         ("states-" + std::to_string(getpid()) + "-" + std::to_string(seed));
  fs::remove_all(place);
  const auto folder = [&place](const char* name) { return (place / name).string(); };
  const std::vector<double> whole = losses_of(many, 0, 3, "", "");
  ASSERT_EQ(whole.size(), 3U);
  losses_of(many, 0, 2, "", folder("many"));
  copy_state(one, folder("many"), folder("one"));
  copy_state(many, folder("one"), folder("again"));
  const Values saved = values_in(folder("many"));
  EXPECT_FALSE(saved.empty());
  EXPECT_EQ(values_in(folder("one")), saved);
  EXPECT_EQ(values_in(folder("again")), saved);
  EXPECT_EQ(losses_of(many, 2, 3, folder("again"), ""), std::vector<double>{whole[2]});
  fs::remove_all(place);
}

/// What is said of a rank's list whose only run has these members in place of good ones.
std::string fault_of_run(const std::string& members) {
  const std::string good =
      R"({"tensor": "w", "layer": 0, "rows": 8, "width": 8, "first_row": 0, "first_col": 0,)";
  const Result<Json> list = parse_json("[" + good + members + "}]", "list");
  const Result<std::vector<StateRun>> runs = read_state_runs(list.value(), "rank-0.json");
  if (!runs.ok()) return runs.error().message;
  const fs::path file = fs::path(testing::TempDir()) / ("map-" + std::to_string(getpid()));
  EXPECT_TRUE(write_text_file(file.string(), std::string(768, '\0')).ok());
  StateRun wanted = runs.value().front();
  wanted.cols = 8;
  wanted.begin = 0;
  wanted.count = 64;
  std::vector<float> values(64);
  const Status read = StateSource({file}, {runs.value()}).read(wanted, 0, values.data());
  fs::remove(file);
  return read.ok() ? "" : read.error().message;
}

TEST(StateMaps, SayNoMoreThanAFileHas) {
  EXPECT_EQ(fault_of_run(R"("cols": 8, "begin": 0, "count": 64, "at": [0, 256, 512])"), "");
  for (const char* at : {"[0, 256, 1e300]", "[0, 256, -1]", "[0, 256, \"a\"]", "[0, 256]"}) {
    const std::string fault =
        fault_of_run(R"("cols": 8, "begin": 0, "count": 64, "at": )" + std::string(at));
    EXPECT_NE(fault.find("rank-0.json: /runs/0/at: found"), std::string::npos) << fault;
  }
  // Rows of a slice that is as wide as a disk.
  const std::string wide = fault_of_run(
      R"("cols": 100000000000000000, "begin": 0, "count": 1000000000000000000, "at": [0, 0, 0])");
  EXPECT_NE(wide.find("is too short"), std::string::npos) << wide;
}

class MovedStates : public ::testing::TestWithParam<int> {};

TEST_P(MovedStates, AreTheSameOnEveryPlan) {
  const auto number = static_cast<std::uint64_t>(GetParam());
  for (const DrawnKind kind : {DrawnKind::kBuckets, DrawnKind::kUnits, DrawnKind::kExperts,
                               DrawnKind::kContext, DrawnKind::kGrid}) {
    expect_state_moves(70'000 + 1000 * static_cast<std::uint64_t>(kind) + number, kind);
  }
}
INSTANTIATE_TEST_SUITE_P(Drawn, MovedStates, ::testing::Range(0, cases(10, 2)));

}  // namespace
}  // namespace foretrain
