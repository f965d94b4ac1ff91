// Are schedules and layouts those written out by hand?
#include "models/schedule/schedule.h"
#include "models/plan/layout/plan_layout.h"
#include "tests/support/sanitized.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace foretrain {
namespace {

/// "F0 B0": forward and backward of microbatches; with chunks "F1.0": chunk 1, microbatch 0.
std::string text(Schedule schedule, std::int64_t stage, std::int64_t p, std::int64_t v,
                 std::int64_t m) {
  std::string out;
  for (const Pass& pass : schedule_passes(schedule, stage, p, v, m)) {
    out += out.empty() ? "" : " ";
    out += pass.kind == PassKind::kForward           ? "F"
           : pass.kind == PassKind::kWeightGradients ? "W"
                                                     : "B";
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

// 1F1B with W `stage` (h2: 2 stage) microbatches behind B.
TEST(Schedule, ZeroBubble) {
  EXPECT_EQ(text(Schedule::kZbH1, 0, 3, 1, 3), "F0 F1 F2 B0 W0 B1 W1 B2 W2");
  EXPECT_EQ(text(Schedule::kZbH1, 2, 3, 1, 4), "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3");
  EXPECT_EQ(text(Schedule::kZbH2, 0, 2, 1, 4), "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3");
  EXPECT_EQ(text(Schedule::kZbH2, 1, 2, 1, 3), "F0 B0 F1 B1 F2 B2 W0 W1 W2");
}

Plan plan_of(Schedule schedule, std::int64_t p, std::int64_t v, std::int64_t m) {
  Plan plan;
  plan.schedule = schedule;
  plan.pipeline = p;
  plan.virtual_pipeline = v;
  plan.global_batch = m;
  return plan;
}

/// Most passes whose gradients of weights are still to come.
std::int64_t in_flight(const std::vector<Pass>& passes) {
  std::int64_t now = 0;
  std::int64_t most = 0;
  for (const Pass& pass : passes) {
    if (pass.kind == PassKind::kForward) most = std::max(most, ++now);
    const bool whole = pass.kind == PassKind::kBackward;
    if (whole || pass.kind == PassKind::kWeightGradients) --now;
  }
  return most;
}

/// Which plans the schedule is made for.
bool possible(Schedule schedule, std::int64_t p, std::int64_t m) {
  switch (schedule) {
    case Schedule::kZbV:
      return p > 1;
    case Schedule::kDualPipeV:
      return p > 1 && m >= 2 * p;
    case Schedule::kDualPipe:
      return p % 2 == 0 && m % 2 == 0 && m >= 2 * p;
    case Schedule::kChimera:
      return p % 2 == 0 && m % 2 == 0;
    case Schedule::kSharedVocabulary:
    case Schedule::kVocabulary1:
    case Schedule::kVocabulary2:
      return p > 1;
    default:
      return true;
  }
}

/// Most passes in flight: on any stage, as far as the papers say; -1 where they do not.
std::int64_t most_in_flight(Schedule schedule, std::int64_t p, std::int64_t m) {
  switch (schedule) {
    case Schedule::kZbV:
      return std::min(2 * m, 2 * p);
    case Schedule::kZbH1:
      return std::min(m, p);
    case Schedule::kZbH2:
      return std::min(m, 2 * p - 1);
    case Schedule::kDualPipe:
      return p + 1;
    case Schedule::kDualPipeV:
      return 2 * p + 1;
    case Schedule::kSharedVocabulary:
      return std::min(m, 3 * p / 2);
    case Schedule::k3F1B:
      return std::min(m, p);
    default:
      return -1;
  }
}

void expect_runs_through(Schedule schedule, std::int64_t p, std::int64_t m) {
  SCOPED_TRACE("p " + std::to_string(p) + " m " + std::to_string(m));
  Plan plan = plan_of(schedule, p, 1, m);
  if (plan.placement() == ChunkPlacement::kV) plan.virtual_pipeline = 2;
  if (schedule == Schedule::kBreadthFirst && p > 1) plan.virtual_pipeline = 1 + m % 3;
  if (schedule == Schedule::k3F1B) plan.forwards = 1 + m % 4;
  const auto passes = passes_of(plan);
  const Status status = check_passes(plan, passes);
  ASSERT_TRUE(status.ok()) << status.error().message;
  const std::int64_t most = most_in_flight(schedule, p, m);
  if (most < 0) return;
  const bool uneven = plan.directions() == 2 || schedule == Schedule::kDualPipeV ||
                      schedule == Schedule::kSharedVocabulary || schedule == Schedule::k3F1B;
  std::int64_t found = 0;
  for (const auto& list : passes) {
    const std::int64_t here = in_flight(list);
    found = std::max(found, here);
    EXPECT_TRUE(uneven || here == most) << here;
  }
  EXPECT_EQ(found, most);
}

// Complete, free of deadlock, messages in order, whatever the sizes; and no more in flight than
// the papers say.
TEST(Schedule, AllRunThrough) {
  for (std::int64_t p = 1; p <= 9; ++p) {
    for (std::int64_t m = 1; m <= 24; m += cases(1, 5)) {
      for (const Schedule schedule :
           {Schedule::kGpipe, Schedule::k1F1B, Schedule::kZbH1, Schedule::kZbH2, Schedule::kZbV,
            Schedule::kZbAuto, Schedule::kDualPipe, Schedule::kDualPipeV, Schedule::kChimera,
            Schedule::kBreadthFirst, Schedule::kSharedVocabulary, Schedule::kVocabulary1,
            Schedule::kVocabulary2, Schedule::k3F1B}) {
        if (possible(schedule, p, m)) expect_runs_through(schedule, p, m);
      }
    }
  }
}

// A forward and a backward pass that run as one do not need each other, on any stage.
TEST(Schedule, PairsRunThrough) {
  for (std::int64_t p = 1; p <= 6; ++p) {
    for (std::int64_t m = 1; m <= 20; ++m) {
      for (std::int64_t v = 1; v <= 3; ++v) {
        if (v > 1 && (p == 1 || m % p != 0)) continue;
        Plan plan = plan_of(v > 1 ? Schedule::kInterleaved : Schedule::k1F1B, p, v, m);
        plan.overlap.passes = true;
        const auto passes = passes_of(plan);
        const Status status = check_passes(plan, passes);
        ASSERT_TRUE(status.ok()) << p << " " << v << " " << m << " " << status.error().message;
        if (v == 1 && m > p) {
          EXPECT_EQ(in_flight(passes.front()), p + 1);
        }
      }
    }
  }
}

/// The most microbatches of activations that a stage keeps, of which the weights' gradients need
/// `share`.
double most_kept(const std::vector<Pass>& passes, double share) {
  double kept = 0;
  double most = 0;
  for (const Pass& pass : passes) {
    if (pass.kind == PassKind::kForward) kept += 1;
    if (pass.kind == PassKind::kInputGradients) kept -= 1 - share;
    if (pass.kind == PassKind::kWeightGradients) kept -= share;
    most = std::max(most, kept);
  }
  return most;
}

// The heuristic keeps to its limit, and to the published answer where all passes are equal: zb-1p
// waits as zb-h1 does, zb-2p not at all after its first pass.
TEST(Schedule, AutomaticKeepsToItsLimit) {
  for (const double share : {0.3, 1.0}) {
    for (std::int64_t p = 1; p <= 8; ++p) {
      for (const double limit : {1.0, 1.5, 4.0, 8.0, 16.0}) {
        const AutoSchedule given{Time{17}, Time{19}, Time{11}, Time{3}, limit, share};
        for (const auto& list : automatic_passes(given, p, 20)) {
          EXPECT_LE(most_kept(list, share), limit + 1e-5) << "p " << p;
        }
      }
    }
  }
}

// Eight stages, twenty microbatches, the first stage of the figure in DualPipe's README: seven
// forwards down, one up, backwards from the other side from then on.
TEST(Schedule, DualPipe) {
  EXPECT_EQ(text(Schedule::kDualPipeV, 1, 2, 2, 4),
            "F0.0 F1.0 F0.1 F1.1 F0.2 B1.0 W1.0 F1.2 B0.0 W0.0 F0.3 B1.1 W1.1 F1.3 B0.1 W0.1 "
            "B1.2 W1.2 B0.2 W0.2 B1.3 B0.3 W1.3 W0.3");
  const std::string first = text(Schedule::kDualPipe, 0, 8, 2, 20);
  EXPECT_EQ(first.substr(0, 54), "F0.0 F0.1 F0.2 F0.3 F0.4 F0.5 F0.6 F1.10 B1.10 W1.10 F");
}

/// "2F0": the second forward pass of microbatch 0, of which only the last is "F".
std::string recycling(std::int64_t stage, std::int64_t p, std::int64_t m, std::int64_t forwards) {
  Plan plan = plan_of(Schedule::k3F1B, p, 1, m);
  plan.forwards = forwards;
  std::string out;
  for (const Pass& pass : recycling_passes(plan, stage)) {
    out += out.empty() ? "" : " ";
    if (pass.kind == PassKind::kForwardOnly) out += std::to_string(pass.round + 1);
    out += pass.kind == PassKind::kBackward ? "B" : "F";
    out += std::to_string(pass.microbatch);
  }
  return out;
}

// A turn is one pass of each kind, p microbatches apart; backward passes follow p - stage - 1 turns
// behind the last forward pass. One forward pass: 1F1B.
TEST(Schedule, Recycling) {
  EXPECT_EQ(recycling(0, 2, 3, 3), "1F0 1F1 1F2 2F0 2F1 2F2 F0 F1 B0 F2 B1 B2");
  EXPECT_EQ(recycling(1, 2, 3, 3), "1F0 1F1 1F2 2F0 2F1 2F2 F0 B0 F1 B1 F2 B2");
  EXPECT_EQ(recycling(0, 2, 6, 2), "1F0 1F1 1F2 F0 1F3 F1 B0 1F4 F2 B1 1F5 F3 B2 F4 B3 F5 B4 B5");
  EXPECT_EQ(recycling(0, 1, 2, 3), "1F0 2F0 F0 B0 1F1 2F1 F1 B1");
  for (const std::int64_t stage : {0, 1, 2}) {
    EXPECT_EQ(recycling(stage, 3, 5, 1), text(Schedule::k1F1B, stage, 3, 1, 5));
    Plan plan = plan_of(Schedule::k3F1B, 3, 1, 7);
    plan.forwards = 3;
    EXPECT_EQ(in_flight(recycling_passes(plan, stage)), 3 - stage);
  }
}

// What comes back must be taken in the order in which it is sent, and after it is sent.
TEST(Schedule, RecyclingFaultsAreNamed) {
  Plan plan = plan_of(Schedule::k3F1B, 2, 1, 2);
  plan.forwards = 2;
  const auto message = [&plan](const std::vector<std::vector<Pass>>& passes) {
    const Status status = check_passes(plan, passes);
    return status.ok() ? std::string() : status.error().message;
  };
  auto passes = passes_of(plan);
  EXPECT_EQ(message(passes), "");
  for (auto& list : passes) std::swap(list[0], list[1]);
  EXPECT_EQ(message(passes),
            "stage 0 runs 2. F of microbatch 0 on chunk 0 where stage 1 sends it the input of 2. F "
            "of microbatch 1 on chunk 0: messages keep their order");
  passes = passes_of(plan);
  std::swap(passes[0][0], passes[0][2]);
  EXPECT_EQ(message(passes),
            "stages wait for each other: stage 0 stops before pass 0, 2. F of microbatch 0 on "
            "chunk 0, which needs F of microbatch 0 on chunk 1");
  passes = passes_of(plan);
  passes[1].erase(passes[1].begin());
  EXPECT_EQ(message(passes), "F of microbatch 0 on chunk 1 is missing on stage 1");
}

TEST(Schedule, FaultsAreNamed) {
  const Plan plan = plan_of(Schedule::kZbH1, 2, 1, 3);
  const auto message = [&plan](const std::vector<std::vector<Pass>>& passes) {
    const Status status = check_passes(plan, passes);
    return status.ok() ? std::string() : status.error().message;
  };
  auto passes = passes_of(plan);
  EXPECT_EQ(message(passes), "");
  passes[1].pop_back();
  EXPECT_EQ(message(passes), "W of microbatch 2 on chunk 1 is missing on stage 1");
  passes = passes_of(plan);
  passes[0].push_back(passes[0].front());
  EXPECT_EQ(message(passes), "F of microbatch 0 on chunk 0 stands twice: stage 0, pass 9");
  const Plan both = plan_of(Schedule::kChimera, 2, 1, 2);
  auto ways = passes_of(both);
  ways[0][0].chunk = 1 - ways[0][0].chunk;
  EXPECT_EQ(check_passes(both, ways).error().message,
            "F of microbatch 0 on chunk 1 stands on stage 0, its way leads over stage 1");
  passes = passes_of(plan);
  std::swap(passes[0][0], passes[0][2]);  // F0 F1 B0 -> B0 F1 F0
  EXPECT_EQ(message(passes), "B of microbatch 0 on chunk 0 stands before its F: stage 0, pass 0");
  passes = passes_of(plan);
  for (auto& list : passes) {
    std::erase_if(list, [](const Pass& pass) { return pass.microbatch == 2; });
  }
  EXPECT_EQ(message(passes), "the passes are of 2 microbatches, the run has 3 a step");
  passes = passes_of(plan);
  std::swap(passes[0][0], passes[0][1]);  // F1 before F0
  EXPECT_EQ(message(passes),
            "stage 1 runs F of microbatch 0 on chunk 1 where stage 0 sends it the input of F of "
            "microbatch 1 on chunk 1: messages keep their order");
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

Layout even(std::int64_t layers, std::int64_t predicted, std::int64_t chunks) {
  Model model;
  model.layers = layers;
  model.predict_layers = predicted;
  Plan plan;
  plan.pipeline = chunks;
  return even_layout(model, plan);
}

// DeepSeek-V3's layouts in Megatron Bridge's recipes: a layer of multi-token prediction and its
// pass through the output matrix in the last chunk take the place of two layers.
TEST(EvenLayout, PredictionCounts) {
  EXPECT_EQ(even(61, 1, 4), (Layout{16, 16, 16, 13}));
  EXPECT_EQ(even(61, 1, 8), (Layout{8, 8, 8, 8, 8, 8, 8, 5}));
  Layout expected(16, 4);
  expected.back() = 1;
  EXPECT_EQ(even(61, 1, 16), expected);
  expected = Layout(32, 2);
  expected.front() = 1;
  expected.back() = 0;
  EXPECT_EQ(even(61, 1, 32), expected);
}

// Megatron-LM asks for no layout where layers divide, and puts the prediction behind the last ones.
TEST(EvenLayout, LayersThatDivideStayEqual) {
  EXPECT_EQ(even(60, 1, 4), Layout(4, 15));
  EXPECT_EQ(even(61, 0, 16), default_layout(61, 16));
}

TEST(EvenLayout, AlwaysSums) {
  for (std::int64_t layers = 1; layers <= 40; ++layers) {
    for (std::int64_t predicted = 0; predicted <= 3; ++predicted) {
      for (std::int64_t chunks = 1; chunks <= layers + 2; ++chunks) {
        const Layout layout = even(layers, predicted, chunks);
        ASSERT_EQ(static_cast<std::int64_t>(layout.size()), chunks);
        EXPECT_EQ(std::accumulate(layout.begin(), layout.end(), std::int64_t{0}), layers);
        for (std::size_t c = 0; c < layout.size(); ++c) {
          const bool end = c == 0 || c + 1 == layout.size();
          EXPECT_GE(layout[c], end ? 0 : 1) << layers << " + " << predicted << " in " << chunks;
        }
      }
    }
  }
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
