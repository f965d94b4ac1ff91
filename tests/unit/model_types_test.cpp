// Do the files of model types say what holds, and are files of publishers read by them?
#include "models/architecture/model_type.h"

#include <gtest/gtest.h>

#include <utility>

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

// Of Gemma 2 as its code has them, unless the file says otherwise; of other types where a file has
// them.
TEST(ModelTypes, SoftCapsAreRead) {
  const auto caps = [](const std::string& type, const std::string& more) {
    const Result<Model> model = typed_model(of_type(type, more));
    EXPECT_TRUE(model.ok()) << model.error().message;
    return std::pair(model.value().attention.score_cap, model.value().ends.logit_cap);
  };
  EXPECT_EQ(caps("gemma2", ""), std::pair(50.0, 30.0));
  EXPECT_EQ(caps("gemma2", ",\"attn_logit_softcapping\":0,\"final_logit_softcapping\":20"),
            std::pair(0.0, 20.0));
  EXPECT_EQ(caps("gemma3_text", ",\"attn_logit_softcapping\":null"), std::pair(0.0, 0.0));
  EXPECT_EQ(caps("llama", ""), std::pair(0.0, 0.0));
  EXPECT_TRUE(is_named(typed_model(of_type("gemma2", ",\"final_logit_softcapping\":-1")),
                       "final_logit_softcapping"));
}

TEST(ModelTypes, PartsBesideTheTextAreLeftOut) {
  const std::string text = of_type("qwen3", ",\"tie_word_embeddings\":true,\"head_dim\":16");
  const std::string inner = of_type("qwen3_vl_text", ",\"head_dim\":16");
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

// Files of the hub as their publishers count them, files and counts from memory; of Kimi Linear all
// but the 6656 biases by which its router corrects its choice, which are no parameters here.
TEST(ModelTypes, FilesAreCountedAsTheirPublishersDo) {
  struct Case {
    const char* config;
    std::int64_t parameters;
  };
  const Case cases[] = {
      {R"({"model_type":"dbrx","d_model":6144,"n_heads":48,"n_layers":40,"vocab_size":100352,
           "attn_config":{"kv_n_heads":8,"clip_qkv":8,"rope_theta":500000},
           "ffn_config":{"ffn_hidden_size":10752,"moe_num_experts":16,"moe_top_k":4}})",
       131596523520},
      {R"({"model_type":"apertus","hidden_size":4096,"intermediate_size":21504,"vocab_size":131072,
           "num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,
           "hidden_act":"xielu"})",
       8053338176},
      {R"({"model_type":"falcon_mamba","hidden_size":4096,"intermediate_size":8192,"state_size":16,
           "num_hidden_layers":64,"vocab_size":65024,"time_step_rank":256,"conv_kernel":4,
           "tie_word_embeddings":false})",
       7272665088},
      {R"({"model_type":"mamba","hidden_size":768,"num_hidden_layers":24,"vocab_size":50280,
           "state_size":16})",
       129135360},
      {R"({"model_type":"jamba","hidden_size":4096,"intermediate_size":14336,"vocab_size":65536,
           "num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,
           "num_experts":16,"num_experts_per_tok":2,"mamba_d_state":16,"mamba_d_conv":4,
           "mamba_expand":2,"mamba_dt_rank":256})",
       51570323328},
      {R"({"model_type":"bert","architectures":["BertForMaskedLM"],"hidden_size":768,
           "intermediate_size":3072,"num_hidden_layers":12,"num_attention_heads":12,
           "vocab_size":30522,"max_position_embeddings":512,"type_vocab_size":2,
           "hidden_act":"gelu"})",
       109514298},
      {R"({"model_type":"distilbert","dim":768,"hidden_dim":3072,"n_layers":6,"n_heads":12,
           "vocab_size":30522,"max_position_embeddings":512,"activation":"gelu"})",
       66985530},
      {R"({"model_type":"albert","embedding_size":128,"hidden_size":768,"intermediate_size":3072,
           "num_hidden_layers":12,"num_attention_heads":12,"vocab_size":30000,
           "max_position_embeddings":512,"type_vocab_size":2,"hidden_act":"gelu_new"})",
       11221680},
      {R"({"model_type":"opt","hidden_size":1024,"word_embed_proj_dim":512,"ffn_dim":4096,
           "num_hidden_layers":24,"num_attention_heads":16,"vocab_size":50272,
           "max_position_embeddings":2048,"do_layer_norm_before":false})",
       331196416},
      {R"({"model_type":"kimi_linear","hidden_size":2304,"intermediate_size":9216,
           "moe_intermediate_size":1024,"vocab_size":163840,"num_hidden_layers":27,
           "num_attention_heads":32,"kv_lora_rank":512,"q_lora_rank":null,"qk_nope_head_dim":128,
           "qk_rope_head_dim":64,"v_head_dim":128,"num_experts":256,"num_experts_per_token":8,
           "num_shared_experts":1,"first_k_dense_replace":1,"moe_layer_freq":1,
           "linear_attn_config":{"head_dim":128,"num_heads":32,"short_conv_kernel_size":4,
             "full_attn_layers":[4,8,12,16,20,24,27],
             "kda_layers":[1,2,3,5,6,7,9,10,11,13,14,15,17,18,19,21,22,23,25,26]}})",
       49122675072},
      {R"({"model_type":"mt5","d_model":768,"d_ff":2048,"d_kv":64,"num_layers":12,
           "num_decoder_layers":12,"num_heads":12,"vocab_size":250112,
           "relative_attention_num_buckets":32})",
       582401280},
      {R"({"model_type":"openai-gpt","n_embd":768,"n_layer":12,"n_head":12,"n_positions":512,
           "vocab_size":40478})",
       116534784},
      {R"({"model_type":"openelm","model_dim":1280,"num_transformer_layers":16,"vocab_size":32000,
           "head_dim":64,"ffn_dim_divisor":256,
           "num_query_heads":[12,12,12,12,12,16,16,16,16,16,16,16,20,20,20,20],
           "num_kv_heads":[3,3,3,3,3,4,4,4,4,4,4,4,5,5,5,5],
           "ffn_multipliers":[0.5,0.73,0.97,1.2,1.43,1.67,1.9,2.13,2.37,2.6,2.83,3.07,3.3,3.53,
                              3.77,4.0]})",
       271527168},
  };
  for (const Case& one : cases) EXPECT_EQ(typed_parameters(one.config), one.parameters);
}

