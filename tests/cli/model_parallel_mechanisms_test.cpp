// Does each model-parallel system exchange within its layers what its code exchanges, and does its
// pipeline pass on what it computed in the order that its schedule states? Sizes come from what
// the systems' papers count: b s h elements of a residual stream, in 16 bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/cli/mechanism_pipelines.h"

namespace foretrain {
namespace {

// Tensor and sequence parallelism: the input of a column-parallel linear is gathered and the
// output of a row-parallel one reduce-scattered. Backward the input that a weight's gradient needs
// is gathered a second time beside the input's gradient, whose reduction runs beside the weight's.
TEST(Mechanisms, OfMegatronLm) {
  const Program program = lowered("megatron-lm", pipelined_by({}));
  EXPECT_EQ(
      ops_of(program, "layer forward"),
      streams_in({"attention.gather<gather> after attention.norm",
                  "attention.qkv after attention.gather", "attention.core", "attention.projection",
                  "attention.reduce<scatter> after attention.projection",
                  "mlp.gather<gather> after mlp.norm", "mlp.up after attention.reduce, mlp.gather",
                  "mlp.down", "mlp.reduce<scatter> after mlp.down", "end after mlp.reduce"}));
  const std::string both =
      "attention.projection.input_gradient after mlp.up.reduce, attention.projection.gather";
  EXPECT_EQ(
      ops_of(program, "layer backward"),
      streams_in({"mlp.down.gather<gather>", "mlp.down.input_gradient after mlp.down.gather",
                  "mlp.down.weight_gradient", "mlp.up.gather<gather> after mlp.activation_gradient",
                  "mlp.up.input_gradient", "mlp.up.reduce<scatter> after mlp.up.input_gradient",
                  "mlp.up.weight_gradient after mlp.up.gather",
                  "attention.projection.gather<gather> after mlp.norm.gradient", both,
                  "attention.projection.weight_gradient", "attention.core_gradient",
                  "attention.qkv.gather<gather> after attention.rope_gradient",
                  "attention.qkv.input_gradient",
                  "attention.qkv.reduce<scatter> after attention.qkv.input_gradient",
                  "attention.qkv.weight_gradient after attention.qkv.gather",
                  "end after attention.qkv.reduce"}));
}

// The loss of a vocabulary cut among tensor ranks: three all-reduces of one fp32 a token, the
// maximum, the target's logit and the sum of exponentials, between which compute waits.
TEST(Mechanisms, OfMegatronLmsLoss) {
  const Workload workload = lowered_workload("megatron-lm", pipelined_by({}));
  const std::string statistic = moved("all-reduce", 4 * SmallModel::kTokens, "tensor");
  EXPECT_EQ(with_part(ops_of(workload.programs.back(), "head forward"), "loss."),
            (Lines{"loss.maximum.reduce" + statistic + " after loss.maximum",
                   "loss.target.reduce" + statistic + " after loss.exponentials",
                   "loss.sum.reduce" + statistic + " after loss.target.reduce, loss.exponentials",
                   "end after loss.maximum.reduce, loss.target.reduce, loss.sum.reduce"}));
}

// 1F1B with one forward pass of warm-up for each stage that follows, whose transfers block: the
// host waits for what it receives. Interleaved, 2 (p - stage - 1) + (v - 1) p of them, whose
// transfers run beside the passes. A message is a tensor rank's part of the residual stream.
TEST(Mechanisms, OfMegatronLmsPipeline) {
  const Workload plain = lowered_workload("megatron-lm", pipelined_by({}));
  const Workload interleaved =
      lowered_workload("megatron-lm", pipelined_by({"parallel.virtual_pipeline=2"}));
  for (std::int64_t stage = 0; stage < 2; ++stage) {
    const auto at = static_cast<std::size_t>(stage);
    PipelineStage expected{.stage = stage, .host_waits = true};
    const Lines one = Story(plain.programs[at], true).lines;
    EXPECT_EQ(passes_of(one), lines_of(expected, one_forward_one_backward(expected)));
    expected.chunks = 2;
    expected.host_waits = false;
    const Lines two = Story(interleaved.programs[at], true).lines;
    EXPECT_EQ(passes_of(two), lines_of(expected, one_forward_one_backward(expected)));
    EXPECT_TRUE(waiting_for(two, "send").empty());
    EXPECT_EQ(message_sizes(one), std::set<std::int64_t>{SmallModel::kStream / 2});
    EXPECT_EQ(message_sizes(two), std::set<std::int64_t>{SmallModel::kStream / 2});
  }
}

struct Parameters {
  std::int64_t layer = 0, ends = 0;  ///< parameters of a layer, of the table or the output matrix
};

/// Behind which pass of the last microbatch each bucket is reduced: a layer's gradients are ready
/// when its pass is done.
Lines reductions_of(const Parameters& of, std::int64_t size, std::int64_t total) {
  const auto line = [](std::int64_t k, std::int64_t count, const std::string& pass) {
    return "reduce-scatter " + std::to_string(k) + ": " + std::to_string(4 * count) +
           " B on data after " + pass + " of 1";
  };
  Lines out;
  std::int64_t ready = of.ends, k = 0;
  for (int layer = 3; layer >= 0; --layer) {
    for (ready += of.layer; ready >= (k + 1) * size; ++k) {
      out.push_back(line(k, size, "layer backward " + std::to_string(layer)));
    }
  }
  out.push_back(line(k, total - k * size, "embedding backward"));
  return out;
}

// The distributed optimizer reduces buckets of max(40 M, 1 M x data) parameters in fp32, cut from
// the end and padded to 128 elements of every rank, beside the last microbatch's backward passes
// alone, and gathers them in 16 bits beside the next step's forward passes, the first layers'
// first.
TEST(Mechanisms, OfMegatronLmsBuckets) {
  constexpr std::int64_t kWide = 2048, kInner = 8192;
  for (const std::int64_t data : {4, 64}) {
    const Lines story =
        Story(lowered("megatron-lm",
                      {"model.hidden_size=2048", "model.intermediate_size=8192",
                       "model.num_hidden_layers=4", "batch.global=" + std::to_string(2 * data),
                       "cluster.accelerators=" + std::to_string(data)}),
              true)
            .lines;
    const Parameters parameters{4 * kWide * kWide + 3 * kWide * kInner + 2 * kWide,
                                SmallModel::kVocabulary * kWide};
    const std::int64_t shards = 128 * data;
    const std::int64_t size =
        padded_to(std::max<std::int64_t>(40'000'000, 1'000'000 * data), shards);
    const std::int64_t total =
        padded_to(4 * parameters.layer + 2 * parameters.ends + kWide, shards);
    EXPECT_EQ(starting_with(story, "reduce-scatter"), reductions_of(parameters, size, total));

    const std::int64_t first = total % size;
    const Lines gathers = starting_with(story, "all-gather");
    ASSERT_EQ(static_cast<std::int64_t>(gathers.size()), total / size + 1);
    for (std::size_t k = 0; k < gathers.size(); ++k) {
      const std::int64_t bytes = 2 * (k == 0 ? first : size);
      EXPECT_TRUE(gathers[k].starts_with("all-gather " + std::to_string(k) + ": " +
                                         std::to_string(bytes) + " B on data"))
          << gathers[k];
    }
    // A layer waits for the bucket that its last matrix ends in, and for none behind it.
    for (std::int64_t layer = 0; layer < 4; ++layer) {
      const std::int64_t end = total - parameters.ends - (3 - layer) * parameters.layer;
      const std::string last = std::to_string((end - first + size - 1) / size);
      const std::string pass = "layer forward " + std::to_string(layer) + " of 0";
      const Lines told = starting_with(story, pass);
      ASSERT_EQ(told.size(), 1U);
      EXPECT_TRUE(told[0].starts_with(pass + " after all-gather " + last + ",")) << told[0];
    }
    EXPECT_TRUE(with_part(waiting_for(story, "all-gather"), "of 1").empty());
  }
}

// A table that is tied stands on the first and the last stage: both ranks of a pair sum up the
// fp32 gradients of their part of it, V h / t, once, when all passes are done.
TEST(Mechanisms, OfMegatronLmsTiedTable) {
  const Workload workload =
      lowered_workload("megatron-lm", pipelined_by({"model.tie_word_embeddings=true"}));
  EXPECT_EQ(members_of(workload, "tied embedding"), 2U);
  const std::string bytes = std::to_string(4 * SmallModel::kVocabulary * SmallModel::kHidden / 2);
  for (const Program& program : workload.programs) {
    const Lines story = Story(program, true).lines;
    const Lines tied = with_part(story, "on tied embedding");
    ASSERT_EQ(tied.size(), 1U);
    EXPECT_NE(tied[0].find(": " + bytes + " B on tied embedding"), std::string::npos) << tied[0];
    const auto at = std::find(story.begin(), story.end(), tied[0]);
    EXPECT_TRUE(with_part(Lines(at, story.end()), "backward").empty());
    EXPECT_TRUE(story.back().starts_with("update"));
  }
  const Workload apart = lowered_workload("megatron-lm", pipelined_by({}));
  EXPECT_TRUE(with_part(Story(apart.programs[0]).lines, "tied").empty());
}

/// MegaScale's block on four tensor ranks, in two chunks a stage.
Workload megascale() {
  return lowered_workload(
      "megascale",
      {R"(model={"model_type": "gpt2", "n_embd": 256, "n_layer": 4, "n_head": 4, "n_inner": 1024,
          "n_positions": 128, "vocab_size": 1024, "use_parallel_residual": true,
          "num_ln_in_parallel_attn": 1, "tie_word_embeddings": false})",
       "parallel.tensor=4", "parallel.pipeline=2", "parallel.virtual_pipeline=2",
       "cluster.accelerators=16", "batch.global=8"});
}

