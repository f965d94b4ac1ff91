// Is an order that is written down the one that was made, where it says that chunks stand?
#include <gtest/gtest.h>

#include "models/lower.h"
#include "models/schedule/schedule.h"
#include "sim/base/json.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

/// `plan` with its order from a file of this text; `error`: what the file is refused for.
Plan with_order(Plan plan, const std::string& text, std::string* error = nullptr) {
  const Model model = small_llama();
  plan.schedule = Schedule::kFile;
  plan.file.path = "order.json";
  plan.passes.clear();
  const Result<Json> json = parse_json(text, "order.json");
  EXPECT_TRUE(json.ok()) << json.error().message;
  Status status = read_schedule_file(json.value(), "order.json", plan);
  if (status.ok()) status = check_schedule_file(model, plan);
  const std::string message = status.ok() ? "" : status.error().message;
  if (error != nullptr) *error = message;
  EXPECT_TRUE(status.ok() || error != nullptr) << message;
  return plan;
}

Plan as_file(const Plan& plan) {
  const Result<std::string> text = schedule_text(plan);
  EXPECT_TRUE(text.ok()) << text.error().message;
  return with_order(plan, text.value());
}

bool two_chunks(Schedule schedule) {
  return schedule == Schedule::kZbV || schedule == Schedule::kDualPipeV;
}

// The same passes on the same chunks, and the same Programs, whose steps take as long then.
TEST(ScheduleFile, IsWhatWasWritten) {
  for (const Model& model : {small_gpt(), small_moe()}) {
    for (const Schedule schedule :
         {Schedule::kGpipe, Schedule::k1F1B, Schedule::kInterleaved, Schedule::kZbH1,
          Schedule::kZbH2, Schedule::kZbV, Schedule::kZbAuto, Schedule::kDualPipe,
          Schedule::kDualPipeV, Schedule::kChimera}) {
      for (const std::int64_t p : {2, 4}) {
        const bool v = two_chunks(schedule) || schedule == Schedule::kInterleaved;
        if (v && model.has_experts() && p == 4) continue;  // four layers
        Plan plan = small_plan(model, {1, p, v ? 2 : 1, 2}, 3 * p);
        if (model.has_experts()) plan.experts.expert = 2;
        plan.schedule = schedule;
        SCOPED_TRACE(describe(model, plan));
        const Plan file = as_file(plan);
        EXPECT_EQ(passes_of(file), passes_of(plan));
        EXPECT_EQ(file.placement(), plan.placement());
        EXPECT_EQ(file.splits_backward(), plan.splits_backward());
        EXPECT_EQ(lower(model, file).programs, lower(model, plan).programs);
      }
    }
  }
}

// In a V that turns again chunks go down, up, down and up.
TEST(ScheduleFile, AVTurnsAsOftenAsThereAreChunks) {
  Plan plan = small_plan(small_llama(), {1, 2, 4, 1}, 1);
  plan = with_order(plan, R"({"placement": "v", "stages": [
      [[0,0,"F"],[3,0,"F"],[4,0,"F"],[7,0,"F"],[7,0,"B"],[4,0,"B"],[3,0,"B"],[0,0,"B"]],
      [[1,0,"F"],[2,0,"F"],[5,0,"F"],[6,0,"F"],[6,0,"B"],[5,0,"B"],[2,0,"B"],[1,0,"B"]]]})");
  EXPECT_EQ(plan.chunks(), 8);
  for (std::int64_t s = 0; s < 2; ++s) {
    for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(plan.stage_of(plan.chunk_at(s, i)), s);
  }
}

// Between the two chunks in which a V turns nothing travels, so their passes may take microbatches
// in any order.
TEST(ScheduleFile, AVTurnsInAnyOrder) {
  const char* order = R"({"placement": "v", "stages": [
      [[0,0,"F"],[0,1,"F"],[3,1,"F"],[3,1,"B"],[3,0,"F"],[3,0,"B"],[0,1,"B"],[0,0,"B"]],
      [[1,0,"F"],[1,1,"F"],[2,1,"F"],[2,0,"F"],[2,1,"B"],[1,1,"B"],[2,0,"B"],[1,0,"B"]]]})";
  const Plan plan = small_plan(small_llama(), {1, 2, 1, 1}, 2);
  std::string error;
  with_order(plan, order, &error);
  EXPECT_EQ(error, "");
}

