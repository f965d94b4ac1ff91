// Do the readers of models and plans take what is right and name what is wrong?
#include <gtest/gtest.h>

#include "models/plan/plan.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

Result<Model> model_of(const std::string& text) {
  const Result<Json> json = parse_json(text, "model.json");
  if (!json.ok()) return json.error();
  return read_model(json.value(), "model.json", "");
}

template <typename T>
void expect_error(const Result<T>& result, const std::vector<std::string>& parts,
                  ErrorKind kind = ErrorKind::kInput) {
  ASSERT_FALSE(result.ok()) << "expected an error with " << parts.front();
  EXPECT_EQ(result.error().kind, kind) << result.error().message;
  for (const std::string& part : parts) {
    EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
  }
}

const char* const kNative =
    "\"num_hidden_layers\":4,\"hidden_size\":64,\"num_attention_heads\":4,\"vocab_size\":100,"
    "\"intermediate_size\":128,\"max_position_embeddings\":32";

std::string native(const std::string& type, const std::string& more = "") {
  return "{\"model_type\":\"" + type + "\"," + kNative + more + "}";
}

TEST(ReadModel, EveryType) {
  struct Case {
    const char* type;
    Norm norm;
    Activation activation;
    Position position;
    bool tied, bias;
  };
  const std::vector<Case> cases = {
      {"gpt2", Norm::kLayerNorm, Activation::kGelu, Position::kLearned, true, true},
      {"gpt_neox", Norm::kLayerNorm, Activation::kGelu, Position::kRope, false, true},
      {"opt", Norm::kLayerNorm, Activation::kRelu, Position::kLearned, true, true},
      {"bloom", Norm::kLayerNorm, Activation::kGelu, Position::kAlibi, true, true},
      {"llama", Norm::kRmsNorm, Activation::kSwiglu, Position::kRope, false, false},
      {"mistral", Norm::kRmsNorm, Activation::kSwiglu, Position::kRope, false, false},
      {"qwen2", Norm::kRmsNorm, Activation::kSwiglu, Position::kRope, false, true},
      {"qwen3", Norm::kRmsNorm, Activation::kSwiglu, Position::kRope, false, false},
      {"nemotron", Norm::kLayerNorm, Activation::kRelu2, Position::kRope, false, false},
      {"mpt", Norm::kLayerNorm, Activation::kGelu, Position::kAlibi, true, false}};
  for (const Case& c : cases) {
    const Result<Model> model = model_of(native(c.type));
    ASSERT_TRUE(model.ok()) << model.error().message;
    const Model& m = model.value();
    EXPECT_EQ(m.norm, c.norm) << c.type;
    EXPECT_EQ(m.activation, c.activation) << c.type;
    EXPECT_EQ(m.position, c.position) << c.type;
    EXPECT_EQ(m.tied_embeddings, c.tied) << c.type;
    EXPECT_EQ(m.biases.qkv, c.bias) << c.type;
    EXPECT_EQ(m.layers, 4);
    EXPECT_EQ(m.head_dim, 16);
  }
  // OPT's table has two rows more.
  EXPECT_EQ(model_of(native("opt")).value().positions, 34);
  EXPECT_TRUE(model_of(native("qwen3")).value().qk_norm);
  EXPECT_TRUE(model_of(native("gpt_neox")).value().parallel_residual);
  EXPECT_FALSE(model_of(native("gpt_neox")).value().shared_norm);
  EXPECT_TRUE(model_of(native("bloom")).value().embedding_norm);
}

TEST(ReadModel, OtherSpellings) {
  const Result<Model> model = model_of(
      "{\"model_type\":\"gpt2\",\"n_layer\":3,\"n_embd\":48,\"n_head\":3,\"vocab_size\":9,"
      "\"n_positions\":16,\"resid_pdrop\":0.5}");
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model.value().layers, 3);
  EXPECT_EQ(model.value().hidden, 48);
  EXPECT_EQ(model.value().intermediate, 192);
  EXPECT_EQ(model.value().positions, 16);
  EXPECT_EQ(model.value().hidden_dropout, 0.5);
}

