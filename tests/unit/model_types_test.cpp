// Do the files of model types say what holds, and are files of publishers read by them?
#include "models/architecture/model_type.h"

#include <gtest/gtest.h>

#include "models/architecture/model.h"

namespace foretrain {
namespace {

Result<Model> typed_model(const std::string& text) {
  const Result<Json> json = parse_json(text, "config.json");
  if (!json.ok()) return json.error();
  return read_model(json.value(), "config.json", "");
}

std::string of_type(const std::string& type, const std::string& more = "") {
  return "{\"model_type\":\"" + type +
         "\",\"num_hidden_layers\":4,\"hidden_size\":64,\"num_attention_heads\":4,"
         "\"vocab_size\":100,\"intermediate_size\":128" +
         more + "}";
}

std::int64_t typed_parameters(const std::string& text) {
  const Result<Model> model = typed_model(text);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return model.ok() ? parameter_count(model.value()) : -1;
}

bool is_named(const Result<Model>& model, const std::string& part) {
  return !model.ok() && model.error().message.find(part) != std::string::npos;
}

TEST(ModelTypes, EveryFileIsRead) {
  const std::vector<std::string> types = model_type_names();
  EXPECT_GT(types.size(), 80U);
  for (const std::string& name : types) {
    EXPECT_TRUE(is_model_type(name));
    const Result<ModelType> type = load_model_type(name);
    ASSERT_TRUE(type.ok()) << type.error().message;
    // What a file of the type lacks here is named; no file of a type is at fault itself.
    const Result<Model> model = typed_model(of_type(name));
    if (model.ok()) continue;
    EXPECT_EQ(model.error().message.find("model_types/"), std::string::npos);
  }
  EXPECT_FALSE(is_model_type("harmless-keys"));
  EXPECT_FALSE(is_model_type(""));
}

TEST(ModelTypes, KeysThatNothingReadsAreTold) {
  const Result<Model> own = typed_model(of_type("llama", ",\"hidden_sise\":3"));
  EXPECT_TRUE(is_named(own, "did you mean \"hidden_size\""));
  const Result<Model> published =
      typed_model(of_type("llama", ",\"architectures\":[\"X\"],\"strange_width\":3,\"odd\":1"));
  ASSERT_TRUE(published.ok()) << published.error().message;
  EXPECT_EQ(published.value().notes.unknown, (std::vector<std::string>{"strange_width", "odd"}));
}

TEST(ModelTypes, PartsBesideTheTextAreLeftOut) {
  const std::string text = of_type("qwen3", ",\"tie_word_embeddings\":true");
  const std::string inner = of_type("qwen3_vl_text");
  const std::string whole =
      "{\"model_type\":\"qwen3_vl\",\"tie_word_embeddings\":true,"
      "\"vision_config\":{\"depth\":3},\"text_config\":" +
      inner + "}";
  EXPECT_EQ(typed_parameters(whole), typed_parameters(text));
  // Class defaults stand for what the text part leaves out.
  const Result<Model> gemma = typed_model(
      "{\"model_type\":\"gemma3\",\"text_config\":{\"model_type\":\"gemma3_text\","
      "\"hidden_size\":2560,\"intermediate_size\":10240,\"num_hidden_layers\":34}}");
  ASSERT_TRUE(gemma.ok()) << gemma.error().message;
  EXPECT_EQ(gemma.value().heads, 8);
  EXPECT_EQ(gemma.value().head_dim, 256);
  EXPECT_EQ(gemma.value().vocabulary, 262208);
  EXPECT_FALSE(gemma.value().windowed(5));
  EXPECT_TRUE(gemma.value().windowed(6));
  EXPECT_TRUE(is_named(typed_model("{\"model_type\":\"lama\",\"text_config\":{}}"), "model_type"));
}

TEST(ModelTypes, RulesFollowTheSwitchesOfAFile) {
  const Model grouped = typed_model(of_type("falcon", ",\"multi_query\":false")).value();
  EXPECT_EQ(grouped.kv_heads, 4);
  const Model one = typed_model(of_type("falcon")).value();
  EXPECT_EQ(one.kv_heads, 1);
  EXPECT_TRUE(one.shared_norm);
  EXPECT_FALSE(one.biases.qkv);
  const Model old = typed_model(of_type("falcon",
                                        ",\"parallel_attn\":false,\"alibi\":true,"
                                        "\"bias\":true"))
                        .value();
  EXPECT_FALSE(old.parallel_residual);
  EXPECT_EQ(old.position, Position::kAlibi);
  EXPECT_TRUE(old.biases.qkv && old.biases.mlp);
}

TEST(ModelTypes, StacksWithRelativePositionsNeedTheSizeOfAHead) {
  EXPECT_TRUE(is_named(typed_model(of_type("t5")), "d_kv"));
  EXPECT_TRUE(typed_model(of_type("t5", ",\"d_kv\":16")).ok());
}

// Norms: before and behind (4 h a layer), behind alone (2 h), none with weights.
TEST(ModelTypes, NormsAreWhereTheTypeHasThem) {
  const std::int64_t plain = typed_parameters(of_type("llama"));
  EXPECT_EQ(typed_parameters(of_type("glm4")), plain + 4 * 2 * 64);
  EXPECT_EQ(typed_parameters(of_type("exaone4")), plain + 4 * 2 * 16);
  EXPECT_EQ(typed_parameters(of_type("olmo2")), plain + 4 * 2 * 64);
  EXPECT_EQ(typed_parameters(of_type("olmo")), plain - 4 * 2 * 64 - 64);
  EXPECT_EQ(typed_parameters(of_type("arcee")), plain - 4 * 64 * 128);
}

const char* const kHybrid =
    ",\"mamba_num_heads\":4,\"mamba_head_dim\":16,\"ssm_state_size\":8,\"n_groups\":2,"
    "\"hybrid_override_pattern\":";

TEST(ModelTypes, HybridsListTheirLayers) {
  const auto with = [](const std::string& pattern) {
    return typed_model(of_type("nemotron_h", kHybrid + pattern));
  };
  const Result<Model> good = with("\"M-*-\"");
  ASSERT_TRUE(good.ok()) << good.error().message;
  EXPECT_EQ(good.value().kind(0), (LayerKind{Mixer::kMamba2, FeedForward::kNone}));
  EXPECT_EQ(good.value().kind(1), (LayerKind{Mixer::kNone, FeedForward::kMlp}));
  EXPECT_TRUE(is_named(with("\"M-*\""), "found 3 kinds of layers"));
  EXPECT_TRUE(is_named(with("\"M-x-\""), "the kind of layer \"x\""));
  EXPECT_TRUE(is_named(with("7"), "kinds of layers"));
  EXPECT_FALSE(is_named(with("7"), "unknown key"));
  EXPECT_TRUE(is_named(with("\"M-*-\",\"state_size_of_all\":1"), "unknown key"));
  EXPECT_TRUE(is_named(typed_model(of_type("nemotron_h",
                                           ",\"mamba_num_heads\":1000000000,"
                                           "\"mamba_head_dim\":1000000000,"
                                           "\"hybrid_override_pattern\":\"MMMM\"")),
                       "10^16"));
  EXPECT_TRUE(is_named(
      typed_model(of_type("nemotron_h", std::string(kHybrid) + "\"M-*-\",\"moe_latent_size\":8")),
      "moe_latent_size"));
  EXPECT_TRUE(
      is_named(typed_model(of_type("bamba", ",\"attn_layer_indices\":[4]")), "from 0 to 3"));
}

}  // namespace
}  // namespace foretrain