// `tests/data/model_types.json`: the count of each is the sum over the shapes of the type's code,
// by a program that shares nothing with this one; beside it what its publisher says, from memory.
TEST(ModelTypes, FilesOfTheTableAreCountedExactly) {
  const Result<Json> rows =
      read_json_file(std::string(FORETRAIN_SOURCE_DIR) + "/tests/data/model_types.json");
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  for (const Json& row : *rows.value().array()) {
    const std::string& id = *row.find("id")->string();
    const Result<Model> model = read_model(*row.find("config"), id, "");
    ASSERT_TRUE(model.ok()) << model.error().message;
    EXPECT_EQ(parameter_count(model.value()),
              static_cast<std::int64_t>(row.find("parameters")->number()))
        << id;
    EXPECT_TRUE(model.value().notes.unknown.empty()) << id << model.value().notes.unknown.front();
    const Json* active = row.find("active_parameters");
    if (active == nullptr) continue;
    EXPECT_EQ(active_parameter_count(model.value()), static_cast<std::int64_t>(active->number()))
        << id;
  }
  EXPECT_GT(rows.value().array()->size(), 20U);
}

// A run names each part that is only counted, once; no layer has such a part.
TEST(ModelTypes, CountedPartsAreNamed) {
  const Model plain = typed_model(of_type("llama")).value();
  const Model more = typed_model(of_type("diffllama")).value();
  EXPECT_EQ(parameter_count(more), parameter_count(plain) + 4 * 4 * 16);
  EXPECT_EQ(layer_parameters(more), layer_parameters(plain));
  ASSERT_EQ(more.notes.counted.size(), 1U);
  EXPECT_EQ(more.notes.left_out.back(),
            "differences of two attentions: counted, without memory, time or FLOPs");
  EXPECT_TRUE(is_named(typed_model(of_type("gemma3n_text",
                                           ",\"laurel_rank\":1000000000,\"altup_num_inputs\":"
                                           "1000000000")),
                       "10^16"));
}

