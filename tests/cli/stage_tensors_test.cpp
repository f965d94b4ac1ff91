// Stages with tensor degrees of their own: what verbs say of them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cli/run_command.h"
#include "tools/predict/predict.h"
#include "tools/predict/run_file.h"
#include "tools/search/search.h"

namespace foretrain {
namespace {

Json written(int accelerators, const std::string& stages) {
  const std::string text = R"({"model": {"model_type": "llama", "num_hidden_layers": 12,
      "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 8,
      "intermediate_size": 5632, "vocab_size": 32000},
      "cluster": {"preset": "dgx-h100", "accelerators": )" +
                           std::to_string(accelerators) +
                           R"(}, "batch": {"global": 24, "micro": 1, "sequence": 4096},
      "parallel": {"pipeline": 2}, "pipeline_stages": )" +
                           stages + "}";
  return parse_json(text, "a RUN").value();
}

Prediction predicted(const Json& run, const std::vector<std::string>& sets = {}) {
  const Result<foretrain::Run> resolved = resolve_run(run, "RUN", sets);
  EXPECT_TRUE(resolved.ok()) << resolved.error().message;
  if (!resolved.ok()) return {};
  const Result<Prediction> out = predict(resolved.value(), {});
  EXPECT_TRUE(out.ok()) << out.error().message;
  return out.ok() ? out.value() : Prediction();
}

// Degrees that are all one are no others than parallel.tensor.
TEST(StageTensors, AlikeAreThePlans) {
  const std::vector<std::string> unsaid = {"pipeline_stages=null", "parallel.tensor=2"};
  for (const char* more : {"batch.micro=1", "overlap.tensor=true", "schedule=zb-v"}) {
    const Prediction own = predicted(written(8, R"([{"tensor":2},{"tensor":2}])"), {more});
    std::vector<std::string> sets = unsaid;
    sets.emplace_back(more);
    const Prediction plan = predicted(written(8, "null"), sets);
    EXPECT_EQ(own.iteration_time_s, plan.iteration_time_s) << more;
    EXPECT_EQ(own.memory.peak_gib, plan.memory.peak_gib) << more;
    EXPECT_EQ(own.hfu, plan.hfu) << more;
  }
}

// Every rank does its stage's work: where nothing is computed again, little beside the model's.
TEST(StageTensors, CountTheWorkOfEveryRank) {
  const Prediction even = predicted(written(24, R"([{"tensor":4},{"tensor":4}])"));
  for (const char* stages : {R"([{"tensor":1},{"tensor":2}])", R"([{"tensor":8},{"tensor":4}])",
                             R"([{"tensor":2},{"tensor":4}])"}) {
    const Prediction own = predicted(written(24, stages));
    EXPECT_NEAR(own.hfu / own.mfu, even.hfu / even.mfu, 0.003) << stages;
  }
}

// Ranks that share out a message to one rank exchange nothing: they need no communicator.
TEST(StageTensors, HaveNoCommunicatorsThatNothingUses) {
  const auto buffers = [](const std::string& sequence) {
    const Prediction out =
        predicted(written(6, R"([{"tensor":4,"layers":12},{"tensor":2,"layers":0}])"),
                  {"parallel.sequence=" + sequence, "batch.micro=2"});
    EXPECT_LT(out.memory.peak_rank, 4);
    return out.memory.communication_gib;
  };
  EXPECT_EQ(buffers("true"), buffers("false"));
}

// What overlaps on one stage is no key without effect.
TEST(StageTensors, AreNotIdle) {
  Workplace place;
  place.write("run.json", dump_json(written(24, R"([{"tensor":2},{"tensor":4}])"), 2));
  const CommandResult result = place.run({"simulate", "run.json", "--set", "overlap.tensor=true"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err.find("no effect"), std::string::npos) << result.err;
  EXPECT_NE(result.out.find("tensor 2 and 4 by stage with sequence parallelism and its exchanges"),
            std::string::npos)
      << result.out;
}

// All ranks measure collectives at once: four ranks do so in pairs, three do not.
TEST(StageTensors, AreValidatedAgainstOneRank) {
  Workplace place;
  place.write("run.json", R"({"model": {"model_type": "llama", "num_hidden_layers": 4,
      "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4,
      "intermediate_size": 128, "vocab_size": 256}, "cluster": {"preset": "host",
      "accelerators": 4}, "precision": "fp32", "kernels": {"attention": "unfused"},
      "batch": {"global": 4, "micro": 1, "sequence": 16},
      "parallel": {"pipeline": 3}, "pipeline_stages": [{"tensor": 2}, {"tensor": 1}, {}]})");
  const std::vector<std::string> validate = {"validate", "run.json", "--threads",
                                             "--steps",  "2",        "--seconds-per-op",
                                             "0.002",    "--json",   "-"};
  const CommandResult result = place.run(validate);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Result<Json> json = parse_json(result.out, "validate");
  ASSERT_TRUE(json.ok()) << result.out;
  EXPECT_EQ(at(json.value(), "numerics/matches_one_rank"), Json(true));
  const CommandResult three =
      place.run(with_sets(validate, {"cluster.accelerators=3", "parallel.pipeline=2",
                                     R"(pipeline_stages=[{"tensor":2},{"tensor":1}])"}));
  EXPECT_EQ(three.exit_code, 1);
  EXPECT_NE(three.err.find("3 ranks do not divide into groups of 2"), std::string::npos)
      << three.err;
}

// A search of such a RUN knows its stages' degrees: it tries what overlaps, and asks nothing twice.
TEST(StageTensors, AreAQuestionOfTheirOwn) {
  const Json run = written(6, R"([{"tensor":2},{"tensor":4}])");
  SearchOptions options;
  options.space.over = {"overlap", "parallel.tensor"};
  options.budget_s = 1e6;
  const Result<SearchResult> found = search_plans(run, "RUN", options, {});
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_EQ(found.value().certificate.plans, 2);
  const Prediction overlapped = predicted(run, {"overlap.tensor=true"});
  EXPECT_EQ(found.value().plans.front().iteration_time_s,
            std::min(overlapped.iteration_time_s, predicted(run).iteration_time_s));
}

// Conditions and ranges hold for the degrees of stages.
TEST(StageTensors, KeepToConditions) {
  Json run = written(8, "null");
  run.erase("parallel");
  SearchOptions options;
  options.space.free = {"pipeline_stages"};
  options.space.fixed = {"recompute", "sharding.level", "parallel.context", "overlap.tensor"};
  options.conditions = {"parallel.tensor <= 2", "parallel.data == 1"};
  options.budget_s = 1e6;
  const Result<SearchResult> found = search_plans(run, "RUN", options, {});
  ASSERT_TRUE(found.ok()) << found.error().message;
  ASSERT_FALSE(found.value().plans.empty());
  for (const FoundPlan& plan : found.value().plans) {
    const Json* stages = plan.run.find("pipeline_stages");
    if (stages == nullptr) continue;
    for (const Json& stage : *stages->array()) {
      const Json* tensor = stage.find("tensor");
      EXPECT_LE(tensor == nullptr ? 1 : tensor->number(), 2);
    }
  }
}

}  // namespace
}  // namespace foretrain
