// Are the keys that other systems' names are said to be keys that a RUN has?
#include <gtest/gtest.h>

#include "tools/predict/key_names.h"
#include "tools/predict/run_file.h"

namespace foretrain {
namespace {

TEST(KeyNames, AreOfKeysThatExist) {
  const Json run = parse_json(R"({"model": "llama-3-8b",
      "cluster": {"preset": "dgx-h100", "accelerators": 8}})",
                              "test")
                       .value();
  for (const auto& [name, ours] : names_of_others()) {
    std::string key = ours.substr(0, ours.find_first_of(" ,:"));
    if (key == "not") key = "cluster.accelerators";  // that it is not set
    const auto read = resolve_run(run, "test", {key + "=no such value"});
    ASSERT_FALSE(read.ok()) << name;
    EXPECT_EQ(read.error().message.find("unknown key"), std::string::npos)
        << name << ": " << read.error().message;
    // And no key of ours is another's name.
    const auto theirs = resolve_run(run, "test", {name + "=1"});
    ASSERT_FALSE(theirs.ok()) << name;
    EXPECT_NE(theirs.error().message.find("unknown key; here it is "), std::string::npos) << name;
  }
}

// What Megatron-LM's arguments are here, wherever they stand, and what they are not.
TEST(KeyNames, ArgumentsOfMegatronAreAnswered) {
  const Json run = parse_json(R"({"model": "llama-3-8b",
      "cluster": {"preset": "dgx-h100", "accelerators": 8}})",
                              "test")
                       .value();
  for (const auto& [set, answer] :
       {std::pair("clip_grad=1", "gradients.clip_norm"),
        std::pair("gradients.clip_grad=1", "gradients.clip_norm"),
        std::pair("gradients.grad_reduce_in_bf16=true", "gradients.dtype"),
        std::pair("kernels.fp8_param_gather=true", "kernels.fp8_weights"),
        std::pair("recompute_method=full", "here recompute"),
        std::pair("kernels.attention_backend=fused", "kernels.attention"),
        std::pair("moe.num_experts=8", "model's config.json"),
        std::pair("cross_entropy_loss_fusion=true", "kernels.loss"),
        std::pair("empty_unused_memory_level=1", "emptying the allocator's cache"),
        std::pair("rampup_batch_size=1", "campaign.batch_ramp")}) {
    const auto read = resolve_run(run, "test", {set});
    ASSERT_FALSE(read.ok()) << set;
    EXPECT_NE(read.error().message.find(answer), std::string::npos)
        << set << ": " << read.error().message;
  }
  const auto type = resolve_run(run, "test", {"gradients.reduce_dtype=bf16"});
  ASSERT_FALSE(type.ok());
  EXPECT_NE(type.error().message.find("bf16 is compute here"), std::string::npos);
  // A name that is nobody's is only refused.
  const auto none = resolve_run(run, "test", {"kernels.no_such_name_anywhere=1"});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().message.find("Megatron"), std::string::npos);
}

// A run that a framework would refuse, or a model has not seen, is simulated with a note.
TEST(KeyNames, UnevenStagesAndLongSequencesAreNoted) {
  const Json run = parse_json(R"({"model": {"model_type": "llama", "num_hidden_layers": 32,
      "hidden_size": 1024, "num_attention_heads": 8, "intermediate_size": 2048, "vocab_size": 1024,
      "max_position_embeddings": 4096}, "cluster": {"preset": "dgx-h100", "accelerators": 8},
      "parallel": {"pipeline": 4}, "batch": {"global": 16, "micro": 1, "sequence": 4096}})",
                              "test")
                       .value();
  const auto notes = [&run](const std::vector<std::string>& sets) {
    std::string all;
    const auto read = resolve_run(run, "test", sets);
    EXPECT_TRUE(read.ok()) << (read.ok() ? "" : read.error().message);
    if (!read.ok()) return all;
    for (const std::string& note : read.value().notes) all += note + "\n";
    return all;
  };
  EXPECT_EQ(notes({}).find("max_position_embeddings"), std::string::npos);
  EXPECT_EQ(notes({}).find("do not divide"), std::string::npos);
  EXPECT_NE(notes({"batch.sequence=8192"}).find("8192 is longer than the model's"),
            std::string::npos);
  EXPECT_NE(notes({"parallel.virtual_pipeline=3"}).find("32 layers do not divide by 12 chunks"),
            std::string::npos);
}

}  // namespace
}  // namespace foretrain
