// Small configs of hybrid models and of attention with more than heads, trained by `execute`: the
// losses of several ranks are those of one.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/cli/run_command.h"

namespace foretrain {
namespace {

/// Nemotron-H: Mamba-2, attention and MLPs of squared ReLUs in layers of their own.
constexpr const char* kNemotronH = R"({
  "model_type": "nemotron_h", "hybrid_override_pattern": "M-*-", "num_hidden_layers": 4,
  "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
  "intermediate_size": 48, "vocab_size": 96, "mamba_num_heads": 8, "mamba_head_dim": 8,
  "ssm_state_size": 8, "n_groups": 2, "conv_kernel": 4, "chunk_size": 8})";

/// Granite 4: Mamba-2 or attention without positions, experts and a shared one.
constexpr const char* kGranite = R"({
  "model_type": "granitemoehybrid", "num_hidden_layers": 4, "hidden_size": 32,
  "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 16, "vocab_size": 96,
  "position_embedding_type": "nope", "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8,
  "mamba_n_groups": 2, "mamba_d_conv": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
  "shared_intermediate_size": 16, "tie_word_embeddings": true,
  "layer_types": ["mamba", "mamba", "attention", "mamba"]})";

/// Qwen3-Next: three delta nets to one gated attention, experts and a gated shared one.
constexpr const char* kQwen3Next = R"({
  "model_type": "qwen3_next", "num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 8, "partial_rotary_factor": 0.25, "vocab_size": 96,
  "intermediate_size": 48, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
  "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
  "full_attention_interval": 4, "num_experts": 4, "num_experts_per_tok": 2,
  "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "decoder_sparse_step": 1})";

/// LFM2: gated short convolutions and attention with norms of queries and keys.
constexpr const char* kLfm2 = R"({
  "model_type": "lfm2", "num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 4,
  "num_key_value_heads": 2, "intermediate_size": 48, "block_auto_adjust_ff_dim": false,
  "vocab_size": 96, "conv_L_cache": 3,
  "layer_types": ["conv", "conv", "full_attention", "conv"]})";

/// Gemma 2: norms before and behind branches, windows in every other layer, soft caps.
constexpr const char* kGemma2 = R"({
  "model_type": "gemma2", "num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "vocab_size": 96,
  "sliding_window": 4, "attn_logit_softcapping": 0.5, "final_logit_softcapping": 0.5})";

/// GPT-OSS: attention with sinks, within windows in every other layer; experts with biases.
constexpr const char* kGptOss = R"({
  "model_type": "gpt_oss", "num_hidden_layers": 4, "hidden_size": 32, "head_dim": 8,
  "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 16, "vocab_size": 96,
  "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4})";

class ExecutedHybrids : public ::testing::TestWithParam<const char*> {
 protected:
  /// Losses of three steps.
  std::vector<double> losses(const std::vector<std::string>& more) {
    const std::string model = GetParam();
    const bool sparse = model.find("_experts") != std::string::npos;
    x_place.write(
        "run.json",
        R"({"name": "small", "model": )" + model +
            (sparse ? R"(, "moe": {"routing": "balanced"}, "parallel": {"expert_tensor": 1})"
                    : "") +
            R"(, "cluster": {"preset": "host", "accelerators": 1},
                                  "batch": {"global": 8, "micro": 1, "sequence": 16},
                                  "precision": "fp32"})");
    std::vector<std::string> arguments = {"execute", "run.json", "--steps", "3", "--json", "-"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult result = x_place.run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const Result<Json> json = parse_json(result.out, "stdout");
    std::vector<double> out;
    if (!json.ok()) return out;
    const Json steps = at(json.value(), "steps");
    for (const Json& step : *steps.array()) out.push_back(at(step, "loss").number());
    return out;
  }
  Workplace x_place;
};

TEST_P(ExecutedHybrids, TrainAsOneRank) {
  const std::vector<double> one = losses({});
  ASSERT_EQ(one.size(), 3);
  EXPECT_NEAR(one[0], std::log(96), 0.3);
  const std::vector<std::vector<std::string>> plans = {
      {"--ranks", "2", "--threads", "--set", "parallel.tensor=2"},
      {"--ranks", "2", "--threads", "--set", "parallel.pipeline=2"},
      {"--ranks", "4", "--threads", "--set", "parallel.tensor=2"}};
  for (const std::vector<std::string>& plan : plans) {
    const std::vector<double> many = losses(plan);
    ASSERT_EQ(many.size(), one.size());
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(many[i] / one[i], 1, 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExecutedHybrids,
                         ::testing::Values(kNemotronH, kGranite, kQwen3Next, kLfm2, kGemma2,
                                           kGptOss));

}  // namespace
}  // namespace foretrain
