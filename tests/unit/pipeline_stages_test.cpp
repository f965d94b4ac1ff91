// Is `pipeline_stages` read, and refused, as it should be?
#include "models/plan/layout/plan_stages.h"

#include <gtest/gtest.h>

#include "models/emit/emit.h"
#include "models/lower.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

/// A plan of two stages over four ranks, with `more` keys.
Result<Plan> two_stages(const std::string& stages, const std::string& more = "",
                        const Model& model = small_llama()) {
  const Result<Json> json = parse_json(
      "{\"parallel\":{\"pipeline\":2}," + more + "\"pipeline_stages\":" + stages + "}", "run.json");
  if (!json.ok()) return json.error();
  return read_plan(json.value(), "run.json", model, 4);
}

Plan must_read(const Result<Plan>& plan) {
  EXPECT_TRUE(plan.ok()) << (plan.ok() ? "" : plan.error().message);
  return plan.ok() ? plan.value() : Plan();
}

TEST(PipelineStages, SayWhatEachDoes) {
  const Plan plan =
      must_read(two_stages(R"([{"layers":3,"recompute":2,"offload":{"activations":1}},)"
                           R"({"layers":5,"recompute":"full"}])"));
  EXPECT_EQ(plan.pipeline_layout, (std::vector<std::int64_t>{3, 5}));
  EXPECT_TRUE(plan.recompute.layer);
  EXPECT_EQ(plan_of_stage(plan, 0).recompute.layers, 2);
  EXPECT_EQ(plan_of_stage(plan, 1).recompute.layers, -1);
  EXPECT_EQ(plan_of_stage(plan, 0).offload.activation_layers, 1);
  EXPECT_EQ(plan_of_stage(plan, 1).offload.activation_layers, 0);
  const Plan shared = must_read(
      two_stages(R"([{"offload":{"optimizer":0.25}},{}])", R"("sharding":{"level":"gradients"},)"));
  EXPECT_EQ(shared.offload.optimizer, Memory::kHost);
  EXPECT_DOUBLE_EQ(plan_of_stage(shared, 0).offload.device_share, 0.75);
  EXPECT_DOUBLE_EQ(plan_of_stage(shared, 1).offload.device_share, 1);
}

// A stage that says nothing does as the plan says; a list that says nothing is none.
TEST(PipelineStages, LeaveTheRestAlone) {
  EXPECT_EQ(must_read(two_stages("[{},{}]")), must_read(two_stages("null")));
  EXPECT_EQ(must_read(two_stages(R"([{"recompute":0},{"recompute":"none"}])")),
            must_read(two_stages("null")));
  const Plan full = must_read(two_stages(R"([{"recompute":"none"},{}])", R"("recompute":"full",)"));
  EXPECT_EQ(plan_of_stage(full, 0).recompute.layers, 0);
  EXPECT_EQ(plan_of_stage(full, 1).recompute.layers, -1);
}

// A stage's Program is that of a plan in which all stages do the same.
TEST(PipelineStages, LowerAsPlansOfTheirOwn) {
  const Model model = small_llama();
  const Plan mixed = must_read(two_stages(R"([{"recompute":2},{"recompute":"none"}])"));
  const Plan two =
      must_read(two_stages("null", R"("recompute":{"modules":["layer"],"layers":2},)"));
  const Plan none =
      must_read(two_stages("null", R"("recompute":{"modules":["layer"],"layers":0},)"));
  EXPECT_TRUE(write_stage(model, mixed, 0) == write_stage(model, two, 0));
  EXPECT_TRUE(write_stage(model, mixed, 1) == write_stage(model, none, 1));
  EXPECT_FALSE(write_stage(model, none, 0) == write_stage(model, two, 0));
}

TEST(PipelineStages, ShareBySeveralLevels) {
  const char* const optimizer = R"("sharding":{"level":"optimizer"},)";
  const Plan plan = must_read(two_stages(R"([{"sharding":"parameters"},{}])", optimizer));
  EXPECT_TRUE(plan_of_stage(plan, 0).shards_parameters());
  EXPECT_EQ(plan_of_stage(plan, 1).sharding, Sharding::kOptimizer);
  const Model model = small_llama();
  const Plan all = must_read(two_stages("null", R"("sharding":{"level":"parameters"},)"));
  EXPECT_TRUE(write_stage(model, plan, 0) == write_stage(model, all, 0));
}

