// Is what every pass of lowering leaves a step? And does each pass do what its name says?
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "models/step/passes.h"
#include "tests/support/sanitized.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

std::int64_t count(const StageStep& step, TaskKind kind) {
  return std::count_if(step.order().begin(), step.order().end(),
                       [&](TaskId id) { return step[id].kind == kind; });
}

// `lowered_step` stops the program where a pass leaves no step.
TEST(Step, IsOneAfterEveryPass) {
  std::string ran;
  for (Drawn (*draw)(Rng&) : {draw_plan, draw_sharded_plan, draw_sparse_plan}) {
    for (std::uint64_t seed = 0; seed < 120; ++seed) {
      Rng rng(9100 + seed);
      Drawn drawn = draw(rng);
      add_rare(rng, drawn);
      for (std::int64_t stage = 0; stage < drawn.plan.pipeline; ++stage) {
        const StageStep step = step_of(drawn.model, drawn.plan, stage, "", true);
        ASSERT_EQ(fault_of(step), "") << describe(drawn.model, drawn.plan);
        ran += ", " + step.rewritten_by;
      }
    }
  }
  // What no drawn plan asks for has laws of its own.
  const std::set<std::string> not_drawn = {"recompute blocks", "share scales"};
  for (const StagePass& pass : stage_passes()) {
    const bool drawn = ran.find(pass.name) != std::string::npos;
    EXPECT_EQ(drawn, not_drawn.count(pass.name) == 0) << pass.name;
  }
}

TEST(Step, FaultsAreFound) {
  const Model model = small_llama();
  const Plan plan = small_plan(model, {}, 2);
  const StageStep whole = step_of(model, plan, 0);
  ASSERT_EQ(fault_of(whole), "");
  const std::vector<TaskId>& order = whole.order();
  StageStep twice = whole;
  std::vector<TaskId> list = order;
  list.push_back(order.front());
  twice.place(list);
  EXPECT_NE(fault_of(twice).find("stands twice"), std::string::npos) << fault_of(twice);
  StageStep turned = whole;
  turned.place({order.rbegin(), order.rend()});
  EXPECT_NE(fault_of(turned), "");
  StageStep loose = whole;
  loose[order.front()].after = {After{}};
  EXPECT_NE(fault_of(loose).find("comes after no task"), std::string::npos) << fault_of(loose);
}

// A plan that asks for nothing: inputs, embedding, layers, head, and one reduction at the end.
TEST(Step, PlainPlan) {
  const Model model = small_llama();
  const Plan plan = small_plan(model, {1, 1, 1, 2}, 3);
  const StageStep step = step_of(model, plan, 0);
  EXPECT_EQ(count(step, TaskKind::kLayer), 3 * 2 * model.layers);
  EXPECT_EQ(count(step, TaskKind::kHead), 3 * 2);
  EXPECT_EQ(count(step, TaskKind::kLoadInputs), 3);
  EXPECT_EQ(count(step, TaskKind::kReceive), 0);
  EXPECT_EQ(count(step, TaskKind::kReduceBucket), 1);
  EXPECT_EQ(count(step, TaskKind::kGather), 0);
}

// Every gather of a unit, which may come in parts, is let go of once. Where gradients of weights
// have passes of their own, what is not resharded stays to the end of the step.
TEST(Step, GathersAreReleased) {
  for (std::uint64_t seed = 0; seed < cases(200, 20); ++seed) {
    Rng rng(9400 + seed);
    Drawn drawn = draw_sharded_plan(rng);
    if (!drawn.plan.shards_parameters() || drawn.plan.splits_backward()) continue;
    for (std::int64_t stage = 0; stage < drawn.plan.pipeline; ++stage) {
      const StageStep step = step_of(drawn.model, drawn.plan, stage);
      std::set<std::pair<std::int32_t, std::int32_t>> there;
      std::map<std::pair<std::int32_t, std::int32_t>, std::int16_t> begun;
      for (const TaskId id : step.order()) {
        const Task& task = step[id];
        const std::pair unit(task.chunk, task.index);
        if (task.kind == TaskKind::kGather) {
          const bool more = begun.contains(unit);
          EXPECT_EQ(there.insert(unit).second, !more) << "gathered twice";
          EXPECT_TRUE(!more || task.form == 0 || task.form > begun[unit]);
          begun[unit] = task.form;
          if (task.form == 0) begun.erase(unit);
        }
        if (task.kind == TaskKind::kRelease) {
          EXPECT_EQ(there.erase(unit), 1U) << "let go of, not there";
          EXPECT_FALSE(begun.contains(unit)) << "let go of, in part";
        }
      }
      EXPECT_TRUE(there.empty()) << describe(drawn.model, drawn.plan);
    }
  }
}

TEST(Step, TextNamesPasses) {
  const Model model = small_llama();
  const Plan plan = small_plan(model, {1, 2, 1, 2}, 2);
  const Result<std::string> text = step_text(model, plan, 1, "");
  ASSERT_TRUE(text.ok());
  EXPECT_NE(text.value().find("stage 1 of 2"), std::string::npos);
  EXPECT_NE(text.value().find("reduce buckets, order messages"), std::string::npos) << text.value();
  EXPECT_NE(text.value().find("receive forward  microbatch 0  chunk 0"), std::string::npos);
  const Result<std::string> before = step_text(model, plan, 1, "host time");
  ASSERT_TRUE(before.ok());
  EXPECT_EQ(before.value().find("reduce bucket "), std::string::npos) << before.value();
  const Result<std::string> unknown = step_text(model, plan, 1, "reduce bucket");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("did you mean \"reduce buckets\"?"), std::string::npos)
      << unknown.error().message;
}

}  // namespace
}  // namespace foretrain