// Class defaults stand for what a publisher's file leaves out, not for what one written here does.
TEST(ModelTypes, ClassDefaultsAreThoseOfPublishersFiles) {
  const std::string file = "{\"model_type\":\"llama\",\"vocab_size\":100";
  EXPECT_TRUE(is_named(typed_model(file + "}"), "num_hidden_layers"));
  const Result<Model> published = typed_model(file + ",\"transformers_version\":\"4.40.0\"}");
  ASSERT_TRUE(published.ok()) << published.error().message;
  EXPECT_EQ(published.value().hidden, 4096);
  EXPECT_EQ(published.value().layers, 32);
}

TEST(ModelTypes, ListsOfLayersAreAsLongAsTheModel) {
  const std::string sparse = ",\"num_experts\":4,\"num_experts_per_tok\":2";
  const std::string width = sparse + ",\"moe_intermediate_size\":32";
  EXPECT_TRUE(is_named(typed_model(of_type("mellum", width + ",\"mlp_layer_types\":[\"dense\"]")),
                       "mlp_layer_types"));
  EXPECT_TRUE(is_named(
      typed_model(of_type("laguna", width + ",\"num_attention_heads_per_layer\":[4,4,0,4]")),
      "num_attention_heads_per_layer"));
  EXPECT_TRUE(is_named(typed_model(of_type("minimax", sparse + ",\"attn_type_list\":[1]")),
                       "attn_type_list"));
  const Model linear =
      typed_model(of_type("minimax", sparse + ",\"attn_type_list\":[0,1,0,1]")).value();
  EXPECT_TRUE(linear.windowed(0));
  EXPECT_FALSE(linear.windowed(1));
  EXPECT_EQ(linear.of(linear.kind(0)).attention.gate, OutputGate::kElements);
  EXPECT_EQ(linear.of(linear.kind(1)).attention.gate, OutputGate::kNone);
}

// Parts that name another type are of the whole file's, where that says so.
TEST(ModelTypes, PartsMayHaveTheTypeOfTheWhole) {
  const std::string more =
      ",\"num_key_value_heads\":2,\"head_dim\":16,\"num_local_experts\":4,\"dense_intermediate_"
      "size\":"
      "256,\"num_experts_per_tok\":2,\"moe_layer_freq\":[0,1,1,1],\"sparse_attention_config\":{"
      "\"sparse_num_index_heads\":2,\"sparse_index_dim\":8,\"sparse_topk_blocks\":3,"
      "\"sparse_block_size\":4,\"sparse_attention_freq\":[0,0,1,1]}";
  const Model m = typed_model("{\"model_type\":\"minimax_m3_vl\",\"text_config\":" +
                              of_type("minimax_m2", more) + "}")
                      .value();
  EXPECT_EQ(m.type, "minimax_m3_vl");
  EXPECT_EQ(m.sliding_window, 3 * 4);
  EXPECT_FALSE(m.windowed(1));
  EXPECT_TRUE(m.windowed(2));
  EXPECT_EQ(m.intermediate, 256);
  EXPECT_EQ(m.experts.width, 128);
  ASSERT_EQ(m.notes.counted.size(), 3U);
  EXPECT_EQ(m.notes.counted[0].parameters, 2 * 2 * 8 * 64);
  EXPECT_TRUE(is_named(typed_model(of_type("minimax_m3_vl_text",
                                           ",\"num_local_experts\":4,\"num_experts_per_tok\":2,"
                                           "\"sparse_attention_freq\":[1,7,0,1]")),
                       "layer_types"));
}

// A list of two numbers is one for text and one for images; a list of another length is told.
TEST(ModelTypes, ListsOfPartsAreOpened) {
  const std::string experts =
      ",\"moe_k\":2,\"moe_num_experts\":[8,8],\"moe_layer_start_index\":[1,1],"
      "\"moe_num_shared_experts\":0,\"moe_intermediate_size\":";
  const Model m = typed_model(of_type("ernie4_5_moe_vl", experts + "[32,16]")).value();
  EXPECT_EQ(m.experts.width, 32);
  EXPECT_EQ(m.experts.first_dense, 1);
  ASSERT_EQ(m.notes.counted.size(), 2U);
  EXPECT_EQ(m.notes.counted[0].parameters, 3 * 3 * 8 * 64 * 16);
  EXPECT_EQ(m.notes.counted[0].active, 0);
  for (const char* hostile : {"[]", "[32,16,8]", "{}", "[32,\"a\"]", "[-1,2]"}) {
    EXPECT_TRUE(is_named(typed_model(of_type("ernie4_5_moe_vl", experts + hostile)),
                         "moe_intermediate_size"))
        << hostile;
  }
}

