// Post-validation of the update (Qi et al., arXiv 2401.10241, section 4).
//
// In place of an all-reduce of the gradients' norm, in which all stages wait for each other, a
// stage takes what those before it have summed, adds its own, hands that on and updates by it. In
// the warm-up of the next step the last stage's sum comes back up the stages, each of which looks
// whether its update was right, and would undo and repeat it if not:
//
//   stage s, end of a step     receive sum(0 .. s-1) | add own | send sum(0 .. s) | update
//   stage s, warm-up           receive sum(0 .. p-1) | send it to s - 1 | look
//
// (pre_step and post_validation of megatron/core/optimizer/optimizer.py in
// sail-sg/zero-bubble-pipeline-parallelism). A message is one number, of the norm and in fp16 of
// what is not finite. Gradients are taken to be finite and within the limit, so nothing scales
// them: left out are updates that are undone and made again with clipped gradients, and the second
// number on the way back.
#include "models/emit/frames.h"
#include "models/emit/tasks.h"
#include "models/emit/update.h"
#include "models/gradients/buckets.h"
#include "models/layers/ends.h"
#include "models/units/units.h"

namespace foretrain {
namespace {

/// Events of the scalars, of the norm and of what is not finite.
constexpr std::int16_t kNormPassed = 1;
constexpr std::int16_t kFinitePassed = 2;

constexpr Bytes kNumber = 4;

}  // namespace

void pass_down(Stage& stage, SegmentWriter& w, const std::string& name, const Ref& value) {
  if (stage.plan.shards() * stage.plan.tensor > 1) {
    w.compute(name,
              Collective{CollectiveKind::kAllReduce, stage.builder.group(kStageNormGroup), 1,
                         DType::kFp32, false},
              {value.view()}, {value.view()});
    w.segment().ops.back().category = Category::kData;
  }
  if (stage.number > 0) {
    const Ref before{0, kNormBefore, DType::kFp32, 1};
    const Message message{false, stage.builder.channel(kNormFromPrevious), kNumber};
    w.compute(name + ".receive", P2PBatch{{message}}, {}, {before.view()}).category =
        Category::kPipeline;
    w.compute(name + ".add", kernel_of(KernelKind::kAdd, 1, 1, DType::kFp32),
              {value.view(), before.view()}, {value.view()});
  }
  if (stage.number + 1 == stage.plan.pipeline) return;
  const EventRef passed{0, value.buffer == kFinite ? kFinitePassed : kNormPassed};
  w.record(passed);
  // Nobody here waits for the next stage to come and take it.
  Op op;
  op.stream = stage.builder.stream("send norm");
  op.work =
      stage.builder.work(P2PBatch{{Message{true, stage.builder.channel(kNormToNext), kNumber}}});
  op.name = name + ".send";
  op.category = Category::kPipeline;
  op.phase = w.phase;
  op.reads = {value.view()};
  op.waits = {passed};
  w.segment().ops.push_back(std::move(op));
}

/// A step's own state would reach the next one, whose Program is the same: what comes here is that
/// of the step before.
void validate_last_step(Stage& stage, const Task& task) {
  LayoutWriter events("validation", 1);
  SegmentWriter w(stage.builder, "validate the last step", events);
  w.phase = Phase::kOptimizer;
  const bool last = stage.number + 1 == stage.plan.pipeline;
  const Ref state{0, kNormOfAll, DType::kFp32, 1};
  const std::string stream = "validation";
  const auto message = [&](const char* name, bool send, const char* channel,
                           std::vector<View> reads, std::vector<View> writes) {
    return w.on_stream(stream, name, Category::kPipeline,
                       P2PBatch{{Message{send, stage.builder.channel(channel), kNumber}}},
                       std::move(reads), std::move(writes));
  };
  if (last) {
    const Ref own{0, stage.plan.clip_norm > 0 ? kNormSquare : kFinite, DType::kFp32, 1};
    w.compute("gradients.state", kernel_of(KernelKind::kCast, 1, 1, DType::kFp32), {own.view()},
              {state.view()});
  }
  if (!last) w.wait(message("gradients.state.receive", false, kStateFromNext, {}, {state.view()}));
  if (stage.number > 0) message("gradients.state.send", true, kStateToPrevious, {state.view()}, {});
  w.compute("gradients.validate",
            Opaque{"gradients.validate (overlap.post_validation)", kNumber, 0, DType::kFp32,
                   Memory::kDevice},
            {state.view()}, {});
  w.compute("gradients.validated", HostSync{}, {state.view()}, {}).category = Category::kHost;
  w.segment().frames = {stage.holds.scalars, stage.builder.layout(events.layout())};
  Call call{SegmentId(),
            -1,
            -1,
            {stage.holds.scalar_values, stage.builder.frame(w.segment().frames.back())},
            {}};
  call.segment = stage.builder.segment(std::move(w.segment()));
  call.waits = waits_of(stage, task, call.segment);
  stage.builder.call(std::move(call));
}

}  // namespace foretrain
