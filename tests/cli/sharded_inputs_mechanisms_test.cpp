// What ranks exchange that cut matrices into grids, share experts or parts of every sequence:
// Colossal-AI's 2D, DeepSpeed's experts and its Ulysses.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "tests/cli/mechanism_pipelines.h"

namespace foretrain {
namespace {

/// A linear y = x W^T of the layer, W [n, k].
struct Linear {
  std::string name, input;
  std::int64_t n = 0, k = 0;
};

constexpr std::int64_t kSide = 2, kRows = 2 * SmallModel::kTokens;

std::vector<Linear> linears() {
  constexpr std::int64_t kHidden = SmallModel::kHidden, kInner = SmallModel::kInner;
  return {{"attention.qkv", "attention.norm", 3 * kHidden, kHidden},
          {"attention.projection", "attention.core", kHidden, kHidden},
          {"mlp.up", "mlp.norm", 2 * kInner, kHidden},
          {"mlp.down", "mlp.activation", kHidden, kInner}};
}

Program on_grid() {
  return lowered("colossal-ai", {"parallel.tensor=4", "parallel.tensor_mode=2d", "batch.micro=2",
                                 "recompute=none"});
}

/// What linears broadcast and multiply in a forward pass; norms sum up rows beside.
Lines summa_forward() {
  Lines out;
  for (const Linear& linear : linears()) {
    const auto block = [](std::int64_t elements) { return 2 * elements / (kSide * kSide); };
    const auto name = [&](const char* way, std::int64_t step) {
      return linear.name + ".broadcast_" + way + " " + std::to_string(step);
    };
    for (std::int64_t step = 0; step < kSide; ++step) {
      out.push_back(name("row", step) + moved("broadcast", block(kRows * linear.k), "tensor row") +
                    " after " + linear.input);
      out.push_back(name("column", step) +
                    moved("broadcast", block(linear.n * linear.k), "tensor column") + " after " +
                    linear.input);
    }
    for (std::int64_t step = 0; step < kSide; ++step) {
      out.push_back(linear.name + " after " + name("row", step) + ", " + name("column", step));
    }
    if (linear.name == "attention.qkv") out.emplace_back("attention.core");
  }
  return out;
}

// SUMMA on q x q ranks: in each of q steps a block of x is broadcast along its row and one of W
// down its column, and the product of a step waits for its own blocks alone. Over both directions a
// linear sends 3 (q - 1)/q of x and as much of W: 6 (q - 1)/q where both are of one size.
TEST(Mechanisms, OfColossalAis2d) {
  const Program program = on_grid();
  Lines forward = ops_of(program, "layer forward");
  std::erase_if(forward, [](const std::string& line) {
    return line.find(".norm.reduce: all-reduce") != std::string::npos;
  });
  for (std::string& line : forward) {
    for (const std::string norm : {"attention.norm.reduce, ", "mlp.norm.reduce, "}) {
      const std::size_t at = line.find(norm);
      if (at != std::string::npos) line.erase(at, norm.size());
    }
  }
  std::erase_if(forward, [](const std::string& line) { return line.starts_with("end"); });
  EXPECT_EQ(forward, summa_forward());

  std::int64_t sent = 0, expected = 0;
  for (const Segment& segment : program.segments) {
    if (segment.name != "layer forward" && segment.name != "layer backward") continue;
    for (const Op& op : segment.ops) {
      const auto* c = std::get_if<Collective>(&program.works[op.work.index()]);
      if (c == nullptr || c->kind == CollectiveKind::kAllReduce) continue;
      EXPECT_TRUE(c->kind == CollectiveKind::kBroadcast || c->kind == CollectiveKind::kReduce);
      sent += (kSide - 1) * c->count;
    }
  }
  for (const Linear& linear : linears()) {
    expected += 3 * (kSide - 1) * (kRows * linear.k + linear.n * linear.k) / kSide;
  }
  EXPECT_EQ(sent, expected);
}

// d x of a linear: blocks of W broadcast down the column and partial sums reduced along the row.
// d W: blocks of x broadcast along the row and partial sums reduced down the column.
TEST(Mechanisms, OfColossalAis2dGradients) {
  const Lines backward = ops_of(on_grid(), "layer backward");
  for (const Linear& linear : linears()) {
    const std::int64_t x = 2 * kRows * linear.k / (kSide * kSide);
    const std::int64_t w = 2 * linear.n * linear.k / (kSide * kSide);
    const auto count = [&](const char* form, const std::string& kind, std::int64_t bytes,
                           const char* stream) {
      const Lines of = starting_with(backward, linear.name + form);
      return with_part(of, moved(kind.c_str(), bytes, stream)).size();
    };
    EXPECT_EQ(count(".input_gradient", "broadcast", w, "tensor column"), 2U) << linear.name;
    EXPECT_EQ(count(".input_gradient", "reduce", x, "tensor row"), 2U) << linear.name;
    EXPECT_EQ(count(".weight_gradient", "broadcast", x, "tensor row"), 2U) << linear.name;
    EXPECT_EQ(count(".weight_gradient", "reduce", w, "tensor column"), 2U) << linear.name;
  }
}

Workload with_experts(Lines sets) {
  const Lines more = {
      R"(model={"model_type": "gpt2", "n_embd": 256, "n_layer": 2, "n_head": 4, "n_inner": 1024,
          "n_positions": 128, "vocab_size": 1024, "num_experts": 8, "num_experts_per_tok": 1,
          "tie_word_embeddings": true})",
      "parallel.expert=2", "moe.routing=capacity", "host.synchronize=none"};
  sets.insert(sets.begin(), more.begin(), more.end());
  return lowered_workload("deepspeed", sets);
}