TEST(ReadModel, OneNormForBothBranches) {
  EXPECT_TRUE(model_of(native("gpt_neox", ",\"num_ln_in_parallel_attn\":1")).value().shared_norm);
  expect_error(model_of(native("llama", ",\"num_ln_in_parallel_attn\":1")),
               {"num_ln_in_parallel_attn", "use_parallel_residual"});
}

TEST(ReadModel, Errors) {
  expect_error(model_of(native("llama", ",\"hiden_size\":3")),
               {"model.json", "hiden_size", "hidden_size"});
  expect_error(model_of(native("lama")), {"lama", "did you mean \"llama\""});
  expect_error(model_of("{}"), {"model_type"});
  expect_error(model_of("[]"), {"model.json"});
  expect_error(model_of("{\"model_type\":\"llama\"}"), {"num_hidden_layers"});
  expect_error(model_of("{\"model_type\":\"llama\",\"num_hidden_layers\":\"eight\"}"),
               {"num_hidden_layers", "\"eight\""});
  expect_error(model_of("{\"model_type\":\"llama\",\"num_hidden_layers\":0}"),
               {"num_hidden_layers", "0"});
  expect_error(model_of("{\"model_type\":\"llama\",\"num_hidden_layers\":1e300}"),
               {"num_hidden_layers"});
  expect_error(model_of(native("llama", ",\"num_key_value_heads\":3")),
               {"num_key_value_heads", "3 does not divide 4"});
  expect_error(model_of("{\"model_type\":\"llama\",\"num_hidden_layers\":4,\"hidden_size\":65,"
                        "\"num_attention_heads\":4,\"vocab_size\":9,\"intermediate_size\":8}"),
               {"4 heads do not divide hidden_size 65"});
  expect_error(model_of("{\"model_type\":\"llama\",\"num_hidden_layers\":1000000000,"
                        "\"hidden_size\":1000000000,\"num_attention_heads\":1,"
                        "\"vocab_size\":9,\"intermediate_size\":1000000000}"),
               {"10^16"});
  expect_error(model_of(native("llama", ",\"attention_dropout\":1.5")), {"attention_dropout"});
}

std::int64_t sparse_of(const Model& m) {
  std::int64_t out = 0;
  for (std::int64_t l = 0; l < m.layers; ++l) out += m.sparse(l) ? 1 : 0;
  EXPECT_EQ(out, m.sparse_layers());
  return out;
}

// As the hub has it, keys that cost nothing among them.
TEST(ReadModel, Grok) {
  const Result<Model> grok = model_of(
      native("grok-1",
             ",\"num_experts\":8,\"num_experts_per_tok\":2,\"attn_output_multiplier\":0.088,"
             "\"max_attn_value\":30.0,\"embedding_multiplier_scale\":78.4,\"hidden_act\":\"gelu\","
             "\"output_multiplier_scale\":0.577,\"output_router_logits\":false"));
  ASSERT_TRUE(grok.ok()) << grok.error().message;
  const Model& m = grok.value();
  EXPECT_EQ(m.experts.width, 128);
  EXPECT_TRUE(m.gated());
  EXPECT_TRUE(m.tied_embeddings);
  EXPECT_EQ(m.activation, Activation::kGeglu);
  EXPECT_TRUE(m.norms.after);
  EXPECT_EQ(sparse_of(m), 4);
}

