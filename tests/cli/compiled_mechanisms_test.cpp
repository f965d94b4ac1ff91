// What do systems exchange whose programs a compiler or a planner writes (MaxText, Alpa, nnScaler),
// and Colossal-AI, whose ranks keep whole activations as Alpa's and nnScaler's do: operations,
// sizes and what waits for what, from the descriptions of the systems.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/cli/mechanism_counts.h"
#include "tests/cli/mechanism_pipelines.h"

namespace foretrain {
namespace {

// Sharded parameters in a scanned loop: the next layer's are gathered in 16 bits beside this one's
// pass, forward and again backward, and every layer's gradients are reduce-scattered whole, in 16
// bits, beside the backward pass of the one before. Only what gradients read is computed again.
TEST(Mechanisms, OfMaxText) {
  constexpr int kLayers = 5;
  constexpr std::int64_t kLayer = 2 * (SmallModel::kMatrices + 2 * SmallModel::kHidden);
  constexpr std::int64_t kEnds =
      2 * (2 * SmallModel::kVocabulary * SmallModel::kHidden + SmallModel::kHidden);
  const Program program = lowered("maxtext", {"model.num_hidden_layers=5"});
  const auto pass = [](const char* way, int layer) {
    return "layer " + std::string(way) + " recomputed " + std::to_string(layer);
  };
  const auto gather = [](int number) { return on_data("all-gather", number, kLayer); };
  const auto after = [](int number) { return " after all-gather " + std::to_string(number); };
  Lines expected = {on_data("all-gather", 0, kEnds), "embedding forward after all-gather 0",
                    gather(1), gather(2)};
  for (int layer = 0; layer < kLayers; ++layer) {
    expected.push_back(pass("forward", layer) + after(layer + 1));
    if (layer + 2 < kLayers)
      expected.push_back(gather(layer + 3) + " after " + pass("forward", layer));
  }
  expected.insert(expected.end(), {"head forward", "head backward"});
  for (int i = 0; i < kLayers; ++i) {
    const std::string backward = pass("backward", kLayers - 1 - i);
    expected.push_back(backward + after(kLayers + 1 + i));
    expected.push_back(on_data("reduce-scatter", i, kLayer) + " after " + backward);
    if (i + 2 < kLayers) expected.push_back(gather(kLayers + 3 + i) + " after " + backward);
  }
  expected.insert(expected.end(), {"embedding backward", on_data("reduce-scatter", kLayers, kEnds) +
                                                             " after embedding backward"});
  Lines story = Story(program).lines;
  EXPECT_EQ(starting_with(story, "update").size(), 1U);
  // Where the loop backward begins to gather is not described: sizes alone.
  const Lines firsts = {gather(kLayers + 1), gather(kLayers + 2)};
  std::erase_if(story, [&](const std::string& line) {
    return line.starts_with("update") || line.starts_with(firsts[0]) || line.starts_with(firsts[1]);
  });
  EXPECT_EQ(story, expected);
  EXPECT_EQ(starting_with(Story(program).lines, "all-gather").size(), 1U + 2 * kLayers);

  const Lines again = ops_of(program, "layer backward recomputed");
  const Lines first = {"attention.qkv", "attention.core", "attention.projection", "mlp.up",
                       "mlp.down.input_gradient"};
  ASSERT_GT(again.size(), first.size());
  EXPECT_EQ(Lines(again.begin(), again.begin() + std::ssize(first)), first);
}

/// Whole activations on every tensor rank: two all-reduces a layer that the next product waits for.
Lines whole_forward() {
  return streams_in({"attention.qkv", "attention.core", "attention.projection",
                     "attention.reduce<reduce> after attention.projection",
                     "mlp.up after attention.reduce", "mlp.down",
                     "mlp.reduce<reduce> after mlp.down", "end after mlp.reduce"});
}

/// And two backward, in line with compute, which computes no weight's gradient meanwhile.
Lines in_line_backward() {
  return streams_in({"mlp.down.weight_gradient", "mlp.up.input_gradient",
                     "mlp.up.reduce<reduce> after mlp.up.input_gradient",
                     "mlp.up.weight_gradient after mlp.up.reduce",
                     "attention.projection.input_gradient", "attention.projection.weight_gradient",
                     "attention.core_gradient", "attention.qkv.input_gradient",
                     "attention.qkv.reduce<reduce> after attention.qkv.input_gradient",
                     "attention.qkv.weight_gradient after attention.qkv.reduce"});
}

Lines last_of(const Lines& lines, std::size_t count) {
  return {lines.end() - std::min(std::ssize(lines), static_cast<std::ptrdiff_t>(count)),
          lines.end()};
}

/// What ranks of the first of two stages hold: half of the table and of two layers' matrices, whole
/// norms; in 16 bits.
constexpr std::int64_t kFirstStage = 2 * (SmallModel::kVocabulary * SmallModel::kHidden / 2 +
                                          SmallModel::kMatrices + 4 * SmallModel::kHidden);

// Layers are computed again from their input, reductions included; 1F1B, whose transfers no pass
// waits for; 16-bit gradients are reduce-scattered after the last microbatch and updated weights
// gathered, nothing of it beside compute.
TEST(Mechanisms, OfAlpa) {
  const Workload workload = lowered_workload("alpa", pipelined_by({}));
  const Program& first = workload.programs.front();
  EXPECT_EQ(ops_of(first, "layer forward recomputed"), whole_forward());
  const Lines backward = ops_of(first, "layer backward recomputed");
  const Lines forward = whole_forward();
  ASSERT_GT(backward.size(), 5U);
  EXPECT_TRUE(std::equal(forward.begin(), forward.begin() + 5, backward.begin()));
  EXPECT_EQ(last_of(backward, in_line_backward().size()), in_line_backward());
  for (std::int64_t at = 0; at < 2; ++at) {
    const PipelineStage stage{.stage = at, .suffix = " recomputed"};
    const Lines story = Story(workload.programs[static_cast<std::size_t>(at)], true).lines;
    Lines passes = passes_of(story);
    std::erase_if(passes, [](const std::string& line) { return line.starts_with("gather "); });
    EXPECT_EQ(passes, lines_of(stage, one_forward_one_backward(stage)));
    EXPECT_TRUE(waiting_for(story, "send").empty());
  }
  EXPECT_EQ(last_of(Story(first, true).lines, 3),
            (Lines{on_data("reduce-scatter", 0, kFirstStage) + " after embedding backward of 3",
                   "update after reduce-scatter 0",
                   on_data("all-gather", 0, kFirstStage) + " after update"}));
}

// Operators cut by output or input, whole activations between them. 1F1B, where compute waits for
// every transfer; bf16 gradients all-reduced after the last microbatch, weights gathered after the
// update of a rank's shard.
TEST(Mechanisms, OfNnScaler) {
  const Workload workload = lowered_workload("nnscaler", pipelined_by({}));
  const Program& first = workload.programs.front();
  EXPECT_EQ(ops_of(first, "layer forward"), whole_forward());
  EXPECT_EQ(with_part(ops_of(first, "layer backward"), " on "),
            with_part(in_line_backward(), " on "));
  for (std::int64_t at = 0; at < 2; ++at) {
    const PipelineStage stage{.stage = at};
    const Lines story = Story(workload.programs[static_cast<std::size_t>(at)], true).lines;
    EXPECT_EQ(passes_of(story), lines_of(stage, one_forward_one_backward(stage)));
    EXPECT_EQ(message_sizes(story), std::set<std::int64_t>{SmallModel::kStream});
  }
  const Lines story = Story(first, true).lines;
  EXPECT_EQ(waiting_for(story, "send activations").size(), 4U);
  EXPECT_EQ(waiting_for(story, "receive gradients").size(), 4U);
  EXPECT_EQ(last_of(story, 3),
            (Lines{on_data("all-reduce", 0, kFirstStage) + " after embedding backward of 3",
                   "update after all-reduce 0",
                   on_data("all-gather", 0, kFirstStage) + " after update"}));
}

/// Place of a line in the story; what is not there stands last.
std::ptrdiff_t place_of(const Lines& passes, const std::string& line) {
  return std::find(passes.begin(), passes.end(), line) - passes.begin();
}

/// Elements of a parameter that the Program's ranks hold.
std::int64_t held(const Program& program, const std::string& parameter) {
  std::int64_t out = 0;
  for (const FrameLayout& layout : program.layouts) {
    for (const Buffer& buffer : layout.buffers) {
      if (buffer.kind == BufferKind::kParameters && buffer.name == parameter) out += buffer.count;
    }
  }
  return out;
}

// The interlaced pipeline: table and output matrix are cut among all ranks of all stages, and every
// stage takes part in their passes between those of its layers. What they look up is reduced to the
// first stage; the last stage's hidden states are broadcast, and their gradients reduced to it.
TEST(Mechanisms, OfNnScalersInterlacedVocabulary) {
  const Workload workload =
      lowered_workload("nnscaler", pipelined_by({"schedule=1f1b-interlaced"}));
  EXPECT_EQ(members_of(workload, "vocabulary"), 4U);
  EXPECT_EQ(members_of(workload, "stages"), 2U);
  const auto stream = [](const char* kind) { return moved(kind, SmallModel::kStream, "stages"); };
  const std::string statistic = moved("all-reduce", 4 * SmallModel::kTokens, "vocabulary");
  for (const Program& program : workload.programs) {
    const bool first = &program == &workload.programs.front();
    EXPECT_EQ(held(program, "embedding.tokens"), SmallModel::kVocabulary * SmallModel::kHidden / 4);
    EXPECT_EQ(held(program, "head.output"), SmallModel::kVocabulary * SmallModel::kHidden / 4);
    EXPECT_EQ(ops_of(program, "embedding forward").front(),
              "embedding.stages.reduce 0" + stream("reduce") + " after embedding.tokens");
    const Lines head = ops_of(program, "head forward");
    EXPECT_EQ(
        Lines(head.begin(), head.begin() + 2),
        (Lines{"head.stages.broadcast 1" + stream("broadcast") + (first ? "" : " after head.norm"),
               "head.output after head.stages.broadcast 1"}));
    EXPECT_EQ(with_part(head, statistic).size(), 3U);
    EXPECT_EQ(
        with_part(ops_of(program, "head backward"), "on stages"),
        Lines{"head.stages.reduce 1" + stream("reduce") + " after head.output.input_gradient"});
    EXPECT_EQ(ops_of(program, "embedding backward"),
              (Lines{"embedding.stages.broadcast 0" + stream("broadcast"),
                     "end after embedding.stages.broadcast 0"}));

    const Lines passes = passes_of(Story(program, true).lines);
    for (int microbatch = 0; microbatch < 4; ++microbatch) {
      const std::string of = " of " + std::to_string(microbatch);
      const std::string layer = first ? "0" : "2";
      const Lines order = {
          "embedding forward" + of, "layer forward " + layer + of,  "head forward" + of,
          "head backward" + of,     "layer backward " + layer + of, "embedding backward" + of};
      for (std::size_t i = 1; i < order.size(); ++i) {
        EXPECT_LT(place_of(passes, order[i - 1]), place_of(passes, order[i])) << order[i];
      }
      EXPECT_LT(place_of(passes, order.back()), std::ssize(passes));
    }
  }
}

/// The products of that name in a segment.
std::vector<Gemm> products_of(const Program& program, const std::string& segment,
                              const std::string& name) {
  std::vector<Gemm> out;
  for (const Segment& s : program.segments) {
    if (s.name != segment) continue;
    for (const Op& op : s.ops) {
      const auto* gemm = std::get_if<Gemm>(&program.works[op.work.index()]);
      if (gemm != nullptr && op.name == name) out.push_back(*gemm);
    }
  }
  return out;
}

// co-shard: a device computes parts of a layer one after the other, each of 1/n of the heads and of
// the MLP's width, and again right before the part's gradients. Nothing travels.
TEST(Mechanisms, OfNnScalersCoShard) {
  const Program program =
      lowered("nnscaler", {R"(recompute={"co_shard": 2})", "cluster.accelerators=2"});
  const auto twice = [](const Lines& part) {
    Lines out = part;
    out.insert(out.end(), part.begin(), part.end());
    return out;
  };
  Lines forward = twice({"attention.qkv", "attention.core", "attention.projection"});
  const Lines mlp = twice({"mlp.up", "mlp.down"});
  forward.insert(forward.end(), mlp.begin(), mlp.end());
  EXPECT_EQ(ops_of(program, "layer forward recomputed"), forward);
  Lines backward = twice({"mlp.up", "mlp.down.input_gradient", "mlp.down.weight_gradient",
                          "mlp.up.input_gradient", "mlp.up.weight_gradient"});
  const Lines attention =
      twice({"attention.qkv", "attention.core", "attention.projection.input_gradient",
             "attention.projection.weight_gradient", "attention.core_gradient",
             "attention.qkv.input_gradient", "attention.qkv.weight_gradient"});
  backward.insert(backward.end(), attention.begin(), attention.end());
  EXPECT_EQ(ops_of(program, "layer backward recomputed"), backward);
  for (const char* segment : {"layer forward recomputed", "layer backward recomputed"}) {
    for (const Gemm& gemm : products_of(program, segment, "attention.qkv")) {
      EXPECT_EQ(gemm.n, 3 * SmallModel::kHidden / 2);
    }
    for (const Gemm& gemm : products_of(program, segment, "mlp.up")) {
      EXPECT_EQ(gemm.n, 2 * SmallModel::kInner / 2);
    }
  }
}

// 1D tensor parallelism: two all-reduces forward, of which a checkpointed layer's are repeated, and
// two backward in line; fp16 gradients are all-reduced after the last microbatch. Transfers of
// tensor ranks' parts block, and the host waits for them.
TEST(Mechanisms, OfColossalAi) {
  const Workload workload = lowered_workload("colossal-ai", pipelined_by({}));
  const Program& first = workload.programs.front();
  Lines backward = whole_forward();
  EXPECT_EQ(ops_of(first, "layer forward recomputed"), backward);
  backward.back() = "mlp.down.input_gradient after mlp.reduce";
  const Lines gradients = in_line_backward();
  backward.insert(backward.end(), gradients.begin(), gradients.end());
  EXPECT_EQ(ops_of(first, "layer backward recomputed"), backward);

  const PipelineStage stage{.host_waits = true, .suffix = " recomputed"};
  const Lines story = Story(first, true).lines;
  Lines passes = passes_of(story);
  // A pass begins when the parts are gathered.
  EXPECT_EQ(starting_with(passes, "gather gradients").size(), 4U);
  std::erase_if(passes, [](const std::string& line) { return line.starts_with("gather "); });
  EXPECT_EQ(passes, lines_of(stage, one_forward_one_backward(stage)));
  EXPECT_EQ(message_sizes(story), std::set<std::int64_t>{SmallModel::kStream / 2});
  EXPECT_EQ(waiting_for(story, "send activations").size(), 4U);
  const Lines last = last_of(story, 2);
  EXPECT_TRUE(last[0].starts_with(on_data("all-reduce", 0, kFirstStage))) << last[0];
  EXPECT_EQ(last[1], "update after all-reduce 0");
  EXPECT_EQ(with_part(story, " on data").size(), 1U);
}

}  // namespace
}  // namespace foretrain
