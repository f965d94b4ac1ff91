// Are encoder-decoders what their papers say: parameters, FLOPs, who reads the encoder's output?
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "models/layers/encoder_decoder.h"
#include "models/lower.h"
#include "sim/program/memory.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

Model preset(const std::string& name) {
  const std::string path = std::string(FORETRAIN_SOURCE_DIR) + "/configs/models/" + name + ".json";
  return read_model(read_json_file(path).value(), name, "").value();
}

Plan plan_of(const Model& model, std::int64_t ranks, std::int64_t source, std::int64_t target) {
  Plan plan = small_plan(model, {1, 1, 1, ranks}, 1);
  plan.sequence_length = source;
  plan.target_length = target;
  plan.micro_batch = 2;
  plan.global_batch = 2 * ranks;
  return plan;
}

Program lowered(const Model& model, const Plan& plan) {
  const Workload workload = lower(model, plan);
  const Status status = verify(workload);
  EXPECT_TRUE(status.ok()) << model.name << ": " << status.error().message;
  return workload.programs[0];
}

// Numbers of parameters of Hugging Face's T5ForConditionalGeneration.
TEST(EncoderDecoder, ParametersOfT5) {
  EXPECT_EQ(parameter_count(preset("t5-small")), 60'506'624);
  EXPECT_EQ(parameter_count(preset("t5-base")), 222'903'552);
  EXPECT_EQ(parameter_count(preset("t5-large")), 737'668'096);
  EXPECT_EQ(parameter_count(preset("t5-3b")), 2'851'598'336);
  EXPECT_EQ(parameter_count(preset("t5-11b")), 11'307'321'344);
}

// Vaswani et al., table 3: 65 and 213 million with a table of 37,000 tokens for all uses.
TEST(EncoderDecoder, ParametersOfTransformer) {
  const auto millions = [](const char* name) {
    return static_cast<double>(parameter_count(preset(name))) / 1e6;
  };
  EXPECT_NEAR(millions("transformer-base"), 65, 2);
  EXPECT_NEAR(millions("transformer-big"), 213, 2);
  // 6 (12 h^2 + norms and biases) + 6 (16 h^2 + ...) + V h; norms stand behind branches, so that
  // none is left behind the stacks.
  const std::int64_t h = 1024;
  const std::int64_t encoder = 12 * h * h + (3 + 1 + 4 + 1) * h + 4 * h;
  const std::int64_t decoder = 16 * h * h + (2 * 4 + 4 + 1) * h + 6 * h;
  EXPECT_EQ(parameter_count(preset("transformer-big")), 6 * (encoder + decoder) + 37000 * h);
}

/// FLOPs of products and attention in a step of one rank.
double executed(const Program& program) {
  double sum = 0;
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      sum += flops_of(program.works[op.work.index()]);
    }
  }
  return sum;
}

// Of a sequence of s tokens and t targets, with q = heads d_kv and f = d_ff:
// 6 s E (4 h q + 2 h f) + 6 t D (4 h q + 2 h q + 2 h f) + 6 s D 2 h q + 6 t V h, and of scores
// 12 q (E s^2 + D t^2 / 2 + D s t), the decoder's own attention being causal.
TEST(EncoderDecoder, Flops) {
  const Model m = preset("t5-11b");
  const double s = 512, t = 128, layers = 24, h = 1024, q = 128 * 128, f = 65536, v = 32128;
  const double linear = 6 * s * layers * (4 * h * q + 2 * h * f) +
                        6 * t * layers * (6 * h * q + 2 * h * f) + 6 * s * layers * 2 * h * q +
                        6 * t * v * h;
  const double scores = 12 * q * layers * (s * s + t * t / 2 + s * t);
  const FlopConventions flops = model_flops(m, 512, 512, 128);
  EXPECT_NEAR(flops.causal, linear + scores, 1e-9 * linear);
  EXPECT_NEAR(flops.full, linear + scores + 12 * q * layers * t * t / 2, 1e-9 * linear);
}

// What is lowered multiplies as much: unfused attention, whose backward pass computes no scores
// again, over the full square.
TEST(EncoderDecoder, ExecutesWhatItCounts) {
  Model m = preset("t5-small");
  m.vocabulary = 32128 / 128 * 128;  // no padding
  Plan plan = plan_of(m, 1, 64, 32);
  plan.attention = AttentionKernel::kUnfused;
  const double expected = 2 * model_flops(m, 64, 64, 32).full;
  EXPECT_NEAR(executed(lowered(m, plan)), expected, 1e-9 * expected);
}

