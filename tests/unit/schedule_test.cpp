// Are schedules and layouts those written out by hand?
#include "models/schedule.h"

#include <gtest/gtest.h>

#include <numeric>

namespace foretrain {
namespace {

/// "F0 B0": forward and backward of microbatches; with chunks "F1.0": chunk 1, microbatch 0.
std::string text(Schedule schedule, std::int64_t stage, std::int64_t p, std::int64_t v,
                 std::int64_t m) {
  std::string out;
  for (const Pass& pass : schedule_passes(schedule, stage, p, v, m)) {
    out += out.empty() ? "" : " ";
    out += pass.backward ? "B" : "F";
    if (v > 1) out += std::to_string(pass.chunk) + ".";
    out += std::to_string(pass.microbatch);
  }
  return out;
}

TEST(Schedule, Gpipe) {
  for (const std::int64_t stage : {0, 1, 2}) {
    EXPECT_EQ(text(Schedule::kGpipe, stage, 3, 1, 3), "F0 F1 F2 B2 B1 B0");
  }
}

// Warm-up of p - stage - 1 forwards.
TEST(Schedule, OneForwardOneBackward) {
  EXPECT_EQ(text(Schedule::k1F1B, 0, 3, 1, 4), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(text(Schedule::k1F1B, 1, 3, 1, 4), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(text(Schedule::k1F1B, 2, 3, 1, 4), "F0 B0 F1 B1 F2 B2 F3 B3");
  EXPECT_EQ(text(Schedule::k1F1B, 0, 4, 1, 2), "F0 F1 B0 B1");  // fewer microbatches than stages
  EXPECT_EQ(text(Schedule::k1F1B, 0, 1, 1, 2), "F0 B0 F1 B1");
}

// p = 2, v = 2, m = 4: chunks take turns every 2 microbatches. Warm-up 2 (p - stage - 1) + 2.
TEST(Schedule, Interleaved) {
  EXPECT_EQ(text(Schedule::kInterleaved, 0, 2, 2, 4),
            "F0.0 F0.1 F1.0 F1.1 F0.2 B1.0 F0.3 B1.1 F1.2 B0.0 F1.3 B0.1 B1.2 B1.3 B0.2 B0.3");
  EXPECT_EQ(text(Schedule::kInterleaved, 1, 2, 2, 4),
            "F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 F0.2 B0.0 F0.3 B0.1 F1.2 B1.2 F1.3 B1.3 B0.2 B0.3");
  // m = p: all forwards first, as Megatron-LM does.
  EXPECT_EQ(text(Schedule::kInterleaved, 1, 2, 2, 2), "F0.0 F0.1 F1.0 F1.1 B1.0 B1.1 B0.0 B0.1");
}

using Layout = std::vector<std::int64_t>;

TEST(DefaultLayout, Equal) {
  EXPECT_EQ(default_layout(8, 4), (Layout{2, 2, 2, 2}));
  EXPECT_EQ(default_layout(105, 35), Layout(35, 3));
  EXPECT_EQ(default_layout(105, 105), Layout(105, 1));
}

// 126 + 2 = 128: embedding and loss count as a layer each, so the ends hold one less.
TEST(DefaultLayout, EmbeddingAndLossCount) {
  Layout expected(128, 1);
  expected.front() = expected.back() = 0;
  EXPECT_EQ(default_layout(126, 128), expected);
  expected = Layout(16, 8);
  expected.front() = expected.back() = 7;
  EXPECT_EQ(default_layout(126, 16), expected);
}

// 61 = 16 x 3 + 13: thirteen chunks of 4, the shorter ones first and last.
TEST(DefaultLayout, AsEqualAsCanBe) {
  EXPECT_EQ(default_layout(61, 16), (Layout{3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3, 3}));
  EXPECT_EQ(default_layout(1, 2), (Layout{1, 0}));
}

// Chunks sum to the layers and differ by at most one, or by the ends' one.
TEST(DefaultLayout, AlwaysSums) {
  for (std::int64_t layers = 1; layers <= 130; ++layers) {
    for (std::int64_t chunks = 1; chunks <= layers + 2; ++chunks) {
      const Layout layout = default_layout(layers, chunks);
      ASSERT_EQ(static_cast<std::int64_t>(layout.size()), chunks);
      EXPECT_EQ(std::accumulate(layout.begin(), layout.end(), std::int64_t{0}), layers);
      const auto [low, high] = std::minmax_element(layout.begin(), layout.end());
      EXPECT_LE(*high - *low, chunks == 1 ? 0 : 1) << layers << " in " << chunks;
      EXPECT_GE(*low, 0);
    }
  }
}

}  // namespace
}  // namespace foretrain