TEST(ReadModel, Llama4) {
  const char* keys =
      ",\"num_local_experts\":8,\"num_experts_per_tok\":1,\"intermediate_size_mlp\":256,"
      "\"interleave_moe_layer_step\":2,\"attn_temperature_tuning\":true,\"floor_scale\":8192,"
      "\"attn_scale\":0.1,\"no_rope_layers\":[1,1,1,0],\"router_jitter_noise\":0.0,"
      "\"layer_types\":[\"chunked_attention\",\"chunked_attention\",\"chunked_attention\","
      "\"full_attention\"],\"for_llm_compression\":false";
  const Result<Model> model = model_of(native("llama4_text", keys));
  ASSERT_TRUE(model.ok()) << model.error().message;
  const Model& m = model.value();
  EXPECT_EQ(m.experts.width, 128);
  EXPECT_EQ(m.experts.shared_width, 128);
  EXPECT_EQ(m.intermediate, 256);
  EXPECT_EQ(m.attention_chunk, 8192);
  EXPECT_TRUE(m.qk_norm);
  EXPECT_EQ(sparse_of(m), 2);
  EXPECT_TRUE(m.sparse(1));
  const auto with = [keys](const std::string& more) {
    return model_of(native("llama4_text", keys + more));
  };
  EXPECT_EQ(with(",\"attention_chunk_size\":null").value().attention_chunk, 0);
  EXPECT_FALSE(with(",\"use_qk_norm\":false").value().qk_norm);
  const Model listed = with(",\"moe_layers\":[0,2,3]").value();
  EXPECT_EQ(sparse_of(listed), 3);
  EXPECT_FALSE(listed.sparse(1));
  EXPECT_EQ(sparse_of(with(",\"moe_layers\":[]").value()), 0);
  expect_error(with(",\"moe_layers\":[4]"), {"moe_layers", "from 0 to 3"});
}

TEST(ReadModel, Qwen2Moe) {
  const char* keys =
      ",\"num_experts\":8,\"num_experts_per_tok\":4,\"moe_intermediate_size\":32,"
      "\"shared_expert_intermediate_size\":96,\"decoder_sparse_step\":1,"
      "\"norm_topk_prob\":false";
  const auto with = [keys](const std::string& more) {
    return model_of(native("qwen2_moe", keys + more));
  };
  const Result<Model> model = with(",\"mlp_only_layers\":[]");
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_TRUE(model.value().biases.qkv);
  EXPECT_FALSE(model.value().biases.projection);
  EXPECT_EQ(model.value().experts.shared_width, 96);
  EXPECT_EQ(model.value().intermediate, 128);
  EXPECT_EQ(sparse_of(model.value()), 4);
  EXPECT_FALSE(with(",\"qkv_bias\":false").value().biases.qkv);
  const Model some = with(",\"mlp_only_layers\":[0,3]").value();
  EXPECT_EQ(sparse_of(some), 2);
  EXPECT_FALSE(some.sparse(0));
  EXPECT_TRUE(some.sparse(1));
  expect_error(with(",\"mlp_only_layers\":[0.5]"), {"mlp_only_layers"});
}

TEST(ReadModel, Phi3IsALlama) {
  const Result<Model> phi =
      model_of(native("phi3",
                      ",\"hidden_act\":\"silu\",\"resid_pdrop\":0.0,\"embd_pdrop\":0.0,"
                      "\"original_max_position_embeddings\":4096,\"sliding_window\":2047"));
  ASSERT_TRUE(phi.ok()) << phi.error().message;
  const Model llama = model_of(native("llama")).value();
  EXPECT_EQ(layer_parameters(phi.value()), layer_parameters(llama));
  EXPECT_EQ(parameter_count(phi.value()), parameter_count(llama));
}

TEST(ReadModel, WhatIsNotModelledIsUnsupported) {
  expect_error(model_of(native("llama", ",\"num_local_experts\":8")),
               {"models with experts", "mixtral or qwen3_moe"}, ErrorKind::kUnsupported);
}

Result<Plan> plan_of(const std::string& text, std::int64_t accelerators) {
  const Result<Json> json = parse_json(text, "run.json");
  if (!json.ok()) return json.error();
  return read_plan(json.value(), "run.json", small_llama(), accelerators);
}

