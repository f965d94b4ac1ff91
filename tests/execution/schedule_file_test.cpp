// Does a user's order of passes train as one rank does, wherever it says that chunks stand?
#include <gtest/gtest.h>

#include "models/schedule/schedule.h"
#include "sim/base/json.h"
#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

/// The plan with its own order read back from a file.
Plan as_file(const Model& model, Plan plan) {
  const Result<std::string> text = schedule_text(plan);
  EXPECT_TRUE(text.ok()) << text.error().message;
  const Result<Json> json = parse_json(text.value(), "order.json");
  plan.schedule = Schedule::kFile;
  EXPECT_TRUE(read_schedule_file(json.value(), "order.json", plan).ok());
  EXPECT_TRUE(check_schedule_file(model, plan).ok());
  return plan;
}

TEST(ScheduleFiles, TrainAsOneRank) {
  for (const Schedule schedule : {Schedule::kZbV, Schedule::kDualPipeV, Schedule::kDualPipe,
                                  Schedule::kChimera, Schedule::kInterleaved}) {
    for (const bool tied : {false, true}) {
      Model model = narrowed(small_gpt(), 4);
      model.positions = 8;
      model.tied_embeddings = tied;
      const bool both_ways = schedule == Schedule::kDualPipe || schedule == Schedule::kChimera;
      if (both_ways && tied) continue;
      Plan plan = small_plan(model, {1, 2, both_ways ? 1 : 2, 2}, 6);
      plan.schedule = schedule;
      plan.sequence_length = 8;
      plan.sharding = Sharding::kOptimizer;
      plan.bucket_elements = 500;
      plan.overlap.gradient_reduce = plan.overlap.parameter_gather = true;
      expect_as_one_rank(model, as_file(model, in_fp32(plan)));
    }
  }
}

/// Microbatch after microbatch through `chunks` chunks of every stage, in a V that turns again.
std::vector<std::vector<Pass>> one_by_one(const Plan& plan, bool split) {
  std::vector<Pass> list;
  const auto add = [&list](std::int64_t chunk, std::int64_t microbatch, PassKind kind) {
    list.push_back(
        Pass{static_cast<std::int32_t>(chunk), static_cast<std::int32_t>(microbatch), kind});
  };
  const std::int64_t chunks = plan.virtual_pipeline;
  for (std::int64_t m = 0; m < plan.microbatches(); ++m) {
    for (std::int64_t c = 0; c < chunks; ++c) add(c, m, PassKind::kForward);
    for (std::int64_t c = chunks; c-- > 0;) {
      add(c, m, split ? PassKind::kInputGradients : PassKind::kBackward);
    }
  }
  for (std::int64_t c = chunks; split && c-- > 0;) {
    for (std::int64_t m = 0; m < plan.microbatches(); ++m) add(c, m, PassKind::kWeightGradients);
  }
  return {static_cast<std::size_t>(plan.pipeline), list};
}

// Where a V turns three times: its table lies on one stage or, with an odd number of chunks, on
// two.
TEST(ScheduleFiles, OfAVThatTurnsAgainTrainAsOneRank) {
  for (const std::int64_t chunks : {3, 4}) {
    for (const bool split : {false, true}) {
      for (const bool sharded : {false, true}) {
        Model model = narrowed(small_gpt(), 12);
        model.positions = 8;
        model.tied_embeddings = true;
        Plan plan = in_fp32(small_plan(model, {1, 3, chunks, 2}, 3));
        plan.sequence_length = 8;
        if (sharded) plan.sharding = Sharding::kOptimizer;
        plan.schedule = Schedule::kFile;
        plan.file.placement = ChunkPlacement::kV;
        plan.passes = one_by_one(plan, split);
        const Status status = check_schedule_file(model, plan);
        ASSERT_TRUE(status.ok()) << status.error().message;
        expect_as_one_rank(model, plan);
      }
    }
  }
}

}  // namespace
}  // namespace foretrain