// A stack of T5Gemma is described by an object of its own.
TEST(ModelTypes, StacksMayBeParts) {
  const std::string sizes =
      "\"hidden_size\":64,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,"
      "\"intermediate_size\":128,\"vocab_size\":100,\"num_hidden_layers\":";
  const auto pair = [&sizes](const std::string& decoder) {
    return typed_model("{\"model_type\":\"t5gemma\",\"encoder\":{" + sizes +
                       "4,\"layer_types\":[\"sliding_attention\"]},\"decoder\":" + decoder + "}");
  };
  const Model m = pair("{" + sizes + "2}").value();
  EXPECT_EQ(m.encoder_layers, 4);
  EXPECT_EQ(m.decoder_layers, 2);
  EXPECT_EQ(m.kv_heads, 2);
  EXPECT_EQ(m.sliding_window, 0);
  EXPECT_TRUE(is_named(pair("{" + sizes + "2,\"hidden_size\":128}"), "hidden_size"));
  EXPECT_TRUE(is_named(pair("{\"hidden_size\":128}"), "/decoder/hidden_size"));
  EXPECT_TRUE(is_named(pair("[3]"), "decoder"));
  EXPECT_TRUE(is_named(pair("{\"num_hidden_layers\":0}"), "/decoder/num_hidden_layers"));
  EXPECT_TRUE(is_named(pair("{\"num_hidden_layers\":1e30}"), "/decoder/num_hidden_layers"));
}

// Of a router's choices those that pass a token on are no work: LongCat-Flash's 12 of 768, of which
// 512 compute, are 8, which are 28 of its 560 billion parameters (its report says 27).
TEST(ModelTypes, ExpertsThatPassATokenOnAreNoWork) {
  const auto longcat = [](const std::string& passing) {
    return typed_model(
        of_type("longcat_flash",
                ",\"q_lora_rank\":16,\"kv_lora_rank\":16,\"qk_nope_head_dim\":16,"
                "\"qk_rope_head_dim\":8,\"v_head_dim\":16,\"n_routed_experts\":512,"
                "\"moe_topk\":12,\"expert_ffn_hidden_size\":32,\"zero_expert_num\":" +
                    passing));
  };
  EXPECT_EQ(longcat("0").value().experts.top_k, 12);
  EXPECT_EQ(longcat("256").value().experts.top_k, 8);
  EXPECT_EQ(longcat("65536").value().experts.top_k, 1);
  EXPECT_TRUE(is_named(longcat("-1"), "zero_expert_num"));
  EXPECT_TRUE(is_named(longcat("1e9"), "zero_expert_num"));
}

// Of every group of layers the last has full attention, and those behind the last whole group.
TEST(ModelTypes, LinearLayersComeInGroups) {
  const auto ring = [](const std::string& group) {
    return typed_model(of_type("bailing_moe_linear",
                               ",\"num_experts\":8,\"num_experts_per_tok\":2,"
                               "\"moe_intermediate_size\":32,\"layer_group_size\":" +
                                   group));
  };
  const Model m = ring("3").value();
  EXPECT_TRUE(m.windowed(0));
  EXPECT_TRUE(m.windowed(1));
  EXPECT_FALSE(m.windowed(2));
  EXPECT_FALSE(m.windowed(3));
  EXPECT_EQ(ring("9").value().full_attention, std::vector<bool>(4, true));
  EXPECT_TRUE(is_named(ring("0"), "layer_group_size"));
  EXPECT_TRUE(is_named(ring("[1]"), "layer_group_size"));
}

