// Messages between stages, and what the host waits for.
#include "models/stage/stage_writer.h"

namespace foretrain {
namespace {

/// By whether it is sent, goes up the pipeline and carries gradients.
constexpr const char* kChannels[2][2][2] = {
    {{kFromPrevious, kFromNext}, {kUpFromNext, kUpFromPrevious}},
    {{kToNext, kToPrevious}, {kUpToPrevious, kUpToNext}}};

}  // namespace
/// The residual stream, or its gradient, in formal frame `frame`.
View StageWriter::whole_of_parts(std::int16_t frame) const {
  const Bytes bytes = bytes_of(x_plan.precision.compute, hidden_elements(x_model, x_plan));
  return View{frame, kHiddenBuffer, 0, bytes, 1, GroupSlot()};
}

/// What a message carries of it.
View StageWriter::sent_part(std::int16_t frame) {
  const View whole = whole_of_parts(frame);
  if (!x_plan.scatters_messages()) return whole;
  return shard_of(whole, x_plan.tensor, x_builder.group(kTensorGroup));
}

SegmentId StageWriter::message_segment(const std::string& stream, const char* channel,
                                       LayoutId layout, bool send) {
  const bool scatters = x_plan.scatters_messages();
  View view = sent_part(0);
  const bool gradient = layout == x_layer.hidden_gradient;
  // A part that is kept is a buffer of its own.
  if (!gradient && !(layout == x_layer.hidden)) view = {0, 0, 0, view.bytes, 1, GroupSlot()};
  Op op;
  op.stream = x_builder.stream(stream);
  op.work = x_builder.work(P2PBatch{{Message{send, x_builder.channel(channel), view.bytes}}});
  op.name = stream;
  op.category = Category::kPipeline;
  op.phase = gradient ? Phase::kBackward : Phase::kForward;
  (send ? op.reads : op.writes).push_back(view);
  if (send) op.waits.push_back(EventRef{0, kReady});
  op.records = EventRef{0, send ? kSent : scatters ? kPartArrived : kReady};
  Segment segment;
  segment.name = stream;
  segment.frames = {layout};
  segment.ops.push_back(std::move(op));
  return x_builder.segment(std::move(segment));
}

/// Sends or receives the frame of a task.
void StageWriter::message(const Task& task, FrameId frame, bool send) {
  const bool up = goes_up(task.chunk);
  const bool gradient = task.direction == Direction::kBackward;
  SegmentId& segment = x_messages[send ? 1 : 0][up ? 1 : 0][gradient ? 1 : 0];
  if (!segment.valid()) {
    const std::string stream = std::string(send ? "send " : "receive ") +
                               (gradient ? "gradients" : "activations") + (up ? " up" : "");
    segment = message_segment(stream, kChannels[send ? 1 : 0][up ? 1 : 0][gradient ? 1 : 0],
                              layout_of(frame), send);
  }
  x_builder.call(Call{segment, -1, task.microbatch, {frame}, waits_of(task, segment)});
}

/// What the framework's own code takes beside a pass.
void StageWriter::host_takes_time(bool backward, std::int32_t mb) {
  SegmentId& segment = x_pass_pauses[backward ? 1 : 0];
  if (!segment.valid()) {
    LayoutWriter events("host of a pass", 1);
    SegmentWriter w(x_builder, backward ? "host of a backward pass" : "host of a forward pass",
                    events);
    w.phase = backward ? Phase::kBackward : Phase::kForward;
    w.pause("host.pass", x_plan.pass_time);
    segment = x_builder.segment(std::move(w.segment()));
  }
  x_builder.call(Call{segment, -1, mb, {}, {}});
}

/// Of what tensor ranks hold a part each, all of it.
Op StageWriter::gather_of_parts(const char* name, Phase phase) {
  const std::int64_t count = hidden_elements(x_model, x_plan);
  const DType type = x_plan.precision.compute;
  Op op;
  op.stream = x_builder.stream("tensor");
  op.work = x_builder.work(
      Collective{CollectiveKind::kAllGather, x_builder.group(kTensorGroup), count, type, false});
  op.name = name;
  op.category = Category::kPipeline;
  op.phase = phase;
  return op;
}

void StageWriter::gather_message(bool backward, std::int32_t mb, FrameId arrived) {
  SegmentId& segment = x_message_gathers[backward ? 1 : 0];
  if (!segment.valid()) {
    Op op = gather_of_parts(backward ? "gather gradients" : "gather activations",
                            backward ? Phase::kBackward : Phase::kForward);
    op.reads = {sent_part(0)};
    op.writes = {whole_of_parts(0)};
    op.waits = {EventRef{0, kPartArrived}};
    op.records = EventRef{0, kReady};
    Segment out;
    out.name = op.name;
    out.frames = {layout_of(arrived)};
    out.ops.push_back(std::move(op));
    segment = x_builder.segment(std::move(out));
  }
  x_builder.call(Call{segment, -1, mb, {arrived}, {}});
}

/// Of a kept part, before its backward pass.
void StageWriter::gather_output(Passage& passage, std::int32_t mb) {
  auto& [segment, layout] = x_output;
  if (!segment.valid()) {
    LayoutWriter local("output again", 1);
    local.add("output", BufferKind::kActivations, x_plan.precision.compute,
              hidden_elements(x_model, x_plan));
    Op op = gather_of_parts("gather outputs", Phase::kBackward);
    op.reads = {View{0, 0, 0, sent_part(0).bytes, 1, GroupSlot()}};
    op.writes = {whole_of_parts(1)};
    op.waits = {EventRef{0, kSent}};
    op.records = local.event("ready");
    layout = x_builder.layout(local.layout());
    Segment out;
    out.name = op.name;
    out.frames = {layout_of(passage.part), layout};
    out.ops.push_back(std::move(op));
    segment = x_builder.segment(std::move(out));
  }
  const FrameId output = x_builder.frame(layout, -1, mb);
  x_builder.call(Call{segment, -1, mb, {passage.part, output}, {}});
  passage.part = output;
}
/// The host stops until compute is done, and what the task comes after.
void StageWriter::wait_on_host(const Task& task) {
  const bool backward = task.direction == Direction::kBackward;
  SegmentId& segment = x_host_waits[backward ? 1 : 0];
  if (!segment.valid()) {
    LayoutWriter events("host waits", 1);
    SegmentWriter w(x_builder, backward ? "host waits, backward" : "host waits, forward", events);
    w.phase = backward ? Phase::kBackward : Phase::kForward;
    w.compute("host.wait", HostSync{}, {}, {}).category = Category::kHost;
    segment = x_builder.segment(std::move(w.segment()));
  }
  x_builder.call(Call{segment, -1, task.microbatch, {}, waits_of(task, segment)});
}

/// A copy of the part that is sent, where that is what is kept of a forward pass's output.
void StageWriter::keep_part(Passage& passage, std::int32_t mb) {
  const FrameId output = passage.hidden.back();
  auto& [segment, layout] = x_part;
  if (!segment.valid()) {
    LayoutWriter local("part of what was sent", 1);
    const std::int64_t count = hidden_elements(x_model, x_plan) / x_plan.tensor;
    const Ref part = local.add("part", BufferKind::kActivations, x_plan.precision.compute, count);
    SegmentWriter w(x_builder, "keep a part of what is sent", local);
    w.phase = Phase::kForward;
    w.wait(EventRef{0, kReady});  // a stage without layers sends on what it gathers
    w.compute("output.part", kernel_of(KernelKind::kCast, 1, count, part.dtype), {sent_part(0)},
              {part.view()});
    w.record(local.event("ready"));
    (void)local.event("sent");
    layout = x_builder.layout(local.layout());
    w.segment().frames = {layout_of(output), layout};
    segment = x_builder.segment(std::move(w.segment()));
  }
  passage.part = x_builder.frame(layout, -1, mb);
  x_builder.call(Call{segment, -1, mb, {output, passage.part}, {}});
}

/// A framework that runs its backward passes from the tensors that it sent keeps them until then.
void StageWriter::let_go_of_output(const Chunk& chunk, const Passage& passage, std::int32_t mb) {
  const bool again = passage.part.valid();
  const FrameId output = again ? passage.part : passage.hidden.back();
  LayoutWriter events("let go", 1);
  SegmentWriter w(x_builder, "let go of what was sent", events);
  w.phase = Phase::kBackward;
  const Buffer& buffer = x_builder.program().layouts[layout_of(output).index()].buffers.front();
  w.wait(EventRef{0, again ? kReady : kSent});
  w.compute("output.release", HostDelay{}, {View{0, 0, 0, buffer.bytes(), 1, GroupSlot()}}, {})
      .category = Category::kHost;
  w.segment().frames = {layout_of(output)};
  const auto layer = static_cast<std::int32_t>(chunk.first_layer + chunk.layers - 1);
  x_builder.call(Call{x_builder.segment(std::move(w.segment())), layer, mb, {output}, {}});
}

/// Of a layer's casts of its weights, which autocast holds to the end of the forward pass.
void StageWriter::let_go_of_casts(const Chunk& chunk, const Passage& passage, const Task& task) {
  const FrameId saved = passage.saved[static_cast<std::size_t>(task.layer)];
  SegmentId& segment = x_lets_go[layout_of(saved)];
  if (!segment.valid()) {
    LayoutWriter events("let go", 1);
    SegmentWriter w(x_builder, "let go of casts", events);
    std::vector<View> copies;
    for (const Buffer& b : x_builder.program().layouts[layout_of(saved).index()].buffers) {
      const auto number = static_cast<std::int16_t>(copies.size());
      copies.push_back(View{0, number, 0, b.bytes(), 1, GroupSlot()});
    }
    w.compute("casts.release", HostDelay{}, std::move(copies), {}).category = Category::kHost;
    w.segment().frames = {layout_of(saved)};
    segment = x_builder.segment(std::move(w.segment()));
  }
  const auto layer = static_cast<std::int32_t>(chunk.first_layer + task.layer);
  x_builder.call(Call{segment, layer, task.microbatch, {saved}, {}});
}

}  // namespace foretrain
