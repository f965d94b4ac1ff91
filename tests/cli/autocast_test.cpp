// torch.autocast from the command line: what it is refused with, and where a system's default goes.
#include <gtest/gtest.h>

#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

const char* const kAutocastRun = R"({"model": "llama-3-8b", "cluster": {"preset": "dgx-h100",
    "accelerators": 8}, "batch": {"global": 16, "sequence": 2048}, "parallel": {"pipeline": 8}})";

struct RefusedWith {
  std::vector<std::string> sets;
  const char* why;
};

TEST(AutocastCommand, ThatIsNotModelled) {
  const Workplace place;
  place.write("run.json", kAutocastRun);
  const std::vector<RefusedWith> refused = {
      {{"parallel.pipeline=4", "parallel.tensor=2"}, "tensor parallelism"},
      {{"parallel.pipeline=4", "parallel.context=2"}, "context parallelism"},
      {{"parallel.pipeline=1", "sharding.level=gradients"}, "sharded gradients or parameters"},
      {{"parallel.pipeline=1", "sharding.level=parameters"}, "sharded gradients or parameters"},
      {{"recompute={\"modules\":[\"mlp\"]}"}, "other than attention's core"},
      {{"recompute={\"modules\":[\"layer\"],\"keep\":[\"qkv\"]}"}, "parts of a layer"},
      {{"recompute={\"co_shard\":2}"}, "recomputation of parts of a layer"},
      {{"schedule=1f1b-vocab-1"}, "a vocabulary that all stages share"},
      {{"schedule=3f1b"}, "passes that come back"},
      {{"precision=fp8"}, "linears in less than 16 bits"},
      {{"model=mixtral-8x7b"}, "experts"},
      {{"model=qwen3-32b"}, "norms of queries and keys"},
      {{"model=t5-small", "parallel.pipeline=1"}, "encoder-decoders"}};
  for (const RefusedWith& one : refused) {
    const CommandResult result =
        place.run(with_sets({"simulate", "run.json", "--set", "kernels.autocast=true"}, one.sets));
    expect_refused(place, result, {"/kernels/autocast", "is not modelled", one.why});
  }
  place.write("images.json", R"({"model": "resnet-50", "precision": "fp16",
      "cluster": {"preset": "dgx-h100", "accelerators": 8}, "kernels": {"autocast": true}})");
  expect_refused(place, place.run({"simulate", "images.json"}),
                 {"/kernels/autocast", "is not modelled", "networks of layers"},
                 {"images.json", "run.json"});
  const CommandResult wrong = place.run({"simulate", "run.json", "--set", "kernels.autocast=1"});
  expect_refused(place, wrong, {"/kernels/autocast", "found 1", "true, false or \"auto\""},
                 {"images.json", "run.json"});
}

/// Casts in the listing of rank 0's Program.
bool casts(const Workplace& place, const std::vector<std::string>& sets) {
  const CommandResult shown = place.run(with_sets({"show", "run.json", "--program", "0"}, sets));
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_EQ(shown.err.find("autocast"), std::string::npos) << shown.err;
  return shown.out.find(".cast_weight") != std::string::npos;
}

// What attention's core computes again casts as before: it takes time and saves memory.
TEST(AutocastCommand, AttentionAgainTakesLonger) {
  const Workplace place;
  place.write("bert.json", R"({"model": "bert-large", "precision": "fp16",
    "cluster": {"preset": "dgx-a100-80gb", "accelerators": 8}, "system": "pytorch-ddp",
    "batch": {"global": 2048, "micro": 256, "sequence": 128}, "kernels": {"attention": "unfused",
    "fusion": "fused"}})");
  const Json none = simulated(place, "bert.json", {"recompute=none"});
  const Json again = simulated(place, "bert.json", {"recompute=selective"});
  EXPECT_GT(at(again, "iteration_time_s").number(), at(none, "iteration_time_s").number());
  EXPECT_LT(at(again, "memory/peak_gib").number(), at(none, "memory/peak_gib").number());
}

// A Trainer in 16 bits is autocast, one in fp32 is not; where it is not modelled nobody is told.
TEST(AutocastCommand, IsTheTrainersDefault) {
  const Workplace place;
  place.write("run.json", kAutocastRun);
  const std::string trainer = "system=transformers";
  EXPECT_TRUE(casts(place, {trainer, "precision=bf16"}));
  EXPECT_TRUE(casts(place, {trainer, "precision=fp16", "recompute=full"}));
  EXPECT_FALSE(casts(place, {trainer}));
  EXPECT_FALSE(casts(place, {trainer, "precision=bf16", "kernels.autocast=false"}));
  EXPECT_FALSE(casts(place, {trainer, "precision=bf16", "model=mixtral-8x7b"}));
  EXPECT_FALSE(casts(place, {"precision=bf16"}));
  EXPECT_TRUE(casts(place, {"precision=bf16", "kernels.autocast=true"}));
}

}  // namespace
}  // namespace foretrain