// A bare list goes round the stages; the same chunks in a V are other stages'.
TEST(ScheduleFile, ABareListGoesRound) {
  const std::string list = R"([[[0,0,"F"],[0,0,"B"]],[[1,0,"F"],[1,0,"B"]]])";
  const Plan plan = small_plan(small_llama(), {1, 2, 1, 1}, 1);
  EXPECT_EQ(with_order(plan, list).placement(), ChunkPlacement::kRound);
  EXPECT_EQ(with_order(plan, R"({"stages": )" + list + "}").passes, with_order(plan, list).passes);
  std::string error;
  with_order(plan, R"({"placement": "v", "stages": )" + list + "}", &error);
  EXPECT_EQ(
      error,
      "order.json: the passes are of 2 chunks, the run has 4 (pipeline 2 x virtual_pipeline 2)");
}

TEST(ScheduleFile, FaultsAreNamed) {
  const std::pair<const char*, const char*> faults[] = {
      {R"({"placement": "w", "stages": [[],[]]})",
       "order.json: /placement: found \"w\", expected one of round, v, bidirectional"},
      {R"({"placement": "v"})",
       "order.json: /stages: is missing, expected the list of every stage's passes"},
      {R"({"stage": [], "stages": [[],[]]})", "order.json: /stage: unknown key"},
      {R"({"schema": "foretrain/run/1", "stages": [[],[]]})",
       "order.json: /schema: found \"foretrain/run/1\", expected \"foretrain/schedule/1\""},
      {R"({"placement": "v", "stages": [[[1,0,"F"]],[]]})",
       "order.json: /stages/0/0/0: found 1, which is no chunk of 4 on stage 0"},
      {R"({"placement": "bidirectional", "stages": [[[1,0,"F"]],[]]})",
       "order.json: F of microbatch 0 on chunk 1 stands on stage 0, its way leads over stage 1"},
      {R"([[[[0,0,"F"],[0,0,"B"]]],[]])",
       "order.json: /0/0: only F and then B of another microbatch run as one, with or without W of "
       "that B, or B and its W"},
      {R"([[[[0,0,"B"],[0,1,"W"]]],[]])", "order.json: /0/0: only F and then B"},
      {R"([[[[0,0,"F"],[0,1,"F"]]],[]])", "order.json: /0/0: only F and then B"},
      {R"([[[[0,0,"B"]]],[]])", "order.json: /0/0: only F and then B"},
      {R"([[[[0,0,"B"],[0,0,"W"],[0,1,"W"]]],[]])", "order.json: /0/0: only F and then B"},
      {R"([[[[0,0,"F"],[0,0.5,"B"]]],[]])",
       "order.json: /0/0/1/1: found 0.5, expected a microbatch's number, the first is 0"},
      {R"([[[0,2,"F"]],[]])",
       "order.json: found microbatch 2 in pass 0 of stage 0, expected one of 2 microbatches, the "
       "first is 0"}};
  for (const auto& [text, message] : faults) {
    std::string error;
    with_order(small_plan(small_llama(), {1, 2, 1, 1}, 2), text, &error);
    EXPECT_EQ(error.substr(0, std::string(message).size()), message);
  }
}

// A table at both ends of a V has one array of gradients.
TEST(ScheduleFile, ATiedTableWaitsForItsHead) {
  Model model = small_gpt();
  model.tied_embeddings = true;
  Plan plan = small_plan(model, {1, 2, 2, 1}, 1);
  const std::string order = R"({"placement": "v", "stages": [
      [[0,0,"F"],[3,0,"F"],[3,0,"B"],[0,0,"B"],[0,0,"W"],[3,0,"W"]],
      [[1,0,"F"],[2,0,"F"],[2,0,"B"],[1,0,"B"],[1,0,"W"],[2,0,"W"]]]})";
  plan = with_order(plan, order);
  const Status status = check_schedule_file(model, plan);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message,
            "order.json: with a tied embedding the last W of chunk 0 must come after the last W of "
            "chunk 3, which adds to the same gradients");
  std::swap(plan.passes[0][4], plan.passes[0][5]);
  EXPECT_TRUE(check_schedule_file(model, plan).ok());
}

TEST(ScheduleFile, HasNoOtherPasses) {
  Plan plan = small_plan(small_llama(), {1, 2, 1, 1}, 4);
  for (const Schedule schedule : {Schedule::kSharedVocabulary, Schedule::kVocabulary1}) {
    plan.schedule = schedule;
    EXPECT_EQ(schedule_text(plan).error().kind, ErrorKind::kUnsupported);
  }
}

}  // namespace
}  // namespace foretrain