// A parallel block has one gather and one reduction in each direction, cut into the parts of the
// four ranks: an exchange with a neighbour beside the product of the part that came before. The
// gather for the gradients of weights comes once more, whole.
TEST(Mechanisms, OfMegaScale) {
  const Workload workload = megascale();
  const Program& program = workload.programs.front();
  const std::string part = std::to_string(SmallModel::kStream / 4);
  const std::string exchange = ": sends " + part + " B, receives " + part + " B on tensor";
  const auto ring = [&](const std::string& gather, const std::string& product) {
    const std::string next = gather + exchange + " after " + gather + ", " + product;
    return Lines{gather + exchange + " after " + gather + ".own",
                 product,
                 next,
                 product + " after " + gather,
                 next,
                 product + " after " + gather,
                 product + " after " + gather};
  };
  Lines forward = ring("attention.gather", "attention.qkv");
  forward.insert(forward.end(), {"attention.core", "mlp.up", "attention.projection", "mlp.down"});
  for (int i = 0; i < 3; ++i) {
    forward.push_back("mlp.reduce" + exchange + " after mlp.down");
    forward.emplace_back("mlp.down");
  }
  forward.emplace_back("end after mlp.reduce");
  EXPECT_EQ(ops_of(program, "layer forward"), forward);

  Lines backward = ring("mlp.down.gather", "mlp.down.input_gradient");
  const Lines rest = streams_in(
      {"mlp.down.weight_gradient", "attention.projection.input_gradient",
       "attention.projection.weight_gradient", "mlp.up.gather<gather> after mlp.up.bias_gradient",
       "mlp.up.input_gradient", "mlp.up.weight_gradient after mlp.up.gather",
       "attention.core_gradient", "attention.qkv.input_gradient",
       "attention.qkv.reduce<scatter> after attention.qkv.input_gradient",
       "attention.qkv.weight_gradient", "end after attention.qkv.reduce"});
  backward.insert(backward.end(), rest.begin(), rest.end());
  EXPECT_EQ(ops_of(program, "layer backward"), backward);
}