// A second table has a vector of every layer for every token; without a width there is none.
TEST(ModelTypes, LayersMayHaveATableOfTokens) {
  const std::string more = ",\"laurel_rank\":4,\"altup_num_inputs\":2";
  const std::string rows = ",\"vocab_size_per_layer_input\":90";
  const Model m =
      typed_model(of_type("gemma3n_text", more + rows + ",\"hidden_size_per_layer_input\":8"))
          .value();
  EXPECT_EQ(m.ends.layer_rows, 90);
  EXPECT_EQ(m.ends.layer_width, 8);
  bool found = false;
  for (const Parameter& p : embedding_parameters(m)) {
    if (p.name == "embedding.layers") found = p.rows == 90 && p.cols == 4 * 8;
  }
  EXPECT_TRUE(found);
  EXPECT_EQ(
      typed_model(of_type("gemma4_text", rows + ",\"hidden_size_per_layer_input\":0")).value().ends,
      Ends());
  EXPECT_TRUE(is_named(
      typed_model(of_type("gemma3n_text", more + rows + ",\"hidden_size_per_layer_input\":-8")),
      "hidden_size_per_layer_input"));
  EXPECT_TRUE(is_named(
      typed_model(of_type("gemma3n_text", more + ",\"vocab_size_per_layer_input\":1000000000,"
                                                 "\"hidden_size_per_layer_input\":1000000000")),
      "10^16"));
}

// The language model of a part of a part.
TEST(ModelTypes, PartsMayHaveParts) {
  const std::string text = of_type("qwen2", ",\"num_key_value_heads\":2");
  EXPECT_EQ(
      typed_parameters(
          "{\"model_type\":\"qwen2_5_omni\",\"thinker_config\":{\"text_config\":" + text + "}}"),
      typed_parameters(text));
}

// DeepSeek-V3.2 adds an indexer to each layer: queries from their rank, a key and its norm, a
// weight for each of its heads.
TEST(ModelTypes, IndexersAreCounted) {
  const std::string latent =
      ",\"moe_intermediate_size\":32,\"n_routed_experts\":8,\"num_experts_per_tok\":2,"
      "\"n_group\":1,\"topk_group\":1,\"kv_lora_rank\":16,\"q_lora_rank\":24";
  const std::string index = ",\"index_n_heads\":4,\"index_head_dim\":16";
  EXPECT_EQ(typed_parameters(of_type("deepseek_v32", latent + index)),
            typed_parameters(of_type("deepseek_v3", latent)) +
                4 * (4 * 16 * 24 + 64 * 16 + 2 * 16 + 64 * 4));
}

// The ranks of latent attention say how wide its heads are: these need not divide the hidden width.
TEST(ModelTypes, LatentHeadsNeedNotDivideTheWidth) {
  const std::string latent =
      ",\"moe_intermediate_size\":32,\"n_routed_experts\":8,\"num_experts_per_tok\":2,"
      "\"n_group\":1,\"topk_group\":1,\"kv_lora_rank\":16,\"q_lora_rank\":24";
  const std::string text = of_type("glm4_moe_lite", latent);
  const std::string heads = "\"num_attention_heads\":";
  std::string three = text;
  three.replace(three.find(heads), heads.size() + 1, heads + "3");
  EXPECT_EQ(typed_parameters(text) - typed_parameters(three), 4 * (192 * 24 + 256 * 16 + 128 * 64));
}

// Two shapes, and values narrower than keys: full layers have 4 (q + kv) 16 + (1 + 4) 8 columns.
TEST(ModelTypes, LayersWithAWindowMayHaveSizesOfTheirOwn) {
  const std::string text = of_type(
      "mimo_v2_flash",
      ",\"head_dim\":16,\"v_head_dim\":8,\"num_key_value_heads\":1,\"swa_num_key_value_heads\":2,"
      "\"swa_head_dim\":16,\"swa_v_head_dim\":8,\"swa_num_attention_heads\":4,"
      "\"hybrid_layer_pattern\":[0,1,1,0],\"sliding_window\":32,\"moe_layer_freq\":[0,1,1,1],"
      "\"n_routed_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,"
      "\"add_swa_attention_sink_bias\":true");
  const std::int64_t h = 64;
  const std::int64_t common = 2 * h + h * 4 * 8;
  const std::int64_t full = common + h * (4 * 16 + 16 + 8);
  const std::int64_t window = common + h * (4 * 16 + 2 * 16 + 2 * 8) + 4;
  const std::int64_t sparse = 4 * 3 * h * 32 + 4 * h;
  EXPECT_EQ(typed_parameters(text),
            2 * full + 2 * window + 3 * h * 128 + 3 * sparse + 2 * 100 * h + h);
}

