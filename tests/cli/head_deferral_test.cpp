// Gradients of the output matrix that wait, from the command line.
#include <gtest/gtest.h>

#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

const char* const kHeadRun = R"({"model": "llama-3-8b", "cluster": {"preset": "dgx-h100",
    "accelerators": 8}, "batch": {"global": 16, "sequence": 2048}, "parallel": {"pipeline": 8}})";

TEST(HeadDeferral, ShortensTheStepAndTakesMemory) {
  const Workplace place;
  place.write("run.json", kHeadRun);
  const Json now = simulated(place, "run.json");
  const Json later = simulated(place, "run.json", {"overlap.head_deferral=16"});
  EXPECT_LT(at(later, "iteration_time_s").number(), at(now, "iteration_time_s").number());
  const CommandResult idle = place.run(
      {"show", "run.json", "--set", "parallel.pipeline=1", "--set", "overlap.head_deferral=4"});
  EXPECT_NE(idle.err.find("/overlap/head_deferral has no effect: parallel.pipeline is 1"),
            std::string::npos)
      << idle.err;
}

TEST(HeadDeferral, ThatCannotBe) {
  const Workplace place;
  place.write("run.json", kHeadRun);
  const std::vector<std::pair<std::string, const char*>> bad = {
      {"schedule=zb-h1", "passes of their own"},
      {"schedule=1f1b-interlaced", "all stages share"},
      {"sharding.level=gradients", "sharded gradients"},
      {"gradients.accumulation=after-pass", "added up after every pass"},
      {"gradients.dtype=fp32-in-pipelines", "added up after every pass"}};
  for (const auto& [set, part] : bad) {
    expect_refused(
        place,
        place.run({"simulate", "run.json", "--set", "overlap.head_deferral=4", "--set", set}),
        {"/overlap/head_deferral", part});
  }
}

// Each slice of a microbatch would write its gradients over those of the one before.
TEST(SumsAfterPasses, AreNotThoseOfSlices) {
  const Workplace place;
  place.write("run.json", kHeadRun);
  const CommandResult run = place.run(
      {"simulate", "run.json", "--set", "parallel.tensor=2", "--set", "parallel.pipeline=4",
       "--set", "parallel.sequence=false", "--set", "overlap.tensor_slices=2", "--set",
       "batch.micro=2", "--set", "gradients.accumulation=after-pass"});
  expect_refused(place, run, {"/gradients/accumulation", "overlap.tensor_slices"});
}

}  // namespace
}  // namespace foretrain
