// Do tensor ranks that send a part each move what the parts say, and keep no more?
#include <gtest/gtest.h>

#include <map>

#include "models/lower.h"
#include "models/slots.h"
#include "sim/program/memory.h"
#include "sim/program/verify.h"
#include "tests/support/small_plans.h"

namespace foretrain {
namespace {

struct MessagesMoved {
  std::map<std::string, Bytes> sent;      ///< by channel
  std::map<std::string, Bytes> gathered;  ///< full arrays, by op
};

MessagesMoved moved_by(const Program& program) {
  MessagesMoved out;
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      const Work& work = program.works[op.work.index()];
      if (const auto* c = std::get_if<Collective>(&work)) {
        if (c->kind == CollectiveKind::kAllGather) {
          out.gathered[op.name] += bytes_of(c->dtype, c->count);
        }
      } else if (const auto* batch = std::get_if<P2PBatch>(&work)) {
        for (const Message& m : batch->messages) {
          if (m.send) out.sent[program.channel_slots[m.channel.index()]] += m.bytes;
        }
      }
    }
  }
  return out;
}

// Narayanan et al., SC'21, section 4.1: b s h instead of t b s h elements from a stage to the next,
// b s h / t of each tensor rank, and an all-gather of b s h on the other side.
TEST(ScatterGather, SendsAPartAndGathersTheRest) {
  const Model model = small_gpt();
  constexpr std::int64_t kMicrobatches = 4;
  for (const std::int64_t tensor : {2, 4}) {
    Plan plan = small_plan(model, {tensor, 2, 1, 1}, kMicrobatches);
    const Bytes hidden = 2 * plan.tokens() * model.hidden;
    const auto moved = [&](std::size_t stage) {
      const Workload workload = lower(model, plan);
      const Status status = verify(workload);
      EXPECT_TRUE(status.ok()) << status.error().message;
      return moved_by(workload.programs[stage]);
    };
    EXPECT_EQ(moved(0).sent.at(kToNext), kMicrobatches * hidden);
    EXPECT_TRUE(moved(1).gathered.empty());
    plan.scatter_gather = true;
    EXPECT_EQ(moved(0).sent.at(kToNext), kMicrobatches * hidden / tensor);
    EXPECT_EQ(moved(1).sent.at(kToPrevious), kMicrobatches * hidden / tensor);
    EXPECT_EQ(moved(1).gathered.at("gather activations"), kMicrobatches * hidden);
    EXPECT_EQ(moved(0).gathered.at("gather gradients"), kMicrobatches * hidden);
    plan.sequence = true;  // a part each anyway
    EXPECT_EQ(moved(0).sent.at(kToNext), kMicrobatches * hidden / tensor);
    EXPECT_EQ(moved(1).gathered.count("gather activations"), 0U);
  }
}

// DeepSpeed keeps the part of each output that is in flight, and gathers that of a backward pass.
TEST(ScatterGather, KeepsThePart) {
  const Model model = small_gpt();
  const auto peak = [&model](bool keeps, bool scatters) {
    Plan plan = small_plan(model, {4, 4, 1, 1}, 8);
    plan.recompute.layer = true;
    plan.retain_outputs = keeps;
    plan.scatter_gather = scatters;
    return memory_peak(lower(model, plan).programs[0]).bytes;
  };
  const Plan plan = small_plan(model, {4, 4, 1, 1}, 8);
  const Bytes hidden = 2 * plan.tokens() * model.hidden;
  constexpr std::int64_t kInFlight = 4;
  // At the peak, in a backward pass, the others' outputs and its own are kept.
  EXPECT_EQ(peak(true, false) - peak(false, false), kInFlight * hidden);
  EXPECT_EQ(peak(true, true) - peak(false, true), (kInFlight - 1) * hidden / 4 + hidden);
}

// What the framework's code takes beside a pass stands on every stage, once for each pass.
TEST(HostOfPasses, IsThatOfEveryStage) {
  const Model model = small_gpt();
  constexpr std::int64_t kMicrobatches = 4;
  for (const std::int64_t stages : {1, 3}) {
    Plan plan = small_plan(model, {1, stages, 1, 1}, kMicrobatches);
    plan.pass_time = Time::from_us(10);
    for (const Program& program : lower(model, plan).programs) {
      std::int64_t pauses = 0;
      for (const Call& call : program.calls) {
        for (const Op& op : program.segments[call.segment.index()].ops) {
          pauses += op.name == "host.pass" ? 1 : 0;
        }
      }
      EXPECT_EQ(pauses, 2 * kMicrobatches);
    }
  }
}

}  // namespace
}  // namespace foretrain
