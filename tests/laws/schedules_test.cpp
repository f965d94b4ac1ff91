// Do schedules over two chunks or two pipelines have the bubbles that their authors derive, and
// those with zero bubbles the rates that were published?
#include <gtest/gtest.h>

#include "models/lower.h"
#include "models/schedule/schedule.h"
#include "sim/base/json.h"
#include "sim/program/memory.h"
#include "sim/program/verify.h"
#include "tests/support/pass_prices.h"
#include "tests/support/recording.h"
#include "tests/support/sanitized.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

using Ps = std::int64_t;

Result<Replayed> replayed(const Model& model, const Plan& plan, PassDurations durations) {
  PassPrices prices(durations);
  const Workload workload = lower(model, plan);
  const Status status = verify(workload);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return replay_all(workload, prices, true);
}

Ps step_of(const Model& model, const Plan& plan, PassDurations durations) {
  const Result<Replayed> result = replayed(model, plan, durations);
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? result.value().replay.end.ps : 0;
}

Plan plan_of(const Model& model, Schedule schedule, std::int64_t p, std::int64_t v,
             std::int64_t m) {
  Plan plan = small_plan(model, {1, p, v, 1}, m);
  plan.schedule = schedule;
  plan.pipeline_layout = default_layout(model.layers, plan.chunks());
  return plan;
}

/// F, B (of inputs) and W of one layer.
PassDurations durations(Ps f, Ps b, Ps w) {
  return {Time{f * 4'000'000}, Time{b * 4'000'000}, Time{w * 4'000'000}, Time{}};
}

// (p/2 - 1)(F&B + B - 3W), B the whole backward pass (DeepSeek-AI, DualPipe's README). With nothing
// overlapped F&B = F + B; holds where gradients of inputs take as long as the forward pass and
// those of weights no longer.
TEST(PipelineBubble, DualPipe) {
  const Model model = pass_model();
  const Ps cases[][2] = {{1, 1}, {5, 4}, {3, 2}, {4, 1}};
  for (const auto& [f, w] : cases) {
    const PassDurations d = durations(f, f, w);
    const Ps ideal = d.forward.ps + d.input_gradients.ps + d.weight_gradients.ps;
    const Ps whole = d.input_gradients.ps + d.weight_gradients.ps;
    const Ps bubble = d.forward.ps + whole + whole - 3 * d.weight_gradients.ps;
    for (const std::int64_t p : {2, 4, 8}) {
      for (const std::int64_t m : {2 * p, 2 * p + 2, 4 * p}) {
        const Plan plan = plan_of(model, Schedule::kDualPipe, p, 1, m);
        const Ps layers = model.layers / p;
        EXPECT_EQ(step_of(model, plan, d), layers * (m * ideal + (p / 2 - 1) * bubble))
            << describe(model, plan);
      }
    }
    // Half of it: p stages are what DualPipe has on one side.
    for (const std::int64_t p : {2, 4}) {
      for (const std::int64_t m : {2 * p, 2 * p + 1, 4 * p}) {
        const Plan plan = plan_of(model, Schedule::kDualPipeV, p, 2, m);
        const Ps layers = model.layers / (2 * p);
        EXPECT_EQ(step_of(model, plan, d), layers * (2 * m * ideal + (p - 1) * bubble))
            << describe(model, plan);
      }
    }
  }
}

/// A plan whose order of passes is made for `d`.
Plan fitted(Plan plan, const PassDurations& d) {
  AutoSchedule& a = plan.automatic;
  a.forward = d.forward;
  a.input_gradients = d.input_gradients;
  a.weight_gradients = d.weight_gradients;
  a.transfer = d.transfer;
  return plan;
}

// p - 2 passes where a backward pass takes as long as a forward pass, whatever the multiple of p
// microbatches; (p - 2) forward passes more where it takes twice as long and m = p (Li and Hoefler
// 2021, section 3.1). With more microbatches than that the bubble stays: its authors' blocks of p
// would each add to it.
TEST(PipelineBubble, Chimera) {
  Model model = pass_model();
  for (const std::int64_t p : {2, 4, 8}) {
    const Ps layers = model.layers / p;
    for (const std::int64_t m : {p, 2 * p, 5 * p}) {
      const PassDurations equal = durations(1, 1, 0);
      const Plan plan = fitted(plan_of(model, Schedule::kChimera, p, 1, m), equal);
      EXPECT_EQ(step_of(model, plan, equal), layers * (2 * m + p - 2) * 4'000'000)
          << describe(model, plan);
      const PassDurations twice = durations(1, 2, 0);
      const Plan slow = fitted(plan, twice);
      EXPECT_EQ(step_of(model, slow, twice), layers * (3 * m + 2 * (p - 2)) * 4'000'000)
          << describe(model, slow);
    }
  }
}

