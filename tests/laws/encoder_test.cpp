// Is BERT what its paper says: attention in both directions, a head for masked tokens alone?
#include <gtest/gtest.h>

#include "models/lower.h"
#include "sim/program/verify.h"
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

}  // namespace
}  // namespace foretrain