// What a search left of each layer: fewer key-value heads, another width, or no branch.
TEST(ModelTypes, BlockConfigsSayWhatALayerHas) {
  const std::string blocks =
      ",\"hidden_size\":384,\"block_configs\":["
      "{\"attention\":{\"n_heads_in_group\":2},\"ffn\":{\"ffn_mult\":1.0}},"
      "{\"attention\":{\"no_op\":true},\"ffn\":{\"ffn_mult\":2.0}},"
      "{\"attention\":{\"n_heads_in_group\":4},\"ffn\":{\"no_op\":true}}]}";
  const std::string text =
      "{\"model_type\":\"nemotron-nas\",\"num_hidden_layers\":3,\"num_attention_heads\":4,"
      "\"vocab_size\":100" +
      blocks;
  const std::int64_t h = 384;
  EXPECT_EQ(typed_parameters(text), 2 * 100 * h + h + (h + 2 * h * h + 2 * h * h / 2) +
                                        (h + 3 * h * 256) + (h + 3 * h * 512) +
                                        (h + 2 * h * h + 2 * h * h / 4));
  EXPECT_TRUE(is_named(typed_model("{\"model_type\":\"nemotron-nas\",\"num_hidden_layers\":3,"
                                   "\"num_attention_heads\":4,\"vocab_size\":100,"
                                   "\"hidden_size\":384,\"block_configs\":[]}"),
                       "block_configs"));
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

// A shared block that no layer uses, layers of experts in a model without, images smaller than
// their patches, classes without names: each is told with its key.
TEST(ModelTypes, FaultsOfSharedBlocksAndImagesAreTold) {
  const auto fault = [](const std::string& text) {
    const Result<Model> model = read_model(parse_json(text, "model").value(), "model", "");
    return model.ok() ? std::string() : model.error().message;
  };
  const std::string zamba =
      R"({"model_type":"zamba2","num_hidden_layers":2,"hidden_size":64,"num_attention_heads":4,)"
      R"("intermediate_size":128,"vocab_size":100,"n_mamba_heads":4,"mamba_headdim":32,)"
      R"("mamba_d_state":16)";
  const auto with = [&](const std::string& more) { return fault(zamba + more + "}"); };
  EXPECT_EQ(with(R"(,"layers_block_type":["mamba","hybrid"])"), "");
  EXPECT_NE(with(R"(,"layers_block_type":["mamba","mamba"])").find("no layer is hybrid"),
            std::string::npos);
  EXPECT_NE(with("").find("layers_block_type"), std::string::npos);
  EXPECT_NE(with(R"(,"layers_block_type":["moe","hybrid"])").find("has no experts"),
            std::string::npos);
  EXPECT_NE(with(R"(,"layers_block_type":["mamba","hybrid"],"num_key_value_heads":2)")
                .find("num_key_value_heads"),
            std::string::npos);
  const std::string vit =
      R"({"model_type":"vit","num_hidden_layers":2,"hidden_size":64,"num_attention_heads":4,)"
      R"("intermediate_size":128)";
  EXPECT_EQ(fault(vit + "}"), "");
  EXPECT_NE(fault(vit + R"(,"patch_size":225})").find("patch_size"), std::string::npos);
  EXPECT_NE(fault(vit + R"(,"id2label":{}})").find("id2label"), std::string::npos);
  const std::string albert =
      R"({"model_type":"albert","num_hidden_layers":4,"hidden_size":64,"num_attention_heads":4,)"
      R"("vocab_size":100,"max_position_embeddings":32,"inner_group_num":1,"num_hidden_groups":)";
  EXPECT_EQ(fault(albert + "1}"), "");
  EXPECT_NE(fault(albert + "2}").find("num_hidden_groups"), std::string::npos);
}

}  // namespace
}  // namespace foretrain
