// Is BERT what its paper says: attention in both directions, a head for masked tokens alone?
#include <gtest/gtest.h>

#include "models/lower.h"
#include "sim/program/verify.h"
#include "tests/support/op_flops.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

constexpr std::int64_t kLength = 128, kMasked = 20;

/// BERT large (Devlin et al. 2019): 24 layers of 1024 with 16 heads, 512 positions, 2 segments.
Model bert_large() {
  const Result<Json> json = parse_json(
      R"({"model_type": "bert", "num_hidden_layers": 24, "hidden_size": 1024,
          "num_attention_heads": 16, "intermediate_size": 4096, "max_position_embeddings": 512,
          "type_vocab_size": 2, "vocab_size": 30522, "hidden_act": "gelu",
          "hidden_dropout_prob": 0.1, "max_predictions_per_seq": 20})",
      "bert");
  return read_model(json.value(), "bert", "").value();
}

Program program_of(std::int64_t masked) {
  Model model = bert_large();
  model.layers = 2;
  model.ends.masked = masked;
  Plan plan = small_plan(model, {1, 1, 1, 1}, 1);
  plan.sequence_length = kLength;
  plan.micro_batch = plan.global_batch = 4;
  const Workload workload = lower(model, plan);
  const Status status = verify(workload);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return workload.programs[0];
}

// Hugging Face's BertModel has 335,141,888 parameters, of which 1,049,600 are the pooler's; the
// norm before the output matrix is 2,048 more.
TEST(Encoder, Parameters) {
  EXPECT_EQ(parameter_count(bert_large()), 335'141'888 - 1'049'600 + 2'048);
}

TEST(Encoder, SeesAllTokens) {
  int seen = 0;
  for (const Work& work : program_of(0).works) {
    const auto* attention = std::get_if<Attention>(&work);
    if (attention == nullptr) continue;
    EXPECT_FALSE(attention->causal);
    ++seen;
  }
  EXPECT_EQ(seen, 2);  // forward, backward
}

// FLOPs of the output matrix' three products shrink to the masked share; nothing else changes but
// the copies of rows.
TEST(Encoder, PredictsMaskedTokens) {
  const auto flops = [](const Program& program) {
    double sum = 0;
    for (const Call& call : program.calls) {
      for (const Op& op : program.segments[call.segment.index()].ops) {
        if (op.name.starts_with("head.output")) sum += flops_of(program.works[op.work.index()]);
      }
    }
    return sum;
  };
  const double all = flops(program_of(0));
  EXPECT_EQ(flops(program_of(kMasked)), all * kMasked / kLength);
}

// 6 P + 12 L h s a token by every convention: both directions are seen. P counts the masked share
// of the output matrix.
TEST(Encoder, Conventions) {
  const Model model = bert_large();
  const double layers = 24.0 * 12 * 1024 * 1024;
  const double head = 30522.0 * 1024 * kMasked / kLength;
  const double scores = 12.0 * 24 * 1024 * kLength;
  const FlopConventions c = model_flops(model, 1, kLength);
  EXPECT_NEAR(c.full, 6 * (layers + head) + scores, 10);
  EXPECT_EQ(c.causal, c.full);
}

/// Of the text of a `config.json`.
Model model_of(const char* text) {
  return read_model(parse_json(text, "model").value(), "model", "").value();
}

Model vit_base() {
  return model_of(R"({"model_type": "vit", "num_hidden_layers": 2, "hidden_size": 768,
      "num_attention_heads": 12, "intermediate_size": 3072, "image_size": 224, "patch_size": 16,
      "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})");
}

/// ELECTRA small's discriminator: tables of 128 columns, one class a token.
Model electra_small() {
  return model_of(R"({"model_type": "electra", "num_hidden_layers": 2, "hidden_size": 256,
      "num_attention_heads": 4, "intermediate_size": 1024, "max_position_embeddings": 512,
      "type_vocab_size": 2, "vocab_size": 30522, "embedding_size": 128, "hidden_act": "gelu",
      "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})");
}

/// OPT 350M: tables of 512 columns, positions of 1,024, no norm behind the last layer.
Model opt_350m() {
  return model_of(R"({"model_type": "opt", "num_hidden_layers": 2, "hidden_size": 1024,
      "num_attention_heads": 16, "ffn_dim": 4096, "max_position_embeddings": 2048,
      "vocab_size": 50272, "word_embed_proj_dim": 512, "do_layer_norm_before": false,
      "activation_function": "relu", "dropout": 0.0})");
}

Workload lowered(const Model& model, PlanDegrees degrees, std::int64_t micro) {
  Plan plan = small_plan(model, degrees, 1);
  plan.micro_batch = micro;
  plan.global_batch = micro * degrees.data;
  if (model.ends.patch > 0) plan.sequence_length = model.positions;
  Workload out = lower(model, plan);
  const Status status = verify(out);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return out;
}

/// Multiply-adds of the products of a rank of stage `stage` whose names begin so.
std::int64_t products(const Workload& workload, const std::string& prefix, std::size_t stage = 0) {
  return static_cast<std::int64_t>(flops_of_ops<Gemm>(workload, prefix, stage) / 2);
}

