// Do pipelines have the bubbles and the activations in flight that their papers derive?
#include <gtest/gtest.h>

#include "models/lower.h"
#include "models/schedule/schedule.h"
#include "sim/program/memory.h"
#include "tests/support/pass_prices.h"
#include "tests/support/recording.h"
#include "tests/support/small_plans.h"
#include "tests/support/test_prices.h"

namespace foretrain {
namespace {

constexpr std::int64_t kForwardPs = 1'000'003;   // of one layer
constexpr std::int64_t kBackwardPs = 2'500'011;  // of one layer

/// Only the attention cores cost anything, so a pass takes layers x its price.
Time iteration(const Model& model, const Plan& plan) {
  Rates rates;
  rates.attention_forward = Time{kForwardPs};
  rates.attention_backward = Time{kBackwardPs};
  TestPrices prices(rates);
  const Result<Replayed> result = replay_all(lower(model, plan), prices, true);
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? result.value().replay.end : Time{};
}

constexpr HostWaits kHostWaits[] = {HostWaits::kNone, HostWaits::kForward, HostWaits::kTransfers,
                                    HostWaits::kPasses};

// Where only launches cost time, stages launch side by side, one microbatch or not; a host that
// waits for what it receives launches after the stages before it: p stages take p times as long.
TEST(PipelineBubble, HostsThatWaitLaunchOneAfterAnother) {
  const Model model = small_llama();
  Rates rates;
  rates.launch = Time{kForwardPs};
  const auto time_of = [&](HostWaits waits) {
    Plan plan = small_plan(model, {1, 8, 1, 1}, 1);
    plan.host_waits = waits;
    TestPrices prices(rates);
    const Result<Replayed> result = replay_all(lower(model, plan), prices, true);
    EXPECT_TRUE(result.ok()) << result.error().message;
    return result.ok() ? result.value().replay.end.ps : 0;
  };
  const std::int64_t ahead = time_of(HostWaits::kNone);
  const std::int64_t chain = time_of(HostWaits::kTransfers);
  EXPECT_GT(chain, 5 * ahead);
  EXPECT_GE(time_of(HostWaits::kPasses), chain);
  EXPECT_GT(time_of(HostWaits::kForward), ahead);
  EXPECT_LT(time_of(HostWaits::kForward), chain);
}

// p stages of F + B each, m microbatches: (m + p - 1) (F + B), for GPipe and 1F1B alike
// (Huang et al. 2019; Narayanan et al. 2019).
TEST(PipelineBubble, GpipeAnd1f1b) {
  const Model model = small_llama();
  for (const Schedule schedule : {Schedule::kGpipe, Schedule::k1F1B}) {
    for (const std::int64_t p : {1, 2, 4, 8}) {
      for (const std::int64_t m : {1, 2, 3, 4, 7, 8, 16}) {
        for (const bool overlap : {false, true}) {
          for (const HostWaits waits : kHostWaits) {
            Plan plan = small_plan(model, {1, p, 1, 1}, m);
            plan.schedule = schedule;
            plan.overlap.pipeline = overlap;
            plan.host_waits = waits;
            const std::int64_t stage = model.layers / p * (kForwardPs + kBackwardPs);
            EXPECT_EQ(iteration(model, plan).ps, (m + p - 1) * stage)
                << describe(model, plan) << " m " << m;
          }
        }
      }
    }
  }
}

// v chunks a stage: (m v + p - 1) (F + B) / v, F and B those of all chunks of a stage (Narayanan et
// al. 2021).
TEST(PipelineBubble, Interleaved) {
  const Model model = small_llama();
  for (const std::int64_t p : {2, 4}) {
    for (const std::int64_t v : {2, 4}) {
      if (p * v > model.layers) continue;
      for (const std::int64_t groups : {1, 2, 3, 4}) {
        const std::int64_t m = p * groups;
        for (const HostWaits waits : kHostWaits) {
          Plan plan = small_plan(model, {1, p, v, 1}, m);
          plan.host_waits = waits;
          const std::int64_t chunk = model.layers / (p * v) * (kForwardPs + kBackwardPs);
          EXPECT_EQ(iteration(model, plan).ps, (m * v + p - 1) * chunk) << describe(model, plan);
        }
      }
    }
  }
}

constexpr std::int64_t kPassPs = 4'000'000;  // of one layer: F, B and W alike
constexpr PassDurations kEqual{Time{kPassPs}, Time{kPassPs}, Time{kPassPs}, Time{}};

// arXiv 2401.10241, with TF = TB = TW = T: the bubble of ZB-H1 is (p - 1)(TF + TB - TW), that of
// ZB-H2 (p - 1)(TF + TB - 2 TW) from a stage's own first pass on; as the first stage starts p - 1
// passes before the last, and all wait for the norm of the gradients, the step takes as long.
TEST(PipelineBubble, ZeroBubble) {
  const Model model = pass_model();
  for (const std::int64_t p : {1, 2, 4, 8}) {
    for (const std::int64_t m : {2 * p, 2 * p + 1, 5 * p}) {
      for (const Schedule schedule : {Schedule::kZbH1, Schedule::kZbH2}) {
        Plan plan = small_plan(model, {1, p, 1, 1}, m);
        plan.schedule = schedule;
        PassPrices prices(kEqual);
        const Result<Replayed> result = replay_all(lower(model, plan), prices, true);
        ASSERT_TRUE(result.ok()) << result.error().message;
        const std::int64_t pass = model.layers / p * kPassPs;
        EXPECT_EQ(result.value().replay.end.ps, (3 * m + p - 1) * pass) << describe(model, plan);
        if (schedule == Schedule::kZbH1) {
          // The same list as a user would write it.
          plan.passes = passes_of(plan);
          plan.schedule = Schedule::kFile;
          const Result<Replayed> own = replay_all(lower(model, plan), prices, true);
          ASSERT_TRUE(own.ok()) << own.error().message;
          EXPECT_EQ(own.value().replay.end.ps, result.value().replay.end.ps);
          continue;
        }
        for (std::int32_t rank = 0; rank < p; ++rank) {
          EXPECT_EQ(span_of(result.value().sink.of(rank), kPassPs / 4), 3 * m * pass)
              << describe(model, plan) << " rank " << rank;
        }
      }
    }
  }
}

// arXiv 2405.15362: two chunks a stage in the shape of a V, p - 1 passes until the last stage
// starts, and no other bubble.
TEST(PipelineBubble, VShape) {
  const Model model = pass_model();
  for (const std::int64_t p : {2, 4}) {
    for (const std::int64_t m : {p, 2 * p, 2 * p + 1, 5 * p}) {
      Plan plan = small_plan(model, {1, p, 2, 1}, m);
      plan.schedule = Schedule::kZbV;
      PassPrices prices(kEqual);
      const Result<Replayed> result = replay_all(lower(model, plan), prices, true);
      ASSERT_TRUE(result.ok()) << result.error().message;
      const std::int64_t pass = model.layers / (2 * p) * kPassPs;
      EXPECT_EQ(result.value().replay.end.ps, (6 * m + p - 1) * pass) << describe(model, plan);
    }
  }
}

Bytes saved_bytes(const Program& program, const std::string& layout_name) {
  Bytes sum = 0;
  for (const FrameLayout& layout : program.layouts) {
    if (layout.name != layout_name) continue;
    for (const Buffer& buffer : layout.buffers) sum += buffer.saved ? buffer.bytes() : 0;
  }
  return sum;
}

// Most bytes kept for the backward pass on a stage: `in_flight` passes of `layers` layers, each
// with what it saves and its input; the output of the pass that runs now, still to be sent; on the
// last stage the head's for `heads` microbatches, their outputs being the heads' inputs.
void expect_in_flight(const Workload& workload, const Plan& plan, std::size_t stage,
                      std::int64_t layers, std::int64_t in_flight, std::int64_t heads) {
  const Program& program = workload.programs[stage];
  const Bytes hidden = saved_bytes(program, "hidden");
  const Bytes layer = saved_bytes(program, "saved");
  ASSERT_GT(hidden, 0);
  ASSERT_GT(layer, 0);
  Bytes expected = in_flight * layers * (layer + hidden);
  expected += heads > 0 ? heads * (hidden + saved_bytes(program, "head saved")) : hidden;
  EXPECT_EQ(memory_peak(program).saved, expected)
      << "stage " << stage << " pipeline " << plan.pipeline << " m " << plan.microbatches();
}

TEST(PipelineMemory, ActivationsInFlight) {
  const Model model = small_llama();
  for (const std::int64_t p : {2, 4}) {
    for (const std::int64_t m : {1, 2, 3, 8}) {
      for (std::int64_t stage = 0; stage < p; ++stage) {
        const bool last = stage == p - 1;
        const auto s = static_cast<std::size_t>(stage);
        Plan plan = small_plan(model, {1, p, 1, 1}, m);
        // 1F1B: min(m, p - stage).
        expect_in_flight(lower(model, plan), plan, s, model.layers / p, std::min(m, p - stage),
                         last ? 1 : 0);
        // GPipe: m.
        plan.schedule = Schedule::kGpipe;
        expect_in_flight(lower(model, plan), plan, s, model.layers / p, m, last ? m : 0);
      }
    }
  }
}

// ZB-H1 on the last stage: besides the pass that runs, the inputs of the linears of the p - 1
// microbatches whose gradients of weights are behind: normed inputs, attention's output, the
// activation, the head's input. On the first none is behind: p passes, as 1F1B.
TEST(PipelineMemory, GradientsOfWeightsBehind) {
  const Model model = small_llama();
  for (const std::int64_t p : {2, 4}) {
    Plan plan = small_plan(model, {1, p, 1, 1}, 8);
    plan.schedule = Schedule::k1F1B;
    const Workload before = lower(model, plan);
    plan.schedule = Schedule::kZbH1;
    const Workload workload = lower(model, plan);
    const std::int64_t layers = model.layers / p;
    expect_in_flight(workload, plan, 0, layers, p, 0);
    const std::int64_t inputs = layers * (3 * model.hidden + model.intermediate) + model.hidden;
    const auto last = static_cast<std::size_t>(p - 1);
    EXPECT_EQ(memory_peak(workload.programs[last]).saved,
              memory_peak(before.programs[last]).saved + (p - 1) * plan.tokens() * inputs * 2);
  }
}

// Interleaved: warm-up + 1 passes, the warm-up being 2 (p - stage - 1) + (v - 1) p.
TEST(PipelineMemory, ActivationsInFlightInterleaved) {
  const Model model = small_llama();
  const std::int64_t v = 2;
  for (const std::int64_t p : {2, 4}) {
    const std::int64_t m = 4 * p;
    const Plan plan = small_plan(model, {1, p, v, 1}, m);
    const Workload workload = lower(model, plan);
    for (std::int64_t stage = 0; stage < p; ++stage) {
      const std::int64_t warmup = 2 * (p - stage - 1) + (v - 1) * p;
      expect_in_flight(workload, plan, static_cast<std::size_t>(stage), model.layers / (p * v),
                       warmup + 1, stage == p - 1 ? 1 : 0);
    }
  }
}

}  // namespace
}  // namespace foretrain