// Tokens go to their experts and come back in two all-to-alls of a layer, forward and backward,
// each of the room that all experts have: tokens x experts of a token x capacity factor, whatever
// is routed. Products with masks pick them and join what comes back; probabilities do not travel.
// What comes next on compute waits for the exchanges.
TEST(Mechanisms, OfDeepSpeedsExperts) {
  for (const std::int64_t factor : {1, 2}) {
    const Workload workload = with_experts({"moe.capacity_factor=" + std::to_string(factor)});
    const Program& program = workload.programs.front();
    const std::string rows = moved("all-to-all", factor * SmallModel::kStream, "expert");
    EXPECT_EQ(with_part(ops_of(program, "layer forward with experts"), rows),
              (Lines{"moe.dispatch.exchange" + rows + " after moe.masks.pick",
                     "moe.combine.exchange" + rows + " after moe.combine.unsort"}));
    EXPECT_EQ(ops_of(program, "layer forward with experts").back(),
              "moe.masks.join after moe.combine.exchange");
    const Lines backward = ops_of(program, "layer backward with experts");
    EXPECT_EQ(
        with_part(backward, rows),
        (Lines{"moe.combine_gradient.exchange" + rows + " after moe.masks.join_gradient",
               "moe.dispatch_gradient.exchange" + rows + " after moe.dispatch_gradient.unsort"}));
    for (const char* pass : {"layer forward with experts", "layer backward with experts"}) {
      EXPECT_EQ(with_part(ops_of(program, pass), "all-to-all").size(), 2U) << pass;
    }
    EXPECT_EQ(waiting_for(backward, "moe.combine_gradient.exchange"),
              Lines{"moe.experts.down.input_gradient after moe.combine_gradient.exchange"});
    EXPECT_EQ(starting_with(waiting_for(backward, "moe.dispatch_gradient.exchange"),
                            "moe.masks.pick_gradient")
                  .size(),
              1U);
  }
}