// The gather of the first chunk's parameters is prefetched with the data, and each chunk waits for
// its own alone; gradients of a chunk are reduced right behind its last backward pass, beside the
// other chunk's. Sends and receives have streams of their own, and no pass waits for a send.
TEST(Mechanisms, OfMegaScalesChunks) {
  const Workload workload = megascale();
  constexpr std::int64_t kLayer =
      12 * SmallModel::kHidden * SmallModel::kHidden / 4;  // matrices of a tensor rank
  const PipelineStage stage{.chunks = 2};
  const Lines story = Story(workload.programs.front(), true).lines;
  EXPECT_EQ(passes_of(story), lines_of(stage, one_forward_one_backward(stage)));
  EXPECT_EQ(message_sizes(story), std::set<std::int64_t>{SmallModel::kStream / 4});
  EXPECT_TRUE(waiting_for(story, "send").empty());
  EXPECT_TRUE(story.front().starts_with("all-gather 0: ")) << story.front();

  // A chunk has a layer; the first one the table and the positions too.
  const auto near = [](const std::string& line, std::int64_t bytes_each, std::int64_t count) {
    const std::int64_t bytes = std::stoll(line.substr(line.find(": ") + 2));
    EXPECT_GE(bytes, bytes_each * count) << line;
    EXPECT_LT(bytes, bytes_each * (count + 13 * SmallModel::kHidden + 128 * 2)) << line;
  };
  constexpr std::int64_t kFirst = kLayer + SmallModel::kVocabulary * SmallModel::kHidden / 4 +
                                  SmallModel::kTokens * SmallModel::kHidden;
  const Lines gathers = starting_with(story, "all-gather");
  ASSERT_EQ(gathers.size(), 2U);
  near(gathers[0], 2, kFirst);
  near(gathers[1], 2, kLayer);
  EXPECT_EQ(
      waiting_for(story, "all-gather"),
      (Lines{"embedding forward of 0 after all-gather 0", "layer forward 0 of 0 after all-gather 0",
             "layer forward 2 of 0 after all-gather 1, receive activations of 0"}));

  const auto reductions = starting_with(story, "reduce-scatter");
  ASSERT_EQ(reductions.size(), 2U);
  near(reductions[0], 4, kLayer);
  near(reductions[1], 4, kFirst);
  const Lines behind(std::find(story.begin(), story.end(), reductions[0]), story.end());
  const Lines before = passes_of(Lines(story.begin(), story.end() - std::ssize(behind)));
  EXPECT_EQ(before.back(), "layer backward 2 of 3");
  EXPECT_FALSE(starting_with(behind, "layer backward 0").empty());
  EXPECT_EQ(starting_with(waiting_for(story, "reduce-scatter"), "update").size(), 1U);
  EXPECT_EQ(waiting_for(story, "reduce-scatter").size(), 1U);
}

