// Do releases of a system lie between the system and the RUN?
#include <gtest/gtest.h>

#include "hardware/presets.h"
#include "models/layers/layer.h"
#include "tests/cli/run_command.h"
#include "tools/predict/defaults.h"
#include "tools/score/score.h"

namespace foretrain {
namespace {

constexpr const char* kOnFour = R"({
  "model": {"preset": "qwen3-30b-a3b", "num_hidden_layers": 4},
  "cluster": {"preset": "dgx-h100", "accelerators": 8}, "parallel": {"expert": 8})";

Result<Run> run_with(const std::string& more, const std::vector<std::string>& sets = {}) {
  const Result<Json> json = parse_json(kOnFour + more + "}", "run.json");
  return json.ok() ? resolve_run(json.value(), "run.json", sets) : Result<Run>(json.error());
}

bool says(const Run& run, const std::string& text) {
  for (const std::string& note : run.notes) {
    if (note.find(text) != std::string::npos) return true;
  }
  return false;
}

TEST(Software, LiesOverTheSystemAndUnderTheRun) {
  const auto run = run_with(R"(, "software": "nemo-25.11")");
  ASSERT_TRUE(run.ok()) << run.error().message;
  EXPECT_EQ(run.value().origins.at("/moe"), "software nemo-25.11");
  EXPECT_EQ(run.value().plan.experts.routing, Routing::kBalanced);
  EXPECT_TRUE(run.value().plan.experts.fused_router);
  const auto own = run_with(R"(, "software": "nemo-25.11", "moe": {"routing": "natural"})");
  ASSERT_TRUE(own.ok()) << own.error().message;
  EXPECT_EQ(own.value().plan.experts.routing, Routing::kNatural);
  EXPECT_TRUE(own.value().plan.experts.fused_router);
  // Without one the system is as it is.
  const auto today = run_with("");
  ASSERT_TRUE(today.ok()) << today.error().message;
  EXPECT_FALSE(today.value().plan.experts.fused_router);
}

TEST(Software, FindsTheReleaseOfADate) {
  const auto run = run_with(R"(, "software": "2025-11")");
  ASSERT_TRUE(run.ok()) << run.error().message;
  EXPECT_TRUE(says(run.value(), "taken as megatron-core-0.14"));
  const auto old = run_with(R"(, "software": "2019")");
  ASSERT_TRUE(old.ok()) << old.error().message;
  EXPECT_TRUE(says(old.value(), "no release of megatron-lm is described that is as old"));
}

TEST(Software, RefusesWhatIsNoReleaseOfTheSystem) {
  const auto unknown = run_with(R"(, "software": "nemo-25.1")");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("did you mean \"nemo-25.11\""), std::string::npos)
      << unknown.error().message;
  const auto other = run_with(R"(, "software": "torchtitan-2025-06")");
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message.find("a release of torchtitan, not of megatron-lm"),
            std::string::npos)
      << other.error().message;
  EXPECT_FALSE(run_with(R"(, "software": 25)").ok());
}

// A date is a text, as --set reads it too, and a whole number is a year.
TEST(Software, TakesDatesFromTheCommandLine) {
  for (const char* set : {"software=2025-11", "software=2025"}) {
    const auto run = run_with("", {set});
    ASSERT_TRUE(run.ok()) << set << ": " << run.error().message;
    EXPECT_TRUE(says(run.value(), "taken as megatron-core-0.1")) << set;
  }
  EXPECT_TRUE(run_with(R"(, "software": 2025)").ok());
}

TEST(Software, SaysWhatAReleaseHasNot) {
  const auto run = run_with(R"(, "software": "nemo-25.09", "moe": {"dispatcher": "hybridep"})");
  ASSERT_TRUE(run.ok()) << run.error().message;
  EXPECT_TRUE(says(run.value(), "nemo-25.09 has no moe.dispatcher"));
  const auto cut = run_with(R"(, "software": "dgxc-24.11.1")",
                            {"parallel.tensor=2", "parallel.expert=4", "parallel.expert_tensor=1"});
  ASSERT_TRUE(cut.ok()) << cut.error().message;
  EXPECT_TRUE(says(cut.value(), "expert_tensor"));
  EXPECT_EQ(unlike_release(cut.value()).size(), 1U);
}