// Gradients of experts are all-reduced among the ranks that hold the same ones, those of the rest
// among all, after the backward pass.
TEST(Mechanisms, OfDeepSpeedsExpertGradients) {
  constexpr std::int64_t kHidden = SmallModel::kHidden, kInner = 1024, kExpertCount = 8,
                         kLayers = 2;
  const Workload workload = with_experts({});
  EXPECT_EQ(members_of(workload, "expert"), 2U);
  EXPECT_EQ(members_of(workload, "expert data"), 2U);
  EXPECT_EQ(members_of(workload, "data"), 4U);
  // Matrices and biases of qkv and projection, two norms with biases, the router.
  constexpr std::int64_t kShared =
      4 * kHidden * kHidden + 4 * kHidden + 4 * kHidden + kExpertCount * kHidden;
  constexpr std::int64_t kEnds =
      (SmallModel::kVocabulary + SmallModel::kTokens) * kHidden + 2 * kHidden;
  constexpr std::int64_t kExpert = 2 * kHidden * kInner + kInner + kHidden;
  const auto line = [](int number, std::int64_t count, std::int64_t ranks, const char* stream) {
    return "all-reduce " + std::to_string(number) + ": " +
           std::to_string(2 * padded_to(count, 128 * ranks)) + " B on " + stream;
  };
  const Lines story = Story(workload.programs.front()).lines;
  const Lines reductions = starting_with(story, "all-reduce");
  ASSERT_EQ(reductions.size(), 2U);
  EXPECT_TRUE(reductions[0].starts_with(line(0, kLayers * kShared + kEnds, 4, "data")))
      << reductions[0];
  EXPECT_TRUE(
      reductions[1].starts_with(line(1, kLayers * kExpert * kExpertCount / 2, 2, "expert data")))
      << reductions[1];
  EXPECT_EQ(story.back(), "update after all-reduce 0, all-reduce 1");
  EXPECT_LT(std::find(story.begin(), story.end(), "embedding backward"),
            std::find(story.begin(), story.end(), reductions[0]));
}

/// Bytes of the all-to-alls of a layer's segment that stand before an operation, and behind it.
std::pair<Bytes, Bytes> exchanged_around(const Program& program, const std::string& segment,
                                         const std::string& operation) {
  std::pair<Bytes, Bytes> out;
  bool behind = false;
  for (const Segment& s : program.segments) {
    if (s.name != segment) continue;
    for (const Op& op : s.ops) {
      behind = behind || op.name == operation;
      const auto* c = std::get_if<Collective>(&program.works[op.work.index()]);
      if (c == nullptr) continue;
      EXPECT_EQ(c->kind, CollectiveKind::kAllToAll) << op.name;
      (behind ? out.second : out.first) += bytes_of(c->dtype, c->count);
    }
  }
  return out;
}

// Ulysses: queries, keys and values of a rank's tokens become whole sequences of its heads, the
// output tokens again: 4 b s h x 2 B / P a layer forward, as much backward, and attention waits for
// it. Parameters are sharded over all ranks of data and sequences.
TEST(Mechanisms, OfUlysses) {
  for (const std::int64_t ranks : {2, 4}) {
    const Workload workload = lowered_workload(
        "deepspeed", {"parallel.context=" + std::to_string(ranks), "sharding.level=parameters",
                      "host.synchronize=none", "sharding.persist_elements=1000",
                      "sharding.reuse_elements=0", "batch.global=4", "cluster.accelerators=8"});
    const Program& program = workload.programs.front();
    EXPECT_EQ(members_of(workload, "context"), static_cast<std::size_t>(ranks));
    EXPECT_EQ(members_of(workload, "data"), 8U);
    const Bytes one = SmallModel::kStream / ranks;
    EXPECT_EQ(exchanged_around(program, "layer forward", "attention.core"),
              std::make_pair(3 * one, one));
    EXPECT_EQ(exchanged_around(program, "layer backward", "attention.core_gradient"),
              std::make_pair(one, 3 * one));
    for (const char* segment : {"layer forward", "layer backward"}) {
      const Lines waits = waiting_for(ops_of(program, segment), "attention.context.");
      const Lines compute = starting_with(waits, "attention.core");
      EXPECT_EQ(compute.size(), 1U) << segment;
      const bool forward = segment == std::string("layer forward");
      const char* next = forward ? "attention.projection" : "attention.qkv.input_gradient";
      EXPECT_EQ(starting_with(waits, next).size(), 1U) << segment;
    }
    const std::string unit = std::to_string(2 * SmallModel::kMatrices) + " B on data";
    const Lines story = Story(program).lines;
    const auto microbatches = static_cast<std::size_t>(ranks / 2);
    EXPECT_EQ(with_part(starting_with(story, "all-gather"), unit).size(), 6U * microbatches);
    EXPECT_EQ(with_part(starting_with(story, "reduce-scatter"), unit).size(), 3U * microbatches);
  }
}

}  // namespace
}  // namespace foretrain