// 196 patches of 3 x 16 x 16 numbers go through a matrix, without a gradient of the image; a class
// token stands before them, and the head reads it alone. Every tensor rank does both ends.
TEST(Images, ArePatchesAndAClass) {
  const Model model = vit_base();
  EXPECT_EQ(model.positions, 197);
  EXPECT_EQ(model.ends.masked, 1);
  for (const std::int64_t tensor : {1, 2}) {
    const Workload workload = lowered(model, {tensor, 1, 1, 1}, 4);
    EXPECT_EQ(products(workload, "embedding.patches"), std::int64_t{2} * 4 * 196 * 768 * 768);
    EXPECT_EQ(products(workload, "head.output"), 3 * 4 * 768 * 1000);
    EXPECT_EQ(products(workload, "mlp.up"), std::int64_t{2} * 3 * 4 * 197 * 768 * 3072 / tensor);
  }
}

TEST(Images, AreCutAmongStages) {
  const Workload workload = lowered(vit_base(), {1, 2, 1, 1}, 4);
  EXPECT_EQ(products(workload, "embedding.patches", 0), std::int64_t{2} * 4 * 196 * 768 * 768);
  EXPECT_EQ(products(workload, "head.output", 0), 0);
  EXPECT_EQ(products(workload, "embedding.patches", 1), 0);
  EXPECT_EQ(products(workload, "head.output", 1), 3 * 4 * 768 * 1000);
}

// A matrix widens what the tables give; the discriminator's head is a matrix of the hidden width
// and a row for the class, of every token.
TEST(NarrowTables, AreWidenedBeforeTheFirstLayer) {
  const std::int64_t tokens = 128;
  for (const std::int64_t tensor : {1, 2}) {
    const Workload workload = lowered(electra_small(), {tensor, 1, 1, 1}, 1);
    EXPECT_EQ(products(workload, "embedding.widen"), 3 * tokens * 128 * 256);
    EXPECT_EQ(products(workload, "head.transform"), 3 * tokens * 256 * 256);
    EXPECT_EQ(products(workload, "head.output"), 3 * tokens * 256);
  }
}

TEST(NarrowTables, AreMultipliedWithInTheirWidth) {
  const std::int64_t tokens = 128;
  for (const std::int64_t tensor : {1, 2}) {
    const Workload workload = lowered(opt_350m(), {tensor, 1, 1, 1}, 1);
    EXPECT_EQ(products(workload, "embedding.widen"), 3 * tokens * 512 * 1024);
    EXPECT_EQ(products(workload, "head.narrow"), 3 * tokens * 512 * 1024);
    const std::int64_t rows = round_up(50272, 128 * tensor) / tensor;
    EXPECT_EQ(products(workload, "head.output"), 3 * tokens * 512 * rows);
  }
}

// No norm stands behind OPT 350M's last layer.
TEST(NarrowTables, NeedNoLastNorm) {
  const Workload workload = lowered(opt_350m(), {1, 1, 1, 1}, 1);
  for (const Segment& segment : workload.programs[0].segments) {
    for (const Op& op : segment.ops) {
      EXPECT_EQ(std::string_view(op.name).find("head.norm"), std::string_view::npos);
    }
  }
}

/// Elements of the first buffer of this name.
std::int64_t elements_of(const Program& program, const std::string& buffer) {
  for (const FrameLayout& layout : program.layouts) {
    for (const Buffer& one : layout.buffers) {
      if (one.name == buffer) return one.count;
    }
  }
  return 0;
}

// What the output matrix reads is as wide as the tables, behind a transform too.
TEST(NarrowTables, KeepWhatTheOutputMatrixReads) {
  const Model albert = model_of(R"({"model_type": "albert", "num_hidden_layers": 2,
      "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30000,
      "max_position_embeddings": 512, "type_vocab_size": 2, "embedding_size": 128})");
  EXPECT_TRUE(albert.ends.transform);
  EXPECT_EQ(elements_of(lowered(albert, {1, 1, 1, 1}, 1).programs[0], "head.norm out"), 128 * 128);
  EXPECT_EQ(elements_of(lowered(opt_350m(), {1, 1, 1, 1}, 1).programs[0], "head.norm out"),
            128 * 512);
}

// Nothing stands between the last layer of GPT and its output matrix: both passes of the head have
// an op that begins and ends them, under every way to reduce and to split.
TEST(LastNorm, MayBeAbsent) {
  Model model = small_llama();
  model.ends.final_norm = false;
  for (const bool overlapped : {false, true}) {
    for (const bool split : {false, true}) {
      Plan plan = small_plan(model, {2, 2, 1, 1}, 4);
      plan.overlap.tensor_backward = overlapped;
      if (split) plan.schedule = Schedule::kZbH1;
      const Status status = verify(lower(model, plan));
      EXPECT_TRUE(status.ok()) << status.error().message;
    }
  }
}

}  // namespace
}  // namespace foretrain