/// A model on eight accelerators of a preset.
Result<Run> attention_with(const std::string& model, const std::string& cluster,
                           const std::string& more) {
  const std::string text = R"({"batch": {"global": 8, "micro": 1}, "parallel": {"expert": 8}, )"
                           R"("model": ")" +
                           model + R"(", "cluster": {"preset": ")" + cluster +
                           R"(", "accelerators": 8})" + more + "}";
  return resolve_run(parse_json(text, "run.json").value(), "run.json", {});
}

// What a release's fused kernels lack is taken as unfused, unless the RUN says otherwise.
TEST(Software, StoresScoresWhereNoFusedKernelHasTheAttention) {
  const auto kernel = [](const auto& run) {
    EXPECT_TRUE(run.ok()) << (run.ok() ? "" : run.error().message);
    return run.value().plan.attention;
  };
  const std::string spring = R"(, "software": "nemo-25.04")";
  const auto latent = attention_with("deepseek-v2", "gb200-nvl72", spring);
  EXPECT_EQ(kernel(latent), AttentionKernel::kUnfused);
  EXPECT_TRUE(says(latent.value(),
                   "kernels.attention: unfused, as software nemo-25.04 on blackwell has no fused "
                   "kernel for latent attention"));
  // The dropout of GPT's time does not come with it.
  EXPECT_EQ(dropout_of(latent.value().model, latent.value().plan).attention, 0);
  EXPECT_NE(kernel(attention_with("deepseek-v2", "dgx-h100", spring)), AttentionKernel::kUnfused);
  EXPECT_NE(kernel(attention_with("qwen3-30b-a3b", "gb200-nvl72", spring)),
            AttentionKernel::kUnfused);
  EXPECT_NE(kernel(attention_with("deepseek-v2", "gb200-nvl72", R"(, "software": "nemo-25.11")")),
            AttentionKernel::kUnfused);
  EXPECT_NE(kernel(attention_with("deepseek-v2", "gb200-nvl72",
                                  spring + R"(, "kernels": {"attention": "cudnn"})")),
            AttentionKernel::kUnfused);
  const auto sinks = attention_with("gpt-oss-20b", "dgx-h100", R"(, "software": "nemo-25.09")");
  EXPECT_EQ(kernel(sinks), AttentionKernel::kUnfused);
  EXPECT_TRUE(says(sinks.value(), "software nemo-25.09 has no fused kernel for attention sinks"));
}

// Every file is of a system there is, and its keys can be laid over the system's.
TEST(Software, EveryReleaseIsARelease) {
  const std::vector<std::string> names = preset_names("software");
  EXPECT_GE(names.size(), 30U);
  for (const std::string& name : names) {
    const Json file = load_preset("software", name, "test", "/software").value().json;
    const std::string system = *file.find("system")->string();
    const std::string text =
        R"({"model": "llama-3-8b", "cluster": {"preset": "dgx-h100", "accelerators": 8},)"
        R"( "system": ")" +
        system + R"(", "software": ")" + name + "\"}";
    const auto run = resolve_run(parse_json(text, "run.json").value(), "run.json", {});
    EXPECT_TRUE(run.ok()) << name << ": " << (run.ok() ? "" : run.error().message);
  }
}

TEST(Software, RowsSayWhatTheirSourceRan) {
  EXPECT_EQ(software_called("~nemo-25.09", "megatron-lm"), "nemo-25.09");
  EXPECT_EQ(software_called("nemo-24.07+vboost", "megatron-lm"), "nemo-24.07");
  // The last of the family that is not younger, else the date.
  EXPECT_EQ(software_called("nemo-25.10", "megatron-lm"), "nemo-25.09");
  EXPECT_EQ(software_called("~torchtitan-2024", "torchtitan"), "torchtitan-2024-12");
  EXPECT_EQ(software_called("~llm-foundry-2024-01", "composer"), "2024-01");
  EXPECT_EQ(software_called("mlperf-5.1", "megatron-lm"), "");
}

}  // namespace
}  // namespace foretrain