// Four tensor ranks multiply a quarter each. Per microbatch each stack's layers all-reduce two sums
// forward and two gradients backward; cross-attention the way out and the gradients of the queries'
// input, over the targets, and of the memory, over the source; the turn the looked-up targets.
TEST(EncoderDecoder, TensorRanksShareTheWork) {
  Model m = preset("t5-small");
  m.vocabulary = 512 * 32;  // no padding
  for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer, Sharding::kParameters}) {
    Plan plan = small_plan(m, {4, 1, 1, 2}, 1);
    plan.sequence = false;
    plan.sharding = sharding;
    plan.sequence_length = 64;
    plan.target_length = 32;
    plan.micro_batch = 2;
    plan.global_batch = 4;
    Plan whole = plan_of(m, 1, 64, 32);
    plan.attention = whole.attention = AttentionKernel::kUnfused;
    const Program program = lowered(m, plan);
    EXPECT_NEAR(4 * executed(program), executed(lowered(m, whole)), 1e-9 * executed(program));
    const std::int64_t source = 2 * 64 * m.hidden;
    const std::int64_t targets = 2 * 32 * m.hidden;
    std::map<std::string, std::int64_t> elements;
    for (const Call& call : program.calls) {
      for (const Op& op : program.segments[call.segment.index()].ops) {
        const auto* sum = std::get_if<Collective>(&program.works[op.work.index()]);
        if (sum == nullptr || op.category != Category::kTensor) continue;
        EXPECT_EQ(sum->kind, CollectiveKind::kAllReduce) << op.name;
        elements[op.name] += sum->count;
      }
    }
    EXPECT_EQ(elements.at("mlp.reduce"), 6 * (source + targets));
    EXPECT_EQ(elements.at("mlp.up.reduce"), 6 * (source + targets));
    EXPECT_EQ(elements.at("cross.reduce"), 6 * targets);
    EXPECT_EQ(elements.at("cross.q.reduce"), 6 * targets);
    EXPECT_EQ(elements.at("cross.kv.reduce"), 6 * source);
    EXPECT_EQ(elements.at("embedding.reduce"), source);
    EXPECT_EQ(elements.at("embedding.targets.reduce"), targets);
  }
}

// Computed again: the layers of both stacks and cross-attention, so a third of what is neither the
// head's nor, with its backward pass, the double. Of each only the input is kept.
TEST(EncoderDecoder, ComputesLayersAgain) {
  for (const double dropout : {0.0, 0.1}) {
    Model m = preset("t5-small");
    m.vocabulary = 32128 / 128 * 128;  // no padding
    Plan plan = plan_of(m, 1, 64, 32);
    plan.attention = AttentionKernel::kUnfused;
    plan.dropout = dropout;
    const Program none = lowered(m, plan);
    plan.recompute.layer = true;
    const Program again = lowered(m, plan);
    const auto h = static_cast<double>(m.hidden);
    const double head = 2 * 6 * 32 * h * static_cast<double>(m.vocabulary);
    EXPECT_NEAR(executed(again), executed(none) + (executed(none) - head) / 3, 1e-9 * head);
    // Inputs of six encoder layers, the turn, six cross-attentions and six decoder layers, the
    // head; the encoder's output; statistics of the turn's and the head's norms; the loss's logits
    // aside.
    Bytes kept = 0;
    for (const FrameLayout& layout : again.layouts) {
      if (layout.name.starts_with("layer") || layout.name.starts_with("cross")) {
        for (const Buffer& buffer : layout.buffers) kept += buffer.saved ? buffer.bytes() : 0;
      }
    }
    EXPECT_EQ(kept, 0);
    EXPECT_LT(memory_peak(again).saved, memory_peak(none).saved / 2);
  }
}

/// Segments of layers and ends in the order of their calls.
std::vector<std::string> calls_of(const Program& program) {
  std::vector<std::string> out;
  for (const Call& call : program.calls) {
    const std::string& name = program.segments[call.segment.index()].name;
    const bool shown = name.starts_with("layer") || name.starts_with("cross") ||
                       name.starts_with("turn") || name.starts_with("embedding") ||
                       name.starts_with("head");
    if (shown) out.push_back(name);
  }
  return out;
}

