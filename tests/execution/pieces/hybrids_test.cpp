// Small models of several mixers: they learn, and as one rank does under every plan.
#include <gtest/gtest.h>

#include "executor/cuda/device.h"
#include "models/lower.h"
#include "tests/execution/derivatives.h"
#include "tests/execution/one_rank.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

/// Qwen3-Next in small: three delta nets to one gated attention with norms of queries and keys that
/// turns a part of a head, experts behind each and a gated shared one.
Model small_qwen3_next() {
  Model model = narrowed(small_moe(), 4);
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 8;
  model.qk_norm = true;
  model.attention.gate = OutputGate::kElements;
  model.attention.rotary_share = 0.25;
  model.experts = Experts{4, 2, 8, 8, 0, 1, false};
  model.experts.more.shared_gate = true;
  model.hybrid.delta.key_heads = 2;
  model.hybrid.delta.value_heads = 4;
  model.hybrid.delta.key_dim = model.hybrid.delta.value_dim = 4;
  model.hybrid.delta.chunk = 4;
  for (int layer = 0; layer < 4; ++layer) {
    model.hybrid.layers.push_back(
        {layer == 3 ? Mixer::kAttention : Mixer::kDelta, FeedForward::kExperts});
  }
  return model;
}

/// Granite 4 in small: Mamba-2 and, in one layer, attention without positions; experts and a shared
/// one behind each.
Model small_granite4() {
  Model model = narrowed(small_moe(), 4);
  model.position = Position::kNone;
  model.experts = Experts{4, 2, 8, 8, 0, 1, false};
  model.hybrid.state_space = {8, 4, 4, 2, 4, 4};
  for (int layer = 0; layer < 4; ++layer) {
    model.hybrid.layers.push_back(
        {layer == 2 ? Mixer::kAttention : Mixer::kMamba2, FeedForward::kExperts});
  }
  return model;
}

Plan sparse_plan(const Model& model, PlanDegrees degrees) {
  Plan plan = in_fp32(small_plan(model, degrees, 2));
  plan.sequence_length = 16;
  plan.sequence = plan.tensor > 1;
  plan.experts.expert = degrees.data > 1 ? 2 : 1;
  return plan;
}

TEST(Hybrids, WithExpertsTrainAsOneRank) {
  for (const Model& model : {small_qwen3_next(), small_granite4()}) {
    for (const PlanDegrees degrees :
         {PlanDegrees{2, 1, 1, 1}, PlanDegrees{1, 2, 1, 2}, PlanDegrees{2, 1, 1, 2}}) {
      expect_as_one_rank(model, sparse_plan(model, degrees));
    }
    Plan sharded = sparse_plan(model, {1, 1, 1, 2});
    sharded.experts.expert = 1;
    sharded.sharding = Sharding::kParameters;
    sharded.units.reduce = DType::kFp32;
    expect_as_one_rank(model, sharded);
  }
}

TEST(Hybrids, WithExpertsHaveTheGradientsOfTheirLoss) {
  for (Model model : {small_qwen3_next(), small_granite4()}) {
    Plan plan = plan_of(model, AttentionKernel::kFlash, 0);
    plan.sequence_length = 8;
    expect_derivatives(model, plan);
  }
}

/// GPT-OSS in small: sinks, windows in every other layer, biases of queries, keys and values, of
/// the router and of experts.
Model small_gpt_oss() {
  Model model = narrowed(small_moe(), 4);
  model.kv_heads = 2;
  model.attention.sinks = true;
  model.biases.qkv = model.biases.projection = true;
  model.sliding_window = 4;
  model.full_attention = {false, true, false, true};
  model.experts = Experts{4, 2, 8, 0, 0, 1, false};
  model.experts.router_bias = model.experts.bias = true;
  return model;
}

TEST(Hybrids, AttentionWithSinksBeforeExpertsTrainsAsOneRank) {
  for (const PlanDegrees degrees :
       {PlanDegrees{2, 1, 1, 2}, PlanDegrees{1, 2, 1, 2}, PlanDegrees{1, 1, 1, 4}}) {
    expect_as_one_rank(small_gpt_oss(), sparse_plan(small_gpt_oss(), degrees));
  }
}

// What the device has no kernel for it says before anything starts.
TEST(Hybrids, AreRefusedOfTheDeviceByName) {
  const auto refusal = [](const Model& model) {
    const Status status = check_device_executable(lower(model, sparse_plan(model, {})));
    EXPECT_FALSE(status.ok());
    return status.ok() ? "" : status.error().message;
  };
  EXPECT_NE(refusal(small_qwen3_next()).find("CUDA backend cannot execute delta.in"),
            std::string::npos);
  EXPECT_NE(refusal(small_granite4()).find("CUDA backend cannot execute mamba.in"),
            std::string::npos);
  EXPECT_NE(refusal(small_gpt_oss()).find("no attention with sinks or soft caps"),
            std::string::npos);
  Model model = narrowed(small_llama(), 2);
  model.ends.logit_cap = 30;
  EXPECT_NE(refusal(model).find("no soft caps of logits"), std::string::npos);
  model = narrowed(small_llama(), 2);
  model.norms.weights = false;
  EXPECT_NE(refusal(model).find("no norms without weights"), std::string::npos);
  model = narrowed(small_llama(), 2);
  model.hybrid.layers.assign(2, {Mixer::kConv});
  EXPECT_NE(refusal(model).find("conv.gated"), std::string::npos);
  model = narrowed(small_llama(), 2);
  model.activation = Activation::kGeglu;
  EXPECT_NE(refusal(model).find("no kernel for these types"), std::string::npos);
}

}  // namespace
}  // namespace foretrain
