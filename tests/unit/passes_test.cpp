// Are a rank's kernels put together as the passes of its schedule?
#include "sim/timeline/passes.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace foretrain {
namespace {

/// A kernel of one microbatch in one layer; kinds: f forward, i and w gradients of inputs and
/// weights, r computed again, u update.
struct Drawn {
  char kind;
  std::int32_t microbatch, layer;
};

std::string labels_of(const std::vector<Drawn>& kernels) {
  Timeline timeline;
  timeline.tracks.push_back({RankId(0), "rank 0", 1, {"compute"}});
  const std::string kinds = "fiwru";
  timeline.infos = {
      {"mlp.up", "gemm", Category::kCompute, Phase::kForward, 0, 0},
      {"mlp.up.input_gradient", "gemm", Category::kCompute, Phase::kBackward, 0, 0},
      {"mlp.up.weight_gradient", "gemm", Category::kCompute, Phase::kBackward, 0, 0},
      {"mlp.up", "gemm", Category::kCompute, Phase::kRecompute, 0, 0},
      {"optimizer.adam", "adam", Category::kCompute, Phase::kOptimizer, 0, 0},
  };
  Time at;
  for (const Drawn& kernel : kernels) {
    Span span;
    span.stream = StreamId(0);
    span.info = static_cast<std::int32_t>(kinds.find(kernel.kind));
    span.microbatch = kernel.microbatch;
    span.layer = kernel.layer;
    span.begin = span.start = at;
    at = span.end = at + Time{1000};
    timeline.spans.push_back(span);
  }
  std::string out;
  Time last;
  for (const SchedulePass& pass : schedule_passes(timeline)) {
    EXPECT_LE(last, pass.begin);
    EXPECT_LT(pass.begin, pass.end);
    last = pass.end;
    out += (out.empty() ? "" : " ") + label_of(pass);
  }
  EXPECT_LE(last, at);
  return out;
}

TEST(Passes, AreOfOneMicrobatchAndDirection) {
  EXPECT_EQ(labels_of({{'f', 0, -1},
                       {'f', 0, 0},
                       {'f', 0, 1},
                       {'f', 1, 0},
                       {'f', 1, 1},
                       {'i', 0, 1},
                       {'w', 0, 1},
                       {'i', 0, 0},
                       {'w', 0, 0},
                       {'u', -1, -1}}),
            "F0 F1 B0 U");
}

// Gradients of weights behind those of inputs are a pass of their own, of the same microbatch too.
TEST(Passes, OfWeightsAloneAreTold) {
  EXPECT_EQ(
      labels_of({{'f', 0, 0}, {'f', 0, 1}, {'i', 0, 1}, {'i', 0, 0}, {'w', 0, 1}, {'w', 0, 0}}),
      "F0 B0 W0");
}

// Two chunks of the model on one rank, one after the other.
TEST(Passes, OfTwoChunksAreTwo) {
  EXPECT_EQ(labels_of({{'f', 3, 0},
                       {'f', 3, 1},
                       {'f', 3, 8},
                       {'f', 3, 9},
                       {'i', 3, 9},
                       {'w', 3, 8},
                       {'i', 3, 1}}),
            "F3 F3 B3 B3");
}

TEST(Passes, HoldWhatIsComputedAgain) {
  EXPECT_EQ(
      labels_of({{'r', 0, 0}, {'r', 0, 1}, {'i', 0, 1}, {'w', 0, 1}, {'i', 0, 0}, {'w', 0, 0}}),
      "B0");
}

TEST(Passes, InTurnsAreOne) {
  EXPECT_EQ(labels_of({{'f', 4, 0}, {'i', 1, 1}, {'f', 4, 1}, {'i', 1, 0}, {'f', 5, 0}}),
            "F4+B1 F5");
  EXPECT_EQ(labels_of({{'f', 4, 0}, {'i', 1, 1}, {'f', 5, 0}, {'i', 2, 1}}), "F4 B1 F5 B2");
}

TEST(Passes, NeedMicrobatches) {
  EXPECT_EQ(labels_of({{'f', -1, 0}, {'i', -1, 0}, {'u', -1, -1}}), "");
}

}  // namespace
}  // namespace foretrain