TEST(ReadPlan, AGoodOne) {
  const Result<Plan> plan = plan_of(
      "{\"parallel\":{\"tensor\":2,\"pipeline\":2,\"virtual_pipeline\":2},"
      "\"batch\":{\"global\":32,\"micro\":2,\"sequence\":64},\"schedule\":\"interleaved-1f1b\","
      "\"sharding\":{\"level\":\"optimizer\"},\"recompute\":\"full\",\"precision\":\"fp16\"}",
      16);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  const Plan& p = plan.value();
  EXPECT_EQ(p.data, 4);
  EXPECT_EQ(p.microbatches(), 4);
  EXPECT_TRUE(p.sequence);
  EXPECT_EQ(p.pipeline_layout, (std::vector<std::int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(p.schedule, Schedule::kInterleaved);
  EXPECT_EQ(p.sharding, Sharding::kOptimizer);
  EXPECT_TRUE(p.recompute.layer);
  EXPECT_EQ(p.precision.compute, DType::kFp16);
}

TEST(ReadPlan, Errors) {
  expect_error(plan_of("{\"parallel\":{\"tensor\":4,\"pipeline\":4}}", 8),
               {"needs 16 accelerators", "has 8"});
  expect_error(plan_of("{\"parallel\":{\"tensor\":3}}", 8), {"does not divide 8"});
  expect_error(plan_of("{\"parallel\":{\"tensor\":8},\"batch\":{\"global\":1,\"sequence\":8}}", 8),
               {"8 does not divide", "attention heads 4"});
  expect_error(plan_of("{\"batch\":{\"global\":3,\"micro\":2}}", 1), {"batch/global", "micro 2"});
  expect_error(plan_of("{\"parallel\":{\"pipeline\":2,\"virtual_pipeline\":2},"
                       "\"schedule\":\"interleaved-1f1b\",\"batch\":{\"global\":3}}",
                       2),
               {"3 microbatches", "multiple of pipeline 2"});
  expect_error(
      plan_of("{\"parallel\":{\"pipeline\":2,\"virtual_pipeline\":2},\"schedule\":\"1f1b\"}", 2),
      {"needs interleaved-1f1b, bfs, a V"});
  expect_error(plan_of("{\"parallel\":{\"pipeline\":11}}", 11), {"11 pipeline chunks", "8 layers"});
  expect_error(plan_of("{\"parallel\":{\"pipeline\":2,\"pipeline_layout\":[4,3]}}", 2),
               {"pipeline_layout", "7 layers", "2 with 8"});
  expect_error(plan_of("{\"parallel\":{\"pipeline\":2,\"pipeline_layout\":[8]}}", 2),
               {"pipeline_layout"});
  expect_error(plan_of("{\"parallel\":{\"pipeline\":2,\"pipeline_layout\":[9,-1]}}", 2),
               {"pipeline_layout", "-1"});
  expect_error(plan_of("{\"parallel\":{\"rank_order\":\"tp-tp-pp\"}}", 1), {"rank_order"});
  expect_error(plan_of("{\"parallel\":{\"tensr\":2}}", 2), {"/parallel", "tensr", "tensor"});
  expect_error(plan_of("{\"paralel\":{}}", 2), {"paralel", "parallel"});
  expect_error(plan_of("{\"parallel\":{\"tensor\":-1}}", 2), {"tensor", "-1"});
  expect_error(plan_of("{\"parallel\":{\"tensor\":2.5}}", 2), {"tensor", "2.5"});
  expect_error(plan_of("{\"schedule\":\"1f1\"}", 1), {"schedule", "1f1b"});
  expect_error(plan_of("{\"recompute\":{\"layers\":2}}", 1), {"recompute"});
  expect_error(plan_of("{\"batch\":{\"global\":9223372036854775807}}", 1), {"global"});
  expect_error(plan_of("{\"parallel\":{\"tensor\":1048576,\"pipeline\":1048576}}", 8),
               {"needs 1099511627776 accelerators"});
  expect_error(plan_of("{\"batch\":{\"global\":1000000000}}", 1),
               {"a hundred million layer passes"});
}

TEST(ReadPlan, NumbersThatMultiplyPastTheLimit) {
  expect_error(plan_of("{\"batch\":{\"global\":1048576,\"micro\":1048576,\"sequence\":67108864},"
                       "\"kernels\":{\"attention\":\"unfused\"}}",
                       1),
               {"more than 4 EB"});
}

TEST(ReadPlan, WhatIsNotModelledIsUnsupported) {
  expect_error(plan_of("{\"precision\":{\"communication\":\"bf16\"}}", 2), {"not modelled yet"},
               ErrorKind::kUnsupported);
}

TEST(ReadPlan, Recycling) {
  const auto with = [](const std::string& schedule, const std::string& more = "") {
    return plan_of("{\"schedule\":" + schedule +
                       ",\"parallel\":{\"pipeline\":2},\"batch\":{\"global\":8}" + more + "}",
                   4);
  };
  EXPECT_EQ(with("\"3f1b\"").value().forwards, 3);
  EXPECT_EQ(with("{\"name\":\"3f1b\"}").value().forwards, 3);
  EXPECT_EQ(with("{\"name\":\"3f1b\",\"forwards\":5}").value().forwards, 5);
  EXPECT_EQ(with("\"1f1b\"").value().forwards, 1);
  EXPECT_EQ(with("{\"name\":\"zb-auto\"}").value().forwards, 1);
  expect_error(with("{\"name\":\"4f1b\"}"), {"/schedule/name", "4f1b", "3f1b"});
  expect_error(plan_of("{\"schedule\":\"3f1b\",\"parallel\":{\"pipeline\":2,"
                       "\"virtual_pipeline\":2},\"batch\":{\"global\":8}}",
                       2),
               {"/schedule", "virtual_pipeline 2"});
}

// What the parts of a layer do not go with.
TEST(ReadPlan, PartsThatDoNotFit) {
  const auto with = [](const std::string& more, const std::string& parallel = "\"tensor\":2",
                       const std::string& keys = "") {
    return plan_of("{\"recompute\":{\"co_shard\":2" + keys + "},\"parallel\":{" + parallel +
                       "},\"batch\":{\"global\":24,\"sequence\":64}" + more + "}",
                   4);
  };
  EXPECT_EQ(with("").value().recompute.parts, 2);
  EXPECT_TRUE(with("", "\"pipeline\":2", ",\"modules\":[\"layernorm\",\"layer\"]").ok());
  expect_error(with("", "\"tensor\":2", ",\"keep\":[\"qkv\"]"), {"/recompute/co_shard", "keep"});
  expect_error(with(",\"schedule\":\"zb-h1\"", "\"pipeline\":2"),
               {"/schedule", "recompute.co_shard"}, ErrorKind::kUnsupported);
  EXPECT_TRUE(with("", "\"context\":2").ok());
  expect_error(with(",\"kernels\":{\"context\":\"alltoall\"}", "\"context\":4"),
               {"/recompute/co_shard", "2 parts x context 4", "heads 4"});
  expect_error(with(",\"overlap\":{\"tensor\":true}", "\"tensor\":2,\"sequence\":true"),
               {"/overlap/tensor", "recompute.co_shard"}, ErrorKind::kUnsupported);
  expect_error(with(",\"overlap\":{\"tensor_slices\":2}", "\"tensor\":2,\"sequence\":false"),
               {"/batch/micro"});
  expect_error(plan_of("{\"recompute\":{\"co_shard\":16}}", 1),
               {"/recompute/co_shard", "16 parts do not divide"});
}

TEST(ReadPlan, SharedVocabularyThatDoesNotFit) {
  const auto with = [](const std::string& more, std::int64_t pipeline = 2) {
    return plan_of("{\"schedule\":\"1f1b-interlaced\",\"parallel\":{\"pipeline\":" +
                       std::to_string(pipeline) + "},\"batch\":{\"global\":8}" + more + "}",
                   4);
  };
  EXPECT_TRUE(with("").ok());
  expect_error(with("", 1), {"/schedule", "1f1b-interlaced needs pipeline > 1"});
  expect_error(with(",\"sharding\":{\"level\":\"gradients\"}"), {"/sharding/level", "all stages"},
               ErrorKind::kUnsupported);
  expect_error(with(",\"sharding\":{\"level\":\"none\"},\"gradients\":{\"no_sync\":false}"),
               {"/gradients", "every microbatch"}, ErrorKind::kUnsupported);
}

// A host that waited for its stage's passes would not reach what other stages wait for.
TEST(ReadPlan, SpreadVocabularyFreesTheHost) {
  const auto with = [](const std::string& schedule) {
    const auto plan = plan_of("{\"schedule\":\"" + schedule +
                                  "\",\"parallel\":{\"pipeline\":2},\"batch\":{\"global\":8},"
                                  "\"host\":{\"synchronize\":\"transfers\"}}",
                              4);
    return plan.value().host_waits;
  };
  EXPECT_EQ(with("1f1b"), HostWaits::kTransfers);
  EXPECT_EQ(with("1f1b-vocab-1"), HostWaits::kNone);
  EXPECT_EQ(with("1f1b-vocab-2"), HostWaits::kNone);
}

TEST(ReadPlan, SlicesThatDoNotFit) {
  const auto with = [](const std::string& more, const std::string& parallel = "\"tensor\":2") {
    return plan_of("{\"overlap\":{\"tensor_slices\":2},\"parallel\":{" + parallel +
                       ",\"sequence\":false},\"batch\":{\"global\":24,\"micro\":2}" + more + "}",
                   4);
  };
  EXPECT_TRUE(with("").ok());
  expect_error(with("", "\"tensor\":1"), {"/overlap/tensor_slices", "parallel.tensor > 1"});
  expect_error(with(",\"sharding\":{\"level\":\"gradients\"}"),
               {"/sharding/level", "overlap.tensor_slices"}, ErrorKind::kUnsupported);
  expect_error(with(",\"schedule\":\"zb-h1\"", "\"tensor\":2,\"pipeline\":2"),
               {"/schedule", "overlap.tensor_slices"}, ErrorKind::kUnsupported);
  expect_error(plan_of("{\"overlap\":{\"tensor_slices\":4},\"parallel\":{\"tensor\":2,"
                       "\"sequence\":false},\"batch\":{\"global\":24,\"micro\":2}}",
                       4),
               {"/batch/micro", "whole sequences"});
}

// What schedules of two pipelines or of a V need, and what they do not go with.
TEST(ReadPlan, SchedulesThatDoNotFit) {
  const auto with = [](const std::string& schedule, std::int64_t pipeline,
                       std::int64_t microbatches, const std::string& more = "") {
    return plan_of("{\"schedule\":\"" + schedule +
                       "\",\"parallel\":{\"pipeline\":" + std::to_string(pipeline) +
                       "},\"batch\":{\"global\":" + std::to_string(2 * microbatches) + "}" + more +
                       "}",
                   2 * pipeline);
  };
  for (const char* schedule : {"zb-v", "dualpipe", "dualpipev", "chimera"}) {
    expect_error(with(schedule, 1, 8), {"/schedule", schedule, "needs pipeline > 1"});
  }
  for (const char* schedule : {"dualpipe", "chimera"}) {
    expect_error(with(schedule, 3, 8), {schedule, "pipeline 3", "both be even"});
    expect_error(with(schedule, 2, 7), {schedule, "7 microbatches", "both be even"});
  }
  expect_error(with("dualpipe", 4, 6), {"at least twice", "8, found 6"});
  expect_error(with("dualpipev", 4, 7), {"at least twice", "8, found 7"});
  const ErrorKind unsupported = ErrorKind::kUnsupported;
  expect_error(with("chimera", 2, 4, R"(,"sharding":{"level":"gradients"})"),
               {"/sharding/level", "two copies"}, unsupported);
  expect_error(with("chimera", 2, 4, R"(,"sharding":{"level":"optimizer","group_size":2})"),
               {"/sharding/group_size", "two copies"}, unsupported);
  expect_error(with("chimera", 2, 4, R"(,"gradients":{"inner_group":2})"),
               {"/gradients/inner_group", "two copies"}, unsupported);
  EXPECT_TRUE(with("chimera", 2, 4).ok());
  EXPECT_TRUE(with("dualpipe", 4, 8).ok());
  EXPECT_TRUE(with("dualpipev", 4, 9).ok());
  expect_error(plan_of(R"({"schedule":"chimera","batch":{"global":8},
                           "parallel":{"pipeline":2,"virtual_pipeline":2}})",
                       2),
               {"needs virtual_pipeline 1, found 2"});
}