TEST(EncoderDecoder, StacksFollowEachOther) {
  Model m = preset("t5-small");
  m.encoder_layers = 2;
  m.decoder_layers = 1;
  m.layers = 2 + 1 + 2;
  const Program program = lowered(m, plan_of(m, 1, 64, 32));
  EXPECT_EQ(calls_of(program),
            (std::vector<std::string>{"embedding forward", "layer forward", "layer forward",
                                      "turn forward", "cross-attention forward", "layer forward",
                                      "head forward", "head backward", "layer backward",
                                      "cross-attention backward", "turn backward", "layer backward",
                                      "layer backward", "embedding backward"}));
}

/// Additions to the gradient of the encoder's output in a step.
std::int64_t memory_sums(const Program& program) {
  std::int64_t sums = 0;
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      sums += op.name == "cross.memory.d_sum" ? 1 : 0;
    }
  }
  return sums;
}

// Every plan of data parallelism gives a Program without races; each cross-attention but the last
// adds to the gradient of the encoder's output.
TEST(EncoderDecoder, AreWellFormed) {
  for (const char* name : {"t5-small", "transformer-base"}) {
    const Model m = preset(name);
    for (const AttentionKernel kernel : {AttentionKernel::kFlash, AttentionKernel::kUnfused}) {
      for (const bool more : {false, true}) {
        Plan plan = plan_of(m, 4, 64, 48);
        plan.attention = kernel;
        plan.dropout = more ? 0 : -1;
        plan.global_batch *= more ? 2 : 1;
        plan.fused_accumulation = more;
        plan.recompute.layer = more;
        plan.sharding = more ? Sharding::kOptimizer : Sharding::kNone;
        plan.overlap.gradient_reduce = plan.overlap.parameter_gather = more;
        EXPECT_EQ(memory_sums(lowered(m, plan)), (m.decoder_layers - 1) * plan.microbatches());
      }
    }
  }
}

// ZeRO-2 and FSDP, by units of any number of layers, with tables of one's own and shared ones.
TEST(EncoderDecoder, ShardsGradientsAndParameters) {
  for (const Sharding level : {Sharding::kGradients, Sharding::kParameters}) {
    for (const bool tied : {false, true}) {
      for (const bool each : {false, true}) {
        Model m = preset("t5-small");
        m.tied_embeddings = tied;
        Plan plan = plan_of(m, 4, 64, 48);
        plan.global_batch *= 2;
        plan.sharding = level;
        plan.units.layers = tied ? 1 : 3;
        plan.units.reduce_each = each;
        plan.units.reshard = each;
        plan.recompute.layer = each;
        lowered(m, plan);
      }
    }
  }
}

// Everything but what is gathered shrinks with the ranks that share it.
TEST(EncoderDecoder, FsdpTakesLessMemory) {
  const Model m = preset("t5-large");
  Plan plan = plan_of(m, 8, 64, 64);
  const Bytes whole = memory_peak(lowered(m, plan)).bytes;
  plan.sharding = Sharding::kParameters;
  // 16 of 18 bytes a parameter, of which an eighth stays.
  EXPECT_LT(memory_peak(lowered(m, plan)).bytes, whole - 12 * parameter_count(m));
}

// Keys and values of cross-attention have the encoder's tokens, queries the decoder's.
TEST(EncoderDecoder, CrossAttentionHasBothLengths) {
  const Program program = lowered(preset("t5-small"), plan_of(preset("t5-small"), 1, 64, 32));
  std::vector<std::pair<std::int64_t, std::int64_t>> lengths;
  for (const Work& work : program.works) {
    const auto* attention = std::get_if<Attention>(&work);
    if (attention == nullptr || attention->backward) continue;
    lengths.emplace_back(attention->q_len, attention->kv_len);
    EXPECT_EQ(attention->causal, attention->kv_len == 32);
  }
  std::sort(lengths.begin(), lengths.end());
  EXPECT_EQ(lengths,
            (std::vector<std::pair<std::int64_t, std::int64_t>>{{32, 32}, {32, 64}, {64, 64}}));
}

}  // namespace
}  // namespace foretrain