// All forward passes, then all backward ones from the last microbatch on, each stage computed again
// from its input, but for the last one before the gradient is there. Stages exchange b s h elements
// at their boundaries and nothing else.
TEST(Mechanisms, OfGPipe) {
  const Workload workload =
      lowered_workload("gpipe", {"parallel.pipeline=2", "cluster.accelerators=2",
                                 "model.num_hidden_layers=4", "batch.global=4"});
  for (std::int64_t at = 0; at < 2; ++at) {
    const Program& program = workload.programs[static_cast<std::size_t>(at)];
    const PipelineStage stage{.stage = at, .again = true};
    std::vector<ListedPass> passes;
    for (std::int64_t m = 0; m < 4; ++m) passes.push_back({.microbatch = m});
    for (std::int64_t m = 3; m >= 0; --m) passes.push_back({.forward = false, .microbatch = m});
    const Lines story = Story(program, true).lines;
    EXPECT_EQ(passes_of(story), lines_of(stage, passes));
    EXPECT_EQ(message_sizes(story), std::set<std::int64_t>{SmallModel::kStream});

    const Lines forward = {"attention.qkv", "attention.core", "attention.projection", "mlp.up",
                           "mlp.down"};
    EXPECT_EQ(ops_of(program, "layer forward"), forward);
    EXPECT_EQ(ops_of(program, "layer again"), forward);
    // One layer after the other: what computes again waits for no gradient.
    EXPECT_TRUE(with_part(waiting_for(story, "receive gradients"), "layer again").empty());
    EXPECT_TRUE(with_part(ops_of(program, "layer backward"), " on ").empty());
    EXPECT_TRUE(with_part(story, "all-").empty());
  }
}

}  // namespace
}  // namespace foretrain