// Ways of plain data parallelism, and what offloading needs.
TEST(ReadPlan, BucketsAndOffloadThatDoNotFit) {
  const auto with = [](const std::string& more, std::int64_t accelerators) {
    return plan_of(R"({"batch":{"global":20000,"sequence":64},)" + more + "}", accelerators);
  };
  expect_error(with(R"("gradients":{"bucketing":"parameters"})", 2),
               {"/gradients/bucket_mib", "above 0"});
  expect_error(with(R"("gradients":{"inner_group":3})", 4),
               {"/gradients/inner_group", "3", "does not divide"});
  expect_error(with(R"("gradients":{"compression":"powersgd"})", 2),
               {"/gradients/compression_rank", "above 0"});
  expect_error(with(R"("gradients":{"no_sync":false})", 2),
               {"/gradients/no_sync", "10000", "at most 4096"});
  expect_error(with(R"("gradients":{"no_sync":false},"parallel":{"tensor":2})", 16),
               {"/gradients/no_sync"}, ErrorKind::kUnsupported);
  expect_error(with(R"("offload":{"optimizer":"cpu"})", 2),
               {"/offload/optimizer", "each of 2 ranks", "sharding.level"},
               ErrorKind::kUnsupported);
  expect_error(with(R"("sharding":{"level":"gradients"},
                       "offload":{"optimizer":"cpu","parameters":"cpu"})",
                    2),
               {"/offload/parameters", "level parameters"}, ErrorKind::kUnsupported);
}

