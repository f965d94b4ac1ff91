// Messages between stages, and what the host waits for.
//
// Without sequence parallelism all tensor ranks hold the residual stream alike. With
// `parallel.scatter_gather` each sends its part of it alone, over its own network card, and gathers
// what the others of its group received before the pass begins (Narayanan et al., SC'21, section
// 4.1; DeepSpeed's PartitionedTensor, runtime/pipe/engine.py and runtime/utils.py, v0.6.4, with
// which `keep_outputs` keeps the part, and the backward pass gathers the output again, whose values
// nothing reads). Left out: its other copies of parts, and the mask that it sends along.
#include "models/stage/stage_writer.h"

namespace foretrain {
namespace {

/// By whether it is sent, goes up the pipeline and carries gradients.
constexpr const char* kChannels[2][2][2] = {
    {{kFromPrevious, kFromNext}, {kUpFromNext, kUpFromPrevious}},
    {{kToNext, kToPrevious}, {kUpToPrevious, kUpToNext}}};

}  // namespace

bool StageWriter::turns(std::int32_t chunk, std::int64_t step) const {
  const std::int64_t at = x_plan.chunk_at(x_stage, chunk);
  return x_plan.placement() == ChunkPlacement::kV && x_plan.stage_of(at + step) == x_stage;
}

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

void StageWriter::message(std::int32_t c, FrameId frame, std::int32_t mb, bool gradient,
                          bool send) {
  const bool up = goes_up(c);
  SegmentId& segment = x_messages[send ? 1 : 0][up ? 1 : 0][gradient ? 1 : 0];
  if (!segment.valid()) {
    const std::string stream = std::string(send ? "send " : "receive ") +
                               (gradient ? "gradients" : "activations") + (up ? " up" : "");
    segment = message_segment(stream, kChannels[send ? 1 : 0][up ? 1 : 0][gradient ? 1 : 0],
                              layout_of(frame), send);
  }
  Call call{segment, -1, mb, {frame}, {}};
  // A kernel that waits for what another stage sends holds SMs. Like NCCL's under PyTorch a receive
  // starts behind the compute that was issued before it: with overlap it is posted a pass early.
  const std::size_t back = x_plan.overlap.pipeline ? 2 : 1;
  if (!send && x_layer_passes.size() >= back) {
    call.waits.push_back(x_layer_passes[x_layer_passes.size() - back]);
  }
  if (x_joined_done.frame.valid()) call.waits.push_back(x_joined_done);
  for (StreamWait& wait : call.waits) {
    wait.stream = x_builder.program().segments[segment.index()].ops.front().stream;
  }
  x_builder.call(std::move(call));
  // Receives are posted late: between several chunks, in schedules that send more than one
  // microbatch ahead and with hosts that wait for counts of tokens, compute that waited for its
  // messages could then wait for ever.
  const bool in_turn = x_plan.chunks_of_stage() == 1 &&
                       (x_plan.schedule == Schedule::kGpipe || x_plan.schedule == Schedule::k1F1B);
  if (!send || x_plan.overlap.pipeline || x_model.has_experts() || !in_turn) return;
  // Without overlap the next pass waits until the message is gone.
  x_before_next.push_back(StreamWait{StreamId(std::size_t{0}), frame, kSent});
}

void StageWriter::receive(std::int32_t c, FrameId frame, std::int32_t mb, bool gradient) {
  message(c, frame, mb, gradient, false);
}

void StageWriter::send(std::int32_t c, FrameId frame, std::int32_t mb, bool gradient) {
  if (x_joined) return x_held_back.push_back({c, mb, frame, gradient});
  message(c, frame, mb, gradient, true);
}

/// The frame that a pass begins with, and its receive unless it has been posted or there is none;
/// returns what arrives in a message.
FrameId StageWriter::receive_input(std::int32_t c, std::int32_t mb, bool gradient) {
  const Chunk& chunk = x_chunks[static_cast<std::size_t>(c)];
  Passage& passage = x_passages[{c, mb}];
  const bool end = gradient ? chunk.last : chunk.first;
  const bool turned = !end && turns(c, gradient ? 1 : -1);
  const bool known = gradient ? passage.gradient.valid() : !passage.hidden.empty();
  if (!known && gradient) {
    passage.gradient = turned ? x_turned.at(mb) : x_builder.frame(x_head.hidden_gradient, -1, mb);
  } else if (!known) {
    passage.hidden.push_back(turned ? x_passages.at({c - 1, mb}).hidden.back()
                                    : x_builder.frame(x_layer.hidden, -1, mb));
  }
  if (end || turned) return FrameId();
  const FrameId frame = gradient ? passage.gradient : passage.hidden.front();
  if (!known) receive(c, frame, mb, gradient);
  return frame;
}

/// `arrived`: the frame that this pass received, if any.
void StageWriter::pass_begins(bool backward, std::int32_t mb, FrameId arrived) {
  host_waits_for_pass(backward, mb, arrived);
  if (x_plan.pass_time.ps > 0) host_takes_time(backward, mb);
  const bool gathered = x_joined_begins.size() > 1;  // by joined_begin
  if (arrived.valid() && !gathered) gather_message(backward, mb, arrived);
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

/// Here and not where the message is received: collectives of a group have one order.
void StageWriter::gather_message(bool backward, std::int32_t mb, FrameId arrived) {
  if (!x_plan.scatters_messages()) return;
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

void StageWriter::host_waits_for_pass(bool backward, std::int32_t mb, FrameId arrived) {
  const bool blocks = x_plan.chunks_of_stage() == 1 || !x_plan.overlap.pipeline;
  switch (x_plan.host_waits) {
    case HostWaits::kNone:
      return;
    case HostWaits::kForward:
      if (!backward) wait_on_host(backward, mb, arrived);
      return;
    case HostWaits::kTransfers:
      if (arrived.valid() && blocks) wait_on_host(backward, mb, arrived);
      return;
    case HostWaits::kPasses:
      wait_on_host(backward, mb, arrived);
      return;
  }
}

void StageWriter::pass_ends(bool backward, std::int32_t mb) {
  if (x_plan.host_waits == HostWaits::kPasses) wait_on_host(backward, mb, FrameId());
}

/// The host stops until compute and `arrived` are done. Not for sends: another stage may post their
/// receives only after this one has gone on.
void StageWriter::wait_on_host(bool backward, std::int32_t mb, FrameId arrived) {
  SegmentId& segment = x_host_waits[backward ? 1 : 0];
  if (!segment.valid()) {
    LayoutWriter events("host waits", 1);
    SegmentWriter w(x_builder, backward ? "host waits, backward" : "host waits, forward", events);
    w.phase = backward ? Phase::kBackward : Phase::kForward;
    w.compute("host.wait", HostSync{}, {}, {}).category = Category::kHost;
    segment = x_builder.segment(std::move(w.segment()));
  }
  Call call{segment, -1, mb, {}, {}};
  const std::int16_t event = x_plan.scatters_messages() ? kPartArrived : kReady;
  if (arrived.valid()) call.waits.push_back(StreamWait{StreamId(std::size_t{0}), arrived, event});
  x_builder.call(std::move(call));
}

/// Of a forward pass: its output, or a copy of the part that is sent, where that is what is kept.
FrameId StageWriter::sent_output(Passage& passage, std::int32_t mb) {
  const FrameId output = passage.hidden.back();
  if (!x_plan.keep_outputs || !x_plan.scatters_messages()) return output;
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
  return passage.part;
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

/// Autocast holds its copies of weights to the end of the forward pass; those of layers that are
/// computed again nobody else does.
void StageWriter::let_go_of_casts(const Chunk& chunk, const Passage& passage, std::int32_t mb) {
  if (!x_plan.precision.autocast) return;
  for (std::int64_t l = 0; l < chunk.layers; ++l) {
    if (!recomputed(chunk.layers_before + l)) continue;
    const FrameId saved = passage.saved[static_cast<std::size_t>(l)];
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
    const auto layer = static_cast<std::int32_t>(chunk.first_layer + l);
    x_builder.call(Call{segment, layer, mb, {saved}, {}});
  }
}

}  // namespace foretrain