// Stages with tensor degrees of their own have as many more ranks, one stage after the other.
TEST(PipelineStages, HaveTensorDegreesOfTheirOwn) {
  const Result<Json> json =
      parse_json(R"({"parallel":{"pipeline":3,"tensor":2},"batch":{"sequence":16},)"
                 R"("pipeline_stages":[{"tensor":4},{},{"tensor":1}]})",
                 "run.json");
  const Plan plan = must_read(read_plan(json.value(), "run.json", small_llama(), 14));
  EXPECT_EQ(plan.data, 2);
  EXPECT_EQ(model_ranks(plan), 7);
  const std::vector<std::int64_t> degrees = {4, 2, 1};
  EXPECT_EQ(plan.tensors.degrees, degrees);
  std::int64_t rank = 0;
  for (std::int64_t stage = 0; stage < 3; ++stage) {
    const Plan own = plan_of_stage(plan, stage);
    EXPECT_EQ(own.tensor, degrees[static_cast<std::size_t>(stage)]);
    EXPECT_EQ(own.sequence, own.tensor > 1);
    for (std::int64_t data = 0; data < 2; ++data) {
      for (std::int64_t tensor = 0; tensor < own.tensor; ++tensor, ++rank) {
        EXPECT_EQ(rank_at(plan, {tensor, data, stage}).value, rank);
        const Coordinates at = coordinates_of(plan, RankId(static_cast<std::size_t>(rank)));
        EXPECT_EQ(at.tensor, tensor);
        EXPECT_EQ(at.data, data);
        EXPECT_EQ(at.pipeline, stage);
      }
    }
  }
  EXPECT_EQ(rank, 14);
}

// What a stage sends to fewer ranks it sends in larger parts, and all of it arrives.
TEST(PipelineStages, SendEverythingToAnotherDegree) {
  const Model model = small_llama();
  for (const char* sequence : {"true", "false"}) {
    const Result<Json> json =
        parse_json(std::string(R"({"parallel":{"pipeline":2,"sequence":)") + sequence +
                       R"(},"batch":{"sequence":16},"pipeline_stages":[{"tensor":4},{}]})",
                   "run.json");
    const Plan plan = must_read(read_plan(json.value(), "run.json", model, 5));
    const Workload workload = lower(model, plan);
    ASSERT_TRUE(verify(workload).ok());
    const Bytes whole = 2 * plan.tokens() * model.hidden;
    for (const Channel& channel : workload.channels) {
      const Program& program =
          workload.programs[workload.ranks[channel.source.index()].program.index()];
      for (const Work& work : program.works) {
        const auto* batch = std::get_if<P2PBatch>(&work);
        if (batch == nullptr || !batch->messages.front().send) continue;
        const bool up = channel.source.value == 4;  // gradients, to each of four
        EXPECT_EQ(batch->messages.size(), up ? 4 : 1);
        const bool parts = !up || std::string(sequence) == "true";
        EXPECT_EQ(batch->messages.front().bytes, parts ? whole / 4 : whole);
      }
    }
    EXPECT_EQ(workload.channels.size(), 8);
  }
}

struct Fault {
  const char* stages;
  const char* more;
  std::vector<std::string> parts;
  ErrorKind kind = ErrorKind::kInput;
};

