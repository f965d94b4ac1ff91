// Post-validation of the update, from the command line.
#include <gtest/gtest.h>

#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

const char* const kPipelineRun = R"({"model": "llama-3-8b", "cluster": {"preset": "dgx-h100",
    "accelerators": 8}, "batch": {"global": 24, "sequence": 2048}, "parallel": {"pipeline": 8},
    "schedule": "zb-h2"})";

TEST(PostValidation, ShortensTheStepWhoseTimeItTells) {
  const Workplace place;
  place.write("run.json", kPipelineRun);
  const Json waits = simulated(place, "run.json");
  const Json goes = simulated(place, "run.json", {"overlap.post_validation=true"});
  const double step = at(goes, "iteration_time_s").number();
  EXPECT_LT(step, 0.95 * at(waits, "iteration_time_s").number());
  EXPECT_LT(at(goes, "breakdown_s/pipeline_bubble").number(),
            at(waits, "breakdown_s/pipeline_bubble").number());
  double sum = 0;
  const Json parts = at(goes, "breakdown_s");
  for (const auto& [name, part] : *parts.object()) sum += part.number();
  EXPECT_NEAR(sum / step, 1, 1e-9);
  EXPECT_EQ(at(goes, "memory/peak_gib").number(), at(waits, "memory/peak_gib").number());
  const CommandResult traced = place.run({"simulate", "run.json", "--quiet", "--trace", "t.json",
                                          "--set", "overlap.post_validation=true"});
  EXPECT_EQ(traced.exit_code, 0) << traced.err;
}

TEST(PostValidation, ThatHasNothingToDoOrCannotBe) {
  const Workplace place;
  place.write("run.json", kPipelineRun);
  const auto with = [&place](const char* verb, const char* set) {
    return place.run({verb, "run.json", "--set", "overlap.post_validation=true", "--set", set});
  };
  const CommandResult alone =
      place.run({"show", "run.json", "--set", "overlap.post_validation=true", "--set",
                 "parallel.pipeline=1", "--set", "schedule=1f1b"});
  EXPECT_NE(alone.err.find("/overlap/post_validation has no effect: parallel.pipeline is 1"),
            std::string::npos)
      << alone.err;
  EXPECT_NE(with("show", "gradients.clip_norm=0").err.find("there is nothing to validate"),
            std::string::npos);
  const std::vector<std::pair<const char*, const char*>> bad = {
      {"schedule=chimera", "two copies"},
      {"schedule=1f1b-interlaced", "all stages share"},
      {"sharding.level=gradients", "sharded gradients"},
      {"host.loader_us=1000", "host.loader_us"},
      {"model=mixtral-8x7b", "experts"}};
  for (const auto& [set, part] : bad) {
    expect_refused(place, with("simulate", set), {"/overlap/post_validation", part});
  }
}

TEST(PostValidation, IsNotExecuted) {
  const Workplace place;
  const CommandResult result =
      place.run({"execute", "gpt-small-host", "--ranks", "2", "--set", "parallel.pipeline=2",
                 "--set", "overlap.post_validation=true"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("overlap.post_validation"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace foretrain