// Passes of any length: what zb-v waits for does not grow with the microbatches, and with eight
// stages and the durations of the paper's measurements it is less than in zb-h1, whose order is
// fixed (bubble rates of the authors' generator, arXiv 2405.15362: 0.0306 for the last).
TEST(PipelineBubble, VShapeOfUnequalPasses) {
  Model model = pass_model();
  constexpr std::int64_t kStages = 8;
  model.layers = 2 * kStages;
  for (const auto& d : {durations(10, 13, 9), durations(1478, 1581, 1103)}) {
    const Ps pass = d.forward.ps + d.input_gradients.ps + d.weight_gradients.ps;
    const auto waits = [&](Schedule schedule, std::int64_t v, std::int64_t m) {
      const Plan plan = fitted(plan_of(model, schedule, kStages, v, m), d);
      return static_cast<double>(step_of(model, plan, d) - 2 * m * pass) /
             static_cast<double>(2 * pass);
    };
    const double few = waits(Schedule::kZbV, 2, 3 * kStages);
    const double many = waits(Schedule::kZbV, 2, 8 * kStages);
    EXPECT_LT(many, few + 0.25);
    EXPECT_LT(few, waits(Schedule::kZbH1, 1, 3 * kStages));
    EXPECT_LT(many, waits(Schedule::kZbH1, 1, 8 * kStages));
    EXPECT_LT(few, 0.06 * 3 * kStages);
  }
}

// Chimera's likewise: no more microbatches' worth with 64 of them than with 16, and less than 1f1b.
TEST(PipelineBubble, ChimeraOfUnequalPasses) {
  const Model model = pass_model();
  const PassDurations d = {Time{40'000'000}, Time{47'000'000}, Time{38'000'000}, Time{1'000'000}};
  const Ps pass = d.forward.ps + d.input_gradients.ps + d.weight_gradients.ps;
  for (const std::int64_t p : {4, 8}) {
    const Ps layers = model.layers / p;
    const auto waits = [&](Schedule schedule, std::int64_t m) {
      const Plan plan = fitted(plan_of(model, schedule, p, 1, m), d);
      return static_cast<double>(step_of(model, plan, d) - m * layers * pass) /
             static_cast<double>(layers * pass);
    };
    EXPECT_LT(waits(Schedule::kChimera, 64), waits(Schedule::kChimera, 16) + 0.5) << p;
    EXPECT_LT(waits(Schedule::kChimera, 64), 0.8 * waits(Schedule::k1F1B, 64)) << p;
  }
}

// (p - 1)(F + B) / v (Lamy-Poirier 2022); with fewer microbatches than stages every chunk but the
// last waits for p of them.
TEST(PipelineBubble, BreadthFirst) {
  const Model model = pass_model();
  for (const std::int64_t p : {2, 4}) {
    for (const std::int64_t v : {1, 2}) {
      for (const std::int64_t m : {1, 2, 3, 4, 5, 8}) {
        const Plan plan = plan_of(model, Schedule::kBreadthFirst, p, v, m);
        const Ps pass = model.layers / (p * v) * 3 * 4'000'000;  // F + B
        const Ps passes = (v - 1) * std::max(m, p) + m + p - 1;
        EXPECT_EQ(step_of(model, plan, durations(1, 2, 0)), passes * pass) << describe(model, plan);
      }
    }
  }
}

// Stages that take the vocabulary's passes together still work without pause: every microbatch more
// takes F + B longer, B twice as long as F. (In 1f1b's order each would wait for B - F.)
TEST(PipelineBubble, SharedVocabulary) {
  Model model = pass_model();
  for (const std::int64_t p : {2, 3, 4, 5, 7, 8}) {
    model.layers = 2 * p;
    const auto takes = [&](std::int64_t m) {
      return step_of(model, plan_of(model, Schedule::kSharedVocabulary, p, 1, m),
                     durations(1, 2, 0));
    };
    const Ps pass = 2 * 3 * 4'000'000;  // F + B
    for (const std::int64_t m : {2 * p, 2 * p + 1, 3 * p}) {
      EXPECT_EQ(takes(m + 1) - takes(m), pass) << p << " stages, " << m << " microbatches";
    }
  }
}

/// Bytes of a kind of buffer that live for the whole step.
Bytes persistent(const Program& program, BufferKind kind) {
  Bytes sum = 0;
  for (const Frame& frame : program.frames) {
    if (frame.alias_of.valid()) continue;
    for (const Buffer& buffer : program.layouts[frame.layout.index()].buffers) {
      if (buffer.kind == kind && buffer.persistent) sum += buffer.bytes();
    }
  }
  return sum;
}

