// Messages between stages, and what the host waits for.
#include "models/emit/tasks.h"
#include "models/plan/layout/plan_stages.h"

namespace foretrain {

static View whole_of_parts(Stage& stage, std::int16_t frame);
static View sent_part(Stage& stage, std::int16_t frame);
static SegmentId message_segment(Stage& stage, const std::string& stream, const char* channel,
                                 LayoutId layout, bool send);
static Op gather_of_parts(Stage& stage, const char* name, Phase phase);

namespace {

/// By whether it is sent, goes up the pipeline and carries gradients.
constexpr const char* kChannels[2][2][2] = {
    {{kFromPrevious, kFromNext}, {kUpFromNext, kUpFromPrevious}},
    {{kToNext, kToPrevious}, {kUpToPrevious, kUpToNext}}};

/// Chunks that go up the stages again.
bool goes_up(const Plan& plan, std::int32_t chunk) {
  return plan.placement() != ChunkPlacement::kRound && chunk % 2 == 1;
}

}  // namespace
/// The residual stream, or its gradient, in formal frame `frame`.
View whole_of_parts(Stage& stage, std::int16_t frame) {
  const Bytes bytes =
      bytes_of(stage.plan.precision.compute, hidden_elements(stage.model, stage.plan));
  return View{frame, kHiddenBuffer, 0, bytes, 1, GroupSlot()};
}

/// What a message carries of it.
View sent_part(Stage& stage, std::int16_t frame) {
  const View whole = whole_of_parts(stage, frame);
  if (!stage.plan.scatters_messages()) return whole;
  return shard_of(whole, stage.plan.tensor, stage.builder.group(kTensorGroup));
}

/// What a rank sends to, or receives from, each rank of a neighbouring stage whose tensor degree
/// may be another. With t and t' the degrees, of t >= t' each rank has one message: its part of the
/// tokens; else, as it holds what the others hold, its part of t / t' equal ones. Of t < t' each
/// rank has t' / t messages: equal parts of its tokens; else it sends everything to each, and
/// receives a part of everything from each.
std::vector<View> exchanged_parts(Stage& stage, View view, bool next, bool send) {
  const Plan& plan = stage.plan;
  if (!plan.tensors.any()) return {view};
  const std::int64_t other = neighbour_of(plan, stage.number, next);
  const std::int64_t messages = messages_between(plan, stage.number, other);
  const std::int64_t senders = messages_between(plan, other, stage.number);
  if (!plan.tensors.sequence && send) {
    const char* group = next ? kPartsToNext : kPartsToPrevious;
    if (senders > 1) return {shard_of(view, senders, stage.builder.group(group))};
    return std::vector<View>(static_cast<std::size_t>(messages), view);
  }
  std::vector<View> out;
  view.bytes /= messages;
  for (std::int64_t m = 0; m < messages; ++m) {
    out.push_back(view);
    view.offset += view.bytes;
  }
  return out;
}

SegmentId message_segment(Stage& stage, const std::string& stream, const char* channel,
                          LayoutId layout, bool send) {
  const bool scatters = stage.plan.scatters_messages();
  View view = sent_part(stage, 0);
  const bool gradient = layout == stage.holds.layer.hidden_gradient;
  // A part that is kept is a buffer of its own.
  if (!gradient && !(layout == stage.holds.layer.hidden))
    view = {0, 0, 0, view.bytes, 1, GroupSlot()};
  const std::vector<View> parts = exchanged_parts(stage, view, send != gradient, send);
  P2PBatch batch;
  for (std::size_t m = 0; m < parts.size(); ++m) {
    const std::string slot = message_channel(channel, static_cast<std::int64_t>(m));
    batch.messages.push_back(Message{send, stage.builder.channel(slot), parts[m].bytes});
  }
  Op op;
  op.stream = stage.builder.stream(stream);
  op.work = stage.builder.work(std::move(batch));
  op.name = stream;
  op.category = Category::kPipeline;
  op.phase = gradient ? Phase::kBackward : Phase::kForward;
  (send ? op.reads : op.writes) = parts;
  if (send) op.waits.push_back(EventRef{formal::kResidual, kReady});
  op.records = EventRef{formal::kResidual, send ? kSent : scatters ? kPartArrived : kReady};
  Segment segment;
  segment.name = stream;
  segment.frames = {layout};
  segment.ops.push_back(std::move(op));
  return stage.builder.segment(std::move(segment));
}

/// Sends or receives the frame of a task.
void message(Stage& stage, const Task& task, FrameId frame, bool send) {
  const bool up = goes_up(stage.plan, task.chunk);
  const bool gradient = task.direction == Direction::kBackward;
  SegmentId& segment = stage.segments.messages[send ? 1 : 0][up ? 1 : 0][gradient ? 1 : 0];
  if (!segment.valid()) {
    const std::string stream = std::string(send ? "send " : "receive ") +
                               (gradient ? "gradients" : "activations") + (up ? " up" : "");
    segment = message_segment(stage, stream, kChannels[send ? 1 : 0][up ? 1 : 0][gradient ? 1 : 0],
                              layout_of(stage, frame), send);
  }
  stage.builder.call(Call{segment, -1, task.microbatch, {frame}, waits_of(stage, task, segment)});
}

/// What the framework's own code takes beside a pass.
void host_takes_time(Stage& stage, bool backward, std::int32_t mb) {
  SegmentId& segment = stage.segments.pass_pauses[backward ? 1 : 0];
  if (!segment.valid()) {
    LayoutWriter events("host of a pass", 1);
    SegmentWriter w(stage.builder, backward ? "host of a backward pass" : "host of a forward pass",
                    events);
    w.phase = backward ? Phase::kBackward : Phase::kForward;
    w.pause("host.pass", stage.plan.pass_time);
    segment = stage.builder.segment(std::move(w.segment()));
  }
  stage.builder.call(Call{segment, -1, mb, {}, {}});
}

/// Of what tensor ranks hold a part each, all of it.
Op gather_of_parts(Stage& stage, const char* name, Phase phase) {
  const std::int64_t count = hidden_elements(stage.model, stage.plan);
  const DType type = stage.plan.precision.compute;
  Op op;
  op.stream = stage.builder.stream("tensor");
  op.work = stage.builder.work(Collective{CollectiveKind::kAllGather,
                                          stage.builder.group(kTensorGroup), count, type, false});
  op.name = name;
  op.category = Category::kPipeline;
  op.phase = phase;
  return op;
}

void gather_message(Stage& stage, bool backward, std::int32_t mb, FrameId arrived) {
  SegmentId& segment = stage.segments.message_gathers[backward ? 1 : 0];
  if (!segment.valid()) {
    Op op = gather_of_parts(stage, backward ? "gather gradients" : "gather activations",
                            backward ? Phase::kBackward : Phase::kForward);
    op.reads = {sent_part(stage, 0)};
    op.writes = {whole_of_parts(stage, 0)};
    op.waits = {EventRef{formal::kResidual, kPartArrived}};
    op.records = EventRef{formal::kResidual, kReady};
    Segment out;
    out.name = op.name;
    out.frames = {layout_of(stage, arrived)};
    out.ops.push_back(std::move(op));
    segment = stage.builder.segment(std::move(out));
  }
  stage.builder.call(Call{segment, -1, mb, {arrived}, {}});
}

/// Of a kept part, before its backward pass.
void gather_output(Stage& stage, MicrobatchState& passage, std::int32_t mb) {
  auto& [segment, layout] = stage.segments.output;
  if (!segment.valid()) {
    LayoutWriter local("output again", 1);
    local.add("output", BufferKind::kActivations, stage.plan.precision.compute,
              hidden_elements(stage.model, stage.plan));
    Op op = gather_of_parts(stage, "gather outputs", Phase::kBackward);
    op.reads = {View{formal::kKeptPart, kOnlyBuffer, 0, sent_part(stage, 0).bytes, 1, GroupSlot()}};
    op.writes = {whole_of_parts(stage, 1)};
    op.waits = {EventRef{formal::kKeptPart, kSent}};
    op.records = local.event("ready");
    layout = stage.builder.layout(local.layout());
    Segment out;
    out.name = op.name;
    out.frames = {layout_of(stage, passage.part), layout};
    out.ops.push_back(std::move(op));
    segment = stage.builder.segment(std::move(out));
  }
  const FrameId output = stage.builder.frame(layout, -1, mb);
  stage.builder.call(Call{segment, -1, mb, {passage.part, output}, {}});
  passage.part = output;
}
/// The host stops until compute is done, and what the task comes after.
void wait_on_host(Stage& stage, const Task& task) {
  const bool backward = task.direction == Direction::kBackward;
  SegmentId& segment = stage.segments.host_waits[backward ? 1 : 0];
  if (!segment.valid()) {
    LayoutWriter events("host waits", 1);
    SegmentWriter w(stage.builder, backward ? "host waits, backward" : "host waits, forward",
                    events);
    w.phase = backward ? Phase::kBackward : Phase::kForward;
    w.compute("host.wait", HostSync{}, {}, {}).category = Category::kHost;
    segment = stage.builder.segment(std::move(w.segment()));
  }
  stage.builder.call(Call{segment, -1, task.microbatch, {}, waits_of(stage, task, segment)});
}

/// A copy of the part that is sent, where that is what is kept of a forward pass's output.
void keep_part(Stage& stage, MicrobatchState& passage, std::int32_t mb) {
  const FrameId output = passage.hidden.back();
  auto& [segment, layout] = stage.segments.part;
  if (!segment.valid()) {
    LayoutWriter local("part of what was sent", 1);
    const std::int64_t count = hidden_elements(stage.model, stage.plan) / stage.plan.tensor;
    const Ref part =
        local.add("part", BufferKind::kActivations, stage.plan.precision.compute, count);
    SegmentWriter w(stage.builder, "keep a part of what is sent", local);
    w.phase = Phase::kForward;
    w.wait(EventRef{formal::kResidual, kReady});  // a stage without layers sends on what it gathers
    w.compute("output.part", kernel_of(KernelKind::kCast, 1, count, part.dtype),
              {sent_part(stage, 0)}, {part.view()});
    w.record(local.event("ready"));
    (void)local.event("sent");
    layout = stage.builder.layout(local.layout());
    w.segment().frames = {layout_of(stage, output), layout};
    segment = stage.builder.segment(std::move(w.segment()));
  }
  passage.part = stage.builder.frame(layout, -1, mb);
  stage.builder.call(Call{segment, -1, mb, {output, passage.part}, {}});
}

/// A framework that runs its backward passes from the tensors that it sent keeps them until then.
void let_go_of_output(Stage& stage, const Chunk& chunk, const MicrobatchState& passage,
                      std::int32_t mb) {
  const bool again = passage.part.valid();
  const FrameId output = again ? passage.part : passage.hidden.back();
  LayoutWriter events("let go", 1);
  SegmentWriter w(stage.builder, "let go of what was sent", events);
  w.phase = Phase::kBackward;
  const Buffer& buffer =
      stage.builder.program().layouts[layout_of(stage, output).index()].buffers.front();
  w.wait(EventRef{formal::kResidual, again ? kReady : kSent});
  w.compute("output.release", HostDelay{},
            {View{formal::kResidual, kOnlyBuffer, 0, buffer.bytes(), 1, GroupSlot()}}, {})
      .category = Category::kHost;
  w.segment().frames = {layout_of(stage, output)};
  const auto layer = static_cast<std::int32_t>(chunk.first_layer + chunk.layers - 1);
  stage.builder.call(Call{stage.builder.segment(std::move(w.segment())), layer, mb, {output}, {}});
}

/// Of a layer's casts of its weights, which autocast holds to the end of the forward pass.
void let_go_of_casts(Stage& stage, const Chunk& chunk, const MicrobatchState& passage,
                     const Task& task) {
  const FrameId saved = passage.saved[static_cast<std::size_t>(task.layer)];
  SegmentId& segment = stage.segments.lets_go[layout_of(stage, saved)];
  if (!segment.valid()) {
    LayoutWriter events("let go", 1);
    SegmentWriter w(stage.builder, "let go of casts", events);
    std::vector<View> copies;
    for (const Buffer& b :
         stage.builder.program().layouts[layout_of(stage, saved).index()].buffers) {
      const auto number = static_cast<std::int16_t>(copies.size());
      copies.push_back(View{formal::kNear, number, 0, b.bytes(), 1, GroupSlot()});
    }
    w.compute("casts.release", HostDelay{}, std::move(copies), {}).category = Category::kHost;
    w.segment().frames = {layout_of(stage, saved)};
    segment = stage.builder.segment(std::move(w.segment()));
  }
  const auto layer = static_cast<std::int32_t>(chunk.first_layer + task.layer);
  stage.builder.call(Call{segment, layer, task.microbatch, {saved}, {}});
}

}  // namespace foretrain