TEST(PipelineStages, FaultsAreNamed) {
  const auto none = ErrorKind::kUnsupported;
  const std::vector<Fault> faults = {
      {"3", "", {"/pipeline_stages", "found 3", "a list"}},
      {"[{}]", "", {"found 1 stages", "parallel.pipeline is 2"}},
      {"[{},7]", "", {"/pipeline_stages/1", "found 7", "an object"}},
      {R"([{"layer":3},{}])", "", {"/pipeline_stages/0/layer", "unknown", "layers"}},
      {R"([{"layers":3},{}])", "", {"in all or in none"}},
      {R"([{"layers":3},{"layers":4}])", "", {"7 layers", "8"}},
      {R"([{"layers":-1},{"layers":9}])", "", {"/pipeline_stages/0/layers", "-1"}},
      {R"([{"recompute":"some"},{}])", "", {"/pipeline_stages/0/recompute", "\"some\"", "full"}},
      {R"([{"recompute":-2},{}])", "", {"/pipeline_stages/0/recompute", "-2"}},
      {R"([{"offload":1},{}])", "", {"/pipeline_stages/0/offload", "found 1"}},
      {R"([{"offload":{"optimizer":1.5}},{}])",
       "",
       {"/pipeline_stages/0/offload/optimizer", "1.5"}},
      {R"([{"sharding":"zero"},{}])", "", {"/pipeline_stages/0/sharding", "\"zero\""}},
      {R"([{"tensor":2},{}])", "", {"/parallel", "tensor 2 and 1 by stage", "3"}},
      {R"([{"tensor":0},{}])", "", {"/pipeline_stages/0/tensor", "0"}},
      {R"([{"tensor":1.5},{}])", "", {"/pipeline_stages/0/tensor", "1.5"}},
      {R"([{"tensor":3},{}])",
       R"("batch":{"sequence":12},)",
       {"/pipeline_stages/0", "tensor of this stage", "attention heads 4"}},
      {R"([{"sharding":"parameters"},{}])", "", {"/pipeline_stages", "optimizer, gradients"}, none},
      {R"([{"sharding":"none"},{}])",
       R"("sharding":{"level":"optimizer"},)",
       {"/pipeline_stages", "optimizer, gradients"},
       none},
      // The host updates unit by unit what is shared by gradients, and this is a bucket's share.
      {R"([{"offload":{"optimizer":0.5}},{}])",
       R"("sharding":{"level":"optimizer"},)",
       {"pipeline_stages", "unit by unit"},
       none},
  };
  for (const Fault& fault : faults) {
    const Result<Plan> plan = two_stages(fault.stages, fault.more);
    ASSERT_FALSE(plan.ok()) << fault.stages;
    EXPECT_EQ(plan.error().kind, fault.kind) << plan.error().message;
    for (const std::string& part : fault.parts) {
      EXPECT_NE(plan.error().message.find(part), std::string::npos)
          << fault.stages << ": " << plan.error().message;
    }
  }
}

// A stage of its own degree offloads and scales as a plan of that degree.
TEST(PipelineStages, DegreesGoWithScaledLosses) {
  const Result<Json> json =
      parse_json(R"({"parallel":{"pipeline":2},"batch":{"sequence":16},"precision":"fp16",)"
                 R"("sharding":{"level":"parameters"},"offload":{"optimizer":"cpu"},)"
                 R"("pipeline_stages":[{"tensor":4},{"tensor":2}]})",
                 "run.json");
  const Plan plan = must_read(read_plan(json.value(), "run.json", small_llama(), 12));
  EXPECT_EQ(plan.data, 2);
  EXPECT_EQ(plan_of_stage(plan, 0).unscales, plan.unscales);
}

// What stages with tensor degrees of their own do not go with is named, each at its key.
TEST(PipelineStages, DegreesOfTheirOwnHaveLimits) {
  struct Limit {
    const char* parallel;
    std::vector<std::string> parts;
  };
  const std::vector<Limit> limits = {
      {R"("tensor":2)", {"/model", "tied across stages of two degrees"}},
      {R"("tensor":2,"rank_order":"pp-tp-dp")", {"/parallel/rank_order", "does not end with pp"}},
      {R"("tensor":4,"tensor_mode":"2d","sequence":false)", {"/parallel/tensor_mode", "1d"}},
  };
  for (const Limit& limit : limits) {
    const std::string run = std::string(R"({"parallel":{"pipeline":2,)") + limit.parallel +
                            R"(},"batch":{"sequence":16,"micro":4},)" +
                            R"("pipeline_stages":[{"tensor":4},{"tensor":2}]})";
    const Result<Json> json = parse_json(run, "run.json");
    ASSERT_TRUE(json.ok()) << json.error().message;
    Model model = small_llama();
    model.tied_embeddings = &limit == &limits.front();
    const Result<Plan> plan = read_plan(json.value(), "run.json", model, 6);
    ASSERT_FALSE(plan.ok()) << run;
    EXPECT_EQ(plan.error().kind, ErrorKind::kUnsupported) << plan.error().message;
    for (const std::string& part : limit.parts) {
      EXPECT_NE(plan.error().message.find(part), std::string::npos) << plan.error().message;
    }
  }
}

// Tied tables stand on the first and the last stage, which share them in one way.
TEST(PipelineStages, TiedTablesNeedOneLevel) {
  Model model = small_llama();
  model.tied_embeddings = true;
  const Result<Plan> plan = two_stages(R"([{"sharding":"parameters"},{}])",
                                       R"("sharding":{"level":"optimizer"},)", model);
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.error().message.find("tie_word_embeddings"), std::string::npos)
      << plan.error().message;
}

}  // namespace
}  // namespace foretrain
