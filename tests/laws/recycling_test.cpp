// Do forward passes whose output comes back have the bubble of 1F1B and keep nothing?
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "models/layers/layer.h"
#include "models/lower.h"
#include "sim/program/memory.h"
#include "sim/program/verify.h"
#include "tests/support/pass_prices.h"
#include "tests/support/recording.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

using Ps = std::int64_t;

Plan recycling_plan(const Model& model, std::int64_t p, std::int64_t m, std::int64_t forwards) {
  Plan plan = small_plan(model, {1, p, 1, 1}, m);
  plan.schedule = Schedule::k3F1B;
  plan.forwards = forwards;
  return plan;
}

Workload recycled_workload(const Model& model, const Plan& plan) {
  Workload workload = lower(model, plan);
  const Status status = verify(workload);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return workload;
}

Ps recycling_step(const Model& model, const Plan& plan, PassDurations durations) {
  PassPrices prices(durations);
  const Result<Replayed> result = replay_all(recycled_workload(model, plan), prices, true);
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? result.value().replay.end.ps : 0;
}

// m (n F + B) + (p - 1)(F + B) from m = p on: the bubble is that of 1F1B, derived in
// models/schedule/schedule.h; B as long as F, twice, three times as long.
TEST(PipelineBubble, Recycling) {
  Model model = pass_model();
  for (const std::int64_t p : {1, 2, 3, 4, 7}) {
    model.layers = 2 * p;
    for (const std::int64_t forwards : {1, 2, 3, 4}) {
      for (const std::int64_t backward : {1, 2, 3}) {
        for (const std::int64_t m : {p, p + 1, 2 * p, 3 * p + 1}) {
          const Ps f = 2 * 4'000'000;
          const Ps b = f * backward;
          const PassDurations d{Time{f / 2}, Time{b / 2}, Time{}, Time{}};
          const Plan plan = recycling_plan(model, p, m, forwards);
          EXPECT_EQ(recycling_step(model, plan, d), m * (forwards * f + b) + (p - 1) * (f + b))
              << describe(model, plan);
        }
      }
    }
  }
}

// Fewer microbatches than stages wait for what comes back: one of them takes n p F + p B.
TEST(PipelineBubble, RecyclingOneMicrobatch) {
  const Model model = pass_model();
  const PassDurations d{Time{4'000'000}, Time{8'000'000}, Time{}, Time{}};
  for (const std::int64_t p : {1, 2, 4, 8}) {
    EXPECT_EQ(recycling_step(model, recycling_plan(model, p, 1, 3), d),
              model.layers * (3 * 4 + 8) * 1'000'000);
  }
}

/// What of a frame's buffers an op allocates less what it frees, summed over a call.
std::map<std::int32_t, std::int64_t> left_by(const Program& program, const Call& call) {
  std::map<std::int32_t, std::int64_t> out;  // by frame
  for (const Op& op : program.segments[call.segment.index()].ops) {
    for (const BufferRef& ref : op.allocates) {
      ++out[call.frames[static_cast<std::size_t>(ref.frame)].value];
    }
    for (const BufferRef& ref : op.frees) {
      --out[call.frames[static_cast<std::size_t>(ref.frame)].value];
    }
  }
  return out;
}

// Of n forward passes of every layer n - 1 leave nothing but the stream behind it, and what they
// are given is gone once it has been read; the last leaves what it keeps.
TEST(PipelineMemory, RecyclingKeepsNothing) {
  const Model model = small_llama();
  for (const std::int64_t p : {1, 4}) {
    const Workload workload = recycled_workload(model, recycling_plan(model, p, 5, 3));
    for (const Program& program : workload.programs) {
      std::map<std::int32_t, int> leaving;  // by layer: forward passes that leave more
      std::map<std::int32_t, int> passes;
      for (const Call& call : program.calls) {
        const Segment& segment = program.segments[call.segment.index()];
        if (call.layer < 0 || !segment.name.starts_with("layer forward")) continue;
        ++passes[call.layer];
        std::int64_t left = 0;
        for (const auto& [frame, count] : left_by(program, call)) left += count;
        // The stream comes in and goes out.
        if (left > 0) ++leaving[call.layer];
      }
      for (const auto& [layer, count] : passes) {
        EXPECT_EQ(count, 3 * 5);
        EXPECT_EQ(leaving[layer], 5) << layer;
      }
    }
  }
}

// The same forward work n times, the head and the backward passes once.
TEST(RecyclingWork, Flops) {
  const Model model = small_llama();
  const auto flops = [&](std::int64_t forwards) {
    std::map<std::string, double> out;
    for (const Program& program :
         recycled_workload(model, recycling_plan(model, 2, 3, forwards)).programs) {
      for (const Call& call : program.calls) {
        for (const Op& op : program.segments[call.segment.index()].ops) {
          const bool layer = op.phase == Phase::kForward && call.layer >= 0;
          out[layer ? "layers forward" : "rest"] += flops_of(program.works[op.work.index()]);
        }
      }
    }
    return out;
  };
  auto expected = flops(1);
  expected["layers forward"] *= 3;
  EXPECT_EQ(flops(3), expected);
}

// On one rank: each pass but the first begins with the embedding of the same tokens and what the
// last layer gave in the pass before.
TEST(RecyclingWork, WhatComesBack) {
  const Model model = small_llama();
  const Workload workload = recycled_workload(model, recycling_plan(model, 1, 2, 3));
  const Program& program = workload.programs[0];
  FrameId embedded;
  FrameId stream;
  FrameId sum;
  int added = 0;
  for (const Call& call : program.calls) {
    const std::string& name = program.segments[call.segment.index()].name;
    if (name == "embedding forward") embedded = sum = call.frames[4];
    if (name.starts_with("layer forward")) {
      if (call.layer == 0) {
        EXPECT_EQ(call.frames[kInput], sum);
      }
      stream = call.frames[kOutput];
    }
    if (name != "add returned") continue;
    ++added;
    EXPECT_EQ(call.frames[0], embedded);
    EXPECT_EQ(call.frames[1], stream);
    sum = call.frames[2];
  }
  EXPECT_EQ(added, 2 * 2);
}

}  // namespace
}  // namespace foretrain
