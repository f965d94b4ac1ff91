// Packed documents from the command line: what is predicted, what is refused by name.
#include <gtest/gtest.h>

#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

const char* const kDocumentsRun = R"({"model": "mistral-7b", "cluster": {"preset": "dgx-h100",
    "accelerators": 8}, "batch": {"global": 8, "sequence": 8192}, "parallel": {"context": 4},
    "kernels": {"context": "alltoall"}, "sharding": {"level": "optimizer"}})";

TEST(PackedDocuments, ShortenTheStep) {
  const Workplace place;
  place.write("run.json", kDocumentsRun);
  const Json whole = simulated(place, "run.json");
  const Json same = simulated(place, "run.json", {"batch.documents=8192"});
  EXPECT_EQ(at(whole, "iteration_time_s").number(), at(same, "iteration_time_s").number());
  const Json packed = simulated(place, "run.json", {"batch.documents=2048"});
  EXPECT_LT(at(packed, "iteration_time_s").number(), at(whole, "iteration_time_s").number());
  EXPECT_LT(
      at(packed, "model_tflops_per_accelerator").number() * at(packed, "iteration_time_s").number(),
      at(whole, "model_tflops_per_accelerator").number() * at(whole, "iteration_time_s").number());
  const Json list = simulated(place, "run.json", {"batch.documents=[2048,2048,2048,2048]"});
  EXPECT_EQ(at(packed, "iteration_time_s").number(), at(list, "iteration_time_s").number());
}

// Where windows end just inside a document, and where ranks gather all keys.
TEST(PackedDocuments, NeverTakeLongerThanTheWhole) {
  const Workplace place;
  place.write("run.json", kDocumentsRun);
  const std::vector<std::vector<std::string>> plans = {
      {"parallel.context=1", "kernels={}"},
      {"parallel.context=1", "kernels={}", "model.sliding_window=1024"},
      {"model=llama-3-8b", "kernels.context=allgather"},
      {"model=llama-3-8b", "parallel.context=8", "kernels.context=allgather"}};
  for (const std::vector<std::string>& plan : plans) {
    const double whole = at(simulated(place, "run.json", plan), "iteration_time_s").number();
    for (const char* cut : {"[1,8191]", "[616,1,128,471,503,6473]", "[2047,6145]", "1500", "8"}) {
      std::vector<std::string> sets = plan;
      sets.push_back(std::string("batch.documents=") + cut);
      EXPECT_LE(at(simulated(place, "run.json", sets), "iteration_time_s").number(), 1.0001 * whole)
          << plan.back() << " " << cut;
    }
  }
}

// However they are cut, model FLOPs are those of the documents; a ring's ranks have equal work.
TEST(PackedDocuments, GoAroundARing) {
  const Workplace place;
  place.write("run.json", kDocumentsRun);
  const auto with = [&place](const char* exchange, const char* documents) {
    return simulated(place, "run.json",
                     {"model=llama-3-8b", std::string("kernels.context=") + exchange,
                      std::string("batch.documents=") + documents});
  };
  const auto step = [](const Json& json) { return at(json, "iteration_time_s").number(); };
  const auto work = [&step](const Json& json) {
    return at(json, "model_tflops_per_accelerator").number() * step(json);
  };
  for (const char* documents : {"2048", "[6144,1024,1024]"}) {
    const Json ring = with("ring", documents);
    EXPECT_LT(step(ring), step(with("ring", "8192")));
    EXPECT_NEAR(work(ring) / work(with("alltoall", documents)), 1, 1e-9);
  }
}

TEST(PackedDocuments, ThatCannotBe) {
  const Workplace place;
  place.write("run.json", kDocumentsRun);
  const std::vector<std::pair<std::string, const char*>> bad = {
      {"batch.documents=\"many\"", "found \"many\", expected tokens of a document"},
      {"batch.documents=0", "found 0"},
      {"batch.documents=[]", "expected tokens of a document"},
      {"batch.documents=[8191]", "add up to 8191, expected the 8192"},
      {"batch.documents=[8192,0]", "found 0 in the list"},
      {"batch.documents=[4096,4096.5]", "found 4096.5 in the list"}};
  for (const auto& [set, part] : bad) {
    expect_refused(place, place.run({"simulate", "run.json", "--set", set}),
                   {"/batch/documents", part});
  }
  const std::vector<std::pair<std::vector<std::string>, const char*>> together = {
      {{"kernels.context=ring", "model=llama-3-8b", "batch.documents=[4100,4092]"},
       "a document of 4100 tokens is not a multiple of twice context 4, as a ring cuts each into 8 "
       "chunks: give padded lengths, or set kernels.context to allgather or alltoall"},
      {{"kernels.context=allgather"}, "sliding windows"},
      {{"model=t5-base", "parallel.context=1", "kernels={}"}, "not for both in one"}};
  for (const auto& [sets, part] : together) {
    const CommandResult result =
        place.run(with_sets({"simulate", "run.json", "--set", "batch.documents=2048"}, sets));
    expect_refused(place, result, {part});
  }
}

}  // namespace
}  // namespace foretrain