// As people write JSON by hand, and as Python writes floats. Positions of faults stay.
TEST(ParseJson, ReadsCommentsTrailingCommasAndInfinity) {
  const char* text = R"({ // a plan
    "a": [1, 2, /* none */ ], "b": "no // comment, /* nor */ this,]", "c\\": {"d": Infinity,},
    "e": [-Infinity, "x\",}"], })";
  const Json strict = parse_json(R"({"a": [1, 2], "b": "no // comment, /* nor */ this,]",
    "c\\": {"d": 1e308}, "e": [-1e308, "x\",}"]})",
                                 "strict")
                          .value();
  const Result<Json> read = parse_json(text, "hand");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read.value(), strict);
  for (const char* wrong : {"[,]", "[1,,]", "{,}", R"({"a":,})", "[1] // end\n2", "[1 /* open",
                            "// nothing else", "[1, NaN]", "[/ 1]", R"(["a, // b)"}) {
    EXPECT_FALSE(parse_json(wrong, "hand").ok()) << wrong;
  }
  const Result<Json> far = parse_json("{ // one\n \"a\": 1,\n \"b\": oops}", "hand");
  ASSERT_FALSE(far.ok());
  EXPECT_NE(far.error().message.find("line 3"), std::string::npos) << far.error().message;
}

TEST(ParseJson, Errors) {
  expect_error(parse_json("{\"a\":1,\"a\":2}", "f"), {"f", "\"a\""});
  expect_error(parse_json("{\"a\":", "f"), {"f"});
  expect_error(parse_json("", "f"), {"f"});
  expect_error(parse_json("{} {}", "f"), {"f"});
  expect_error(parse_json("{\"a\":1e999}", "f"), {"f"});
  expect_error(parse_json("{\"a\":99999999999999999999999}", "f"), {"f"});
  expect_error(parse_json(std::string("{\"a\":1}\0", 8), "f"), {"f"});
  expect_error(parse_json(std::string(100'000, '['), "f"), {"f"});
  expect_error(parse_json("{'a':1}", "f"), {"f"});
  expect_error(parse_json("[1,,]", "f"), {"f"});
  expect_error(parse_json("[NaN]", "f"), {"f"});
  expect_error(parse_json("[\"\xff\"]", "f"), {"f"});
  const std::string deep = std::string(64, '[') + std::string(64, ']');
  EXPECT_TRUE(parse_json(deep, "f").ok());
  EXPECT_FALSE(parse_json("[" + deep + "]", "f").ok());
}

}  // namespace
}  // namespace foretrain