// Two copies of the parameters, and p + 1 microbatches' activations (DualPipe's README); DualPipeV:
// one copy, 2p + 1 of its chunks of half a stage. Counted in layers that are kept.
TEST(PipelineMemory, DualPipe) {
  const Model model = pass_model();
  const std::int64_t p = 4;
  const Plan plain = plan_of(model, Schedule::k1F1B, p, 1, 4 * p);
  const Workload once = lower(model, plain);
  const Plan dual = plan_of(model, Schedule::kDualPipe, p, 1, 4 * p);
  const Workload twice = lower(model, dual);
  const Plan v = plan_of(model, Schedule::kDualPipeV, p, 2, 4 * p);
  const Workload half = lower(model, v);
  Bytes all = 0;
  Bytes of_v = 0;
  for (std::size_t s = 0; s < 4; ++s) {
    all += persistent(once.programs[s], BufferKind::kParameters);
    of_v += persistent(half.programs[s], BufferKind::kParameters);
    EXPECT_EQ(persistent(twice.programs[s], BufferKind::kParameters),
              persistent(once.programs[s], BufferKind::kParameters) +
                  persistent(once.programs[3 - s], BufferKind::kParameters));
  }
  EXPECT_EQ(of_v, all);
}

// --- The table of arXiv 2401.10241 ---------------------------------------------------------------

struct Cell {
  Plan plan;
  PassDurations durations;
  double bubble_rate = 0;
};

Time us(const Json& row, const char* key) { return Time::from_us(row.find(key)->number()); }

/// A stage is one layer for every chunk; the published durations are those of a stage.
Cell cell_of(const Json& row, Model& model) {
  const std::string name = *row.find("schedule")->string();
  const auto count = [&row](const char* key) {
    return static_cast<std::int64_t>(row.find(key)->number());
  };
  const std::int64_t p = count("pipeline");
  const std::int64_t v = count("virtual_pipeline");
  model.layers = p * v;
  Cell cell;
  cell.bubble_rate = row.find("bubble_rate")->number();
  cell.durations = {Time{us(row, "forward_us").ps / v}, Time{us(row, "input_gradients_us").ps / v},
                    Time{us(row, "weight_gradients_us").ps / v}, us(row, "transfer_us")};
  Schedule schedule = Schedule::k1F1B;
  if (name == "1F1B-I") schedule = Schedule::kInterleaved;
  if (name == "ZB-H1") schedule = Schedule::kZbH1;
  if (name == "ZB-H2") schedule = Schedule::kZbH2;
  if (name.ends_with("p")) schedule = Schedule::kZbAuto;
  cell.plan = plan_of(model, schedule, p, v, count("microbatches"));
  const auto hidden = static_cast<double>(count("hidden"));
  const auto scores = 5.0 * 1024 * static_cast<double>(count("heads"));
  AutoSchedule& automatic = cell.plan.automatic;
  automatic = {cell.durations.forward, cell.durations.input_gradients,
               cell.durations.weight_gradients, cell.durations.transfer};
  automatic.activations = static_cast<double>(name == "ZB-2p" ? 2 * p : p);
  // Of the activations (34 h + 5 a s) s b of a layer W needs the inputs of its matrices, 32 h s b.
  automatic.weight_share = 32 * hidden / (34 * hidden + scores);
  return cell;
}

TEST(ZeroBubble, PublishedRates) {
  const Json table = read_json_file(std::string(FORETRAIN_TEST_DATA) + "/zero_bubble.json").value();
  const Json::Array& rows = *table.find("rows")->array();
  ASSERT_GT(rows.size(), 20U);
  for (std::size_t i = 0; i < rows.size(); i += static_cast<std::size_t>(cases(1, 3))) {
    const Json& row = rows[i];
    Model model = pass_model();
    model.hidden = 64;
    model.intermediate = 64;
    const Cell cell = cell_of(row, model);
    const Result<Replayed> result = replayed(model, cell.plan, cell.durations);
    ASSERT_TRUE(result.ok()) << result.error().message;
    const PassDurations& d = cell.durations;
    Ps longest = 0;
    for (std::int32_t rank = 0; rank < cell.plan.pipeline; ++rank) {
      longest = std::max(longest, span_of(result.value().sink.of(rank), d.weight_gradients.ps / 4));
    }
    const Ps pass = d.forward.ps + d.input_gradients.ps + d.weight_gradients.ps;
    const Ps work = cell.plan.microbatches() * cell.plan.virtual_pipeline * pass;
    const double rate = static_cast<double>(longest - work) / static_cast<double>(longest);
    const bool interleaved = cell.plan.virtual_pipeline > 1;
    // Interleaved: what is published does not say how its messages overlap.
    EXPECT_NEAR(rate, cell.bubble_rate, interleaved ? 0.005 : 0.0001)
        << *row.find("schedule")->string() << " p " << cell.plan.pipeline << " m "
        << cell.plan.microbatches();
  }
}

}  // namespace
}  // namespace foretrain
