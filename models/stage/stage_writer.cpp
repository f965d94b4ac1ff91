#include "models/stage/stage_writer.h"

#include <algorithm>
#include <utility>

#include "models/layers/kernel_forms.h"
#include "sim/base/check.h"
#include "sim/base/json.h"

namespace foretrain {

StageWriter::StageWriter(const Model& model, const Plan& plan, std::int64_t stage)
    : x_model(model), x_plan(plan), x_stage(stage), x_builder("stage " + std::to_string(stage)) {
  x_builder.stream("compute");  // stream 0
}

/// What the stage holds: frames of parameters, gradients and states, segments that all its tasks
/// share.
void StageWriter::write_holdings() {
  write_layouts();
  write_segments();
  for (std::int64_t c = 0; c < x_plan.chunks_of_stage(); ++c) make_chunk(c);
  const std::size_t own = x_chunks.size();
  for (std::size_t c = 0; c < own; ++c) make_experts(c);
  x_scalar_frame = x_builder.frame(x_scalars);
  if (const Bytes page = x_plan.offload.page; page > 0 && by_units() && x_plan.offload.states()) {
    fill_last_pages(page);
  }
}

StageStep StageWriter::step(const std::string& until, bool verified) && {
  write_holdings();
  return lowered_step(context(), until, verified);
}

Program StageWriter::run() && {
  write_holdings();
  x_step = lowered_step(context());
  x_done.resize(x_step.made());
  for (const TaskId id : x_step.order()) emit(id);
  x_builder.batch(batch());
  Program program = std::move(x_builder).build();
  form_kernels(x_plan, program);
  return program;
}

StageContext StageWriter::context() const {
  StageContext out{x_model, x_plan, x_stage, x_chunks, x_shapes, x_layer, x_embedding, x_head, {}};
  for (const Chunk& chunk : x_chunks) {
    out.kinds.emplace_back();
    if (chunk.holders.expert) continue;
    for (std::int64_t l = 0; l < chunk.layers; ++l) out.kinds.back().push_back(&kind_of(chunk, l));
  }
  return out;
}

/// Where and when a task that `task` comes after is done; without a stream.
StreamWait StageWriter::point(const Task& task) const {
  if (task.after.empty()) return {};
  const After& after = task.after.front();
  const Done& done = x_done[after.task.index()];
  return after.end ? done.end : done.output;
}

std::vector<StreamWait> StageWriter::waits_of(const Task& task, SegmentId segment) {
  std::vector<StreamWait> out;
  for (const After& after : task.after) {
    const Done& done = x_done[after.task.index()];
    StreamWait wait = after.end ? done.end : done.output;
    FT_CHECK(wait.frame.valid(), "a task comes after one that records nothing");
    wait.stream = after.stream != nullptr
                      ? x_builder.stream(after.stream)
                      : x_builder.program().segments[segment.index()].ops.front().stream;
    out.push_back(wait);
  }
  return out;
}

/// Workers beside the host prepare the next step's microbatches: the step takes as long as they do,
/// or what else it does. On every stage, so that each shows what all wait for.
void StageWriter::load_ahead() {
  Op op;
  op.stream = x_builder.stream("loader");
  op.work = x_builder.work(Pause{Time{x_plan.loader_time.ps * x_plan.microbatches()}});
  op.name = "data.load_ahead";
  op.category = Category::kHost;
  op.phase = Phase::kInput;
  Segment segment;
  segment.name = "load ahead";
  segment.ops.push_back(std::move(op));
  x_builder.call(Call{x_builder.segment(std::move(segment)), -1, -1, {}, {}});
}

/// The step's first kernels: zeroes for what is added to. Returns where they end.
StreamWait StageWriter::zero(std::size_t c) {
  if (by_units()) return zero_units();
  Chunk& chunk = x_chunks[c];
  LayoutWriter events("zero", 2);
  SegmentWriter w(x_builder, "zero gradients " + std::to_string(c), events);
  w.phase = Phase::kGradients;
  if (c == 0) w.pause("host", x_plan.step_time);
  Kernel fill;
  fill.rows = 1;
  fill.cols = chunk.elements;
  fill.dtype = x_plan.precision.gradients;
  const View all{0, 0, 0, bytes_of(fill.dtype, chunk.elements), 1, GroupSlot()};
  if (!x_plan.contiguous_passes()) w.compute("gradients.zero", fill, {}, {all});
  if (c == 0) {
    Kernel clear;
    clear.rows = clear.cols = 1;
    clear.dtype = DType::kFp32;
    w.compute("loss.zero", clear, {}, {View{1, kLoss, 0, 4, 1, GroupSlot()}});
  }
  return call_marked(w, "zeroed", {chunk.gradients, x_scalar_frame});
}

/// Calls a segment of compute on `frames` and, behind them, one of its own, which marks its end.
/// Returns what comes after it.
StreamWait StageWriter::call_marked(SegmentWriter& w, const char* event,
                                    std::vector<FrameId> frames, std::vector<StreamWait> waits) {
  const EventRef end{static_cast<std::int16_t>(frames.size()), w.local().event(event).event};
  w.record(end);
  w.segment().frames.clear();
  for (const FrameId frame : frames) w.segment().frames.push_back(layout_of(frame));
  w.segment().frames.push_back(x_builder.layout(w.local().layout()));
  const FrameId own = x_builder.frame(w.segment().frames.back());
  frames.push_back(own);
  const SegmentId segment = x_builder.segment(std::move(w.segment()));
  x_builder.call(Call{segment, -1, -1, std::move(frames), std::move(waits)});
  return StreamWait{StreamId(), own, end.event};
}
/// The tokens of a microbatch where its first chunk stands, its labels where its last does; both
/// where all stages share the vocabulary.
void StageWriter::load_inputs(Passage& passage, std::int32_t microbatch) {
  const std::int64_t way = x_plan.way_of(microbatch);
  const bool shares = x_plan.shares_vocabulary();
  const bool first = shares || x_stage == x_plan.stage_of(0, way);
  const bool last = shares || x_stage == x_plan.stage_of(x_plan.chunks() - 1, way);
  SegmentId& load = x_load[static_cast<std::size_t>(way)];
  if (!load.valid()) {
    LayoutWriter events("load", 1);
    SegmentWriter w(x_builder, "load inputs", events);
    w.phase = Phase::kInput;
    w.pause("data.prepare", x_plan.data_time);
    const FrameLayout& inputs = x_builder.program().layouts[x_inputs.index()];
    const auto copy = [&](const std::string& name, std::int16_t buffer) {
      const Bytes bytes = inputs.buffers[static_cast<std::size_t>(buffer)].bytes();
      w.compute(name, Copy{Memory::kHost, Memory::kDevice, bytes}, {},
                {View{0, buffer, 0, bytes, 1, GroupSlot()}});
      w.segment().ops.back().category = Category::kMemory;
    };
    if (first) copy("data." + inputs.buffers[kTokens].name, kTokens);
    if (last) copy("data.labels", kLabels);
    if (x_model.is_encoder_decoder()) copy("data.targets", kTargets);
    if (x_model.is_network()) w.record(EventRef{0, kReady});
    w.segment().frames = {x_inputs};
    load = x_builder.segment(std::move(w.segment()));
  }
  const FrameId inputs = x_builder.frame(x_inputs, -1, microbatch);
  x_input_frames.emplace(microbatch, inputs);
  x_builder.call(Call{load, -1, microbatch, {inputs}, {}});
  if (x_model.is_network()) passage.hidden.push_back(inputs);
}
FrameId StageWriter::inputs_of(std::int32_t microbatch) const {
  const auto known = x_input_frames.find(microbatch);
  return known == x_input_frames.end() ? FrameId() : known->second;
}

/// The frame that a pass begins with, made where it does not exist yet.
void StageWriter::need_input(std::int32_t c, std::int32_t mb, bool gradient) {
  const Chunk& chunk = x_chunks[static_cast<std::size_t>(c)];
  Passage& passage = x_passages[{c, mb}];
  const bool end = gradient ? chunk.last : chunk.first;
  const bool turned = !end && stays_on_stage(context(), c, gradient ? 1 : -1);
  if (gradient && !passage.gradient.valid()) {
    passage.gradient = turned ? x_turned.at(mb) : x_builder.frame(x_head.hidden_gradient, -1, mb);
  } else if (!gradient && passage.hidden.empty()) {
    passage.hidden.push_back(turned ? x_passages.at({c - 1, mb}).hidden.back()
                                    : x_builder.frame(x_layer.hidden, -1, mb));
  }
}

void StageWriter::embedding_forward(Chunk& chunk, Passage& passage, const Task& task) {
  const EndSegments& s = *x_embedding_segments;
  const std::int32_t mb = task.microbatch;
  passage.embedding_saved = x_builder.frame(s.saved, -1, mb);
  const bool returned = task.form == kReturned;
  if (returned) passage.embedded = x_builder.frame(x_layer.hidden, -1, mb);
  const FrameId out = returned      ? passage.embedded
                      : chunk.first ? passage.hidden.front()
                                    : FrameId();
  const PartFrames& part = chunk.embedding;
  Call call{s.forward,
            -1,
            mb,
            {part.weights, part.gradients, part.shared, part.shared_gradients, out, FrameId(),
             passage.embedding_saved, x_builder.frame(s.local_forward, -1, mb), inputs_of(mb)},
            waits_of(task, s.forward)};
  bind_tied(chunk, false, call);
  bind_part(chunk, -1, &x_embedding, false, call);
  x_builder.call(std::move(call));
}

void StageWriter::layer_forward(Chunk& chunk, Passage& passage, TaskId id) {
  const Task& task = x_step[id];
  const std::int32_t mb = task.microbatch;
  const auto index = static_cast<std::int32_t>(chunk.first_layer + task.layer);
  const LayerSegments& s = layer_segments(chunk, task.layer);
  passage.saved.push_back(x_builder.frame(s.saved, index, mb));
  passage.hidden.push_back(x_builder.frame(kind_of(chunk, task.layer).output, index, mb));
  Call call = forward_call(chunk, passage, task, passage.hidden.back());
  x_done[id.index()] = done_at(passage.hidden.back(), kReady);
  if ((task.form & kSliceHeads) == 0) return x_builder.call(std::move(call));
  if (!task.of.valid()) {
    call.waits.push_back({StreamId(std::size_t{0}), passage.hidden.front(), kReady});
  }
  call_slice_heads(id, std::move(call), s.forward_slices);
}

/// From the stream before the task's layer to `out`, with the frame of the layer for what is kept.
Call StageWriter::forward_call(Chunk& chunk, Passage& passage, const Task& task, FrameId out) {
  const std::int64_t l = task.layer;
  const std::int32_t mb = task.microbatch;
  const auto index = static_cast<std::int32_t>(chunk.first_layer + l);
  const auto at = static_cast<std::size_t>(l);
  const LayerSegments& s = layer_segments(chunk, l);
  const PartFrames& part = chunk.parts[at];
  Call call{
      s.forward,
      index,
      mb,
      {part.weights, part.gradients, part.shared, part.shared_gradients, passage.hidden[at], out,
       passage.saved[at], x_builder.frame(s.local_forward, index, mb), FrameId(), FrameId()},
      waits_of(task, s.forward)};
  bind_experts(chunk, l, false, call);
  if (part.quantized.valid()) call.frames.push_back(part.quantized);
  bind_loss(chunk, l, call);
  bind_memory(chunk, passage, l, false, call);
  bind_part(chunk, l, nullptr, false, call);
  return call;
}

/// The forward pass of a layer once more, as one of a block of them.
void StageWriter::layer_again(Chunk& chunk, Passage& passage, const Task& task) {
  const auto at = static_cast<std::size_t>(task.layer);
  const std::int32_t mb = task.microbatch;
  const auto index = static_cast<std::int32_t>(chunk.first_layer + task.layer);
  const LayerSegments& s = layer_segments(chunk, task.layer);
  passage.saved[at] = x_builder.frame(s.saved, index, mb);
  const FrameId out = x_builder.frame(kind_of(chunk, task.layer).output, index, mb);
  Call call = forward_call(chunk, passage, task, out);
  const bool last = (task.form & kBlockLast) != 0;
  call.segment = last ? s.again_last : s.again;
  const bool first = (task.form & kBlockFirst) != 0;
  if (first && !x_plan.recompute.early && passage.gradient.valid()) {
    call.waits.push_back({StreamId(std::size_t{0}), passage.gradient, kReady});
  }
  x_builder.call(std::move(call));
  // What lies behind the block is kept: the next block's input, or the head's.
  if (!last) passage.hidden[at + 1] = out;
}

void StageWriter::checkpoint(std::int32_t mb) {
  if (!x_checkpoint.valid()) {
    LayoutWriter events("checkpoint", 1);
    SegmentWriter w(x_builder, "checkpoint", events);
    w.phase = Phase::kRecompute;
    w.pause("checkpoint.state", x_plan.checkpoint_time);
    x_checkpoint = x_builder.segment(std::move(w.segment()));
  }
  x_builder.call(Call{x_checkpoint, -1, mb, {}, {}});
}

/// Before the first use of a layer's weights in a step.
void StageWriter::quantize_weights(Chunk& chunk, const Task& task) {
  const std::int64_t l = task.layer;
  const LayerSegments& s = layer_segments(chunk, l);
  FT_CHECK(s.quantize.valid(), "a layer whose weights have no copies");
  PartFrames& part = chunk.parts[static_cast<std::size_t>(l)];
  const auto layer = static_cast<std::int32_t>(chunk.first_layer + l);
  part.quantized = x_builder.frame(kind_of(chunk, l).quantized, layer);
  Call call{s.quantize, layer, task.microbatch, std::vector<FrameId>(kLayerFrames),
            waits_of(task, s.quantize)};
  call.frames[kWeights] = part.weights;
  call.frames[kShared] = part.shared;
  call.frames[kLocal] = x_builder.frame(s.local_forward, layer, task.microbatch);
  bind_experts(chunk, l, false, call);
  call.frames.push_back(part.quantized);
  x_builder.call(std::move(call));
}

void StageWriter::head_forward(Chunk& chunk, Passage& passage, const Task& task) {
  const EndSegments& s = *x_head_segments;
  const std::int32_t mb = task.microbatch;
  passage.head_saved = x_builder.frame(s.saved, -1, mb);
  const PartFrames& part = chunk.head;
  Call call{s.forward,
            -1,
            mb,
            {part.weights, part.gradients, part.shared, part.shared_gradients,
             chunk.last ? passage.hidden.back() : FrameId(), FrameId(), passage.head_saved,
             x_builder.frame(s.local_forward, -1, mb), inputs_of(mb), x_scalar_frame},
            waits_of(task, s.forward)};
  bind_tied(chunk, false, call);
  bind_part(chunk, -1, &x_head, false, call);
  x_builder.call(std::move(call));
}

void StageWriter::head_backward(Chunk& chunk, Passage& passage, TaskId id) {
  const Task& task = x_step[id];
  const EndSegments& s = *x_head_segments;
  const std::int32_t mb = task.microbatch;
  fresh_end(chunk, chunk.head, x_head);
  const PartFrames& part = chunk.head;
  Call call{s.backward,
            -1,
            mb,
            {part.weights, part.gradients, part.shared, part.shared_gradients,
             chunk.last ? passage.hidden.back() : FrameId(),
             chunk.last ? passage.gradient : FrameId(), passage.head_saved,
             x_builder.frame(s.local_backward, -1, mb), inputs_of(mb), x_scalar_frame},
            waits_of(task, s.backward)};
  passage.head_done = StreamWait{StreamId(), call.frames[kHeadLocal], s.done};
  x_done[id.index()] = {StreamWait{StreamId(), passage.gradient, kReady}, passage.head_done};
  bind_tied(chunk, true, call);
  bind_part(chunk, -1, &x_head, true, call);
  if (s.weights.valid()) x_weights[{task.chunk, mb, -1}] = for_weights(call, s.weights);
  x_builder.call(std::move(call));
}

void StageWriter::layer_backward(Chunk& chunk, Passage& passage, TaskId id) {
  const Task& task = x_step[id];
  const std::int64_t l = task.layer;
  const std::int32_t mb = task.microbatch;
  const auto index = static_cast<std::int32_t>(chunk.first_layer + l);
  const LayerSegments& s = layer_segments(chunk, l);
  PartFrames& part = chunk.parts[static_cast<std::size_t>(l)];
  const LayerLayouts& kind = kind_of(chunk, l);
  if (x_plan.contiguous_passes()) part.gradients = x_builder.frame(kind.gradients, index, mb);
  const FrameId below = x_builder.frame(kind.hidden_gradient, index, mb);
  // What is computed again writes the layer's output a second time: into a frame of its own.
  const FrameId output = x_model.is_network() ? passage.hidden[static_cast<std::size_t>(l) + 1]
                                              : x_builder.frame(kind.output, index, mb);
  Call call{s.backward,
            index,
            mb,
            {part.weights, part.gradients, part.shared, part.shared_gradients,
             passage.hidden[static_cast<std::size_t>(l)], output,
             passage.saved[static_cast<std::size_t>(l)],
             x_builder.frame(s.local_backward, index, mb), passage.gradient, below},
            waits_of(task, s.backward)};
  wait_loaded(passage, l, call);
  bind_experts(chunk, l, true, call);
  if (part.quantized.valid()) call.frames.push_back(part.quantized);
  bind_loss(chunk, l, call);
  bind_memory(chunk, passage, l, true, call);
  bind_part(chunk, l, nullptr, true, call);
  if (s.weights.valid()) x_weights[{task.chunk, mb, l}] = for_weights(call, s.weights);
  x_done[id.index()] = done_at(below, kReady);
  if ((task.form & kSliceHeads) != 0) {
    if (!task.of.valid()) {
      call.waits.push_back({StreamId(std::size_t{0}), passage.gradient, kReady});
    }
    call_slice_heads(id, std::move(call), s.backward_slices);
  } else {
    x_builder.call(std::move(call));
  }
  passage.gradient = below;
  passage.done = x_done[id.index()].end;
}

void StageWriter::embedding_backward(Chunk& chunk, Passage& passage, TaskId id) {
  const Task& task = x_step[id];
  const std::int32_t mb = task.microbatch;
  const EndSegments& s = *x_embedding_segments;
  fresh_end(chunk, chunk.embedding, x_embedding);
  const PartFrames& part = chunk.embedding;
  const bool begun = passage.embedding_local.valid();
  const FrameId local = begun ? passage.embedding_local : x_builder.frame(s.local_backward, -1, mb);
  Call call{
      s.backward,
      -1,
      mb,
      {part.weights, part.gradients, part.shared, part.shared_gradients, FrameId(),
       chunk.first ? passage.gradient : FrameId(), passage.embedding_saved, local, inputs_of(mb)},
      waits_of(task, s.backward)};
  bind_tied(chunk, true, call);
  bind_part(chunk, -1, &x_embedding, true, call);
  x_builder.call(std::move(call));
  x_done[id.index()] = done_at(local, s.done);
  passage.done = x_done[id.index()].end;
}

/// The gradients of matrices that a backward pass left.
void StageWriter::weight_gradients(Chunk& chunk, TaskId id) {
  const Task& task = x_step[id];
  const bool head = task.kind == TaskKind::kHead;
  const auto found = x_weights.find({task.chunk, task.microbatch, head ? -1 : task.layer});
  FT_CHECK(found != x_weights.end(), "gradients of weights before those of inputs");
  Call call = std::move(found->second);
  x_weights.erase(found);
  const FrameId local = call.frames[head ? std::size_t{kHeadLocal} : std::size_t{kLocal}];
  x_done[id.index()] =
      done_at(local, head ? x_head_segments->done : layer_segments(chunk, task.layer).done);
  call.waits = waits_of(task, call.segment);
  x_builder.call(std::move(call));
  const PassKind kind = x_step.passes[static_cast<std::size_t>(task.pass)].pass.kind;
  if (kind != PassKind::kWeightGradients) return;  // the backward pass is what others wait for
  x_passages[{task.chunk, task.microbatch}].done = x_done[id.index()].end;
}

Program write_stage(const Model& model, const Plan& plan, std::int64_t stage) {
  return StageWriter(model, plan, stage).run();
}

StageStep step_of(const Model& model, const Plan& plan, std::int64_t stage,
                  const std::string& until, bool verified) {
  return StageWriter(model, plan, stage).step(until, verified);
}

Result<std::string> step_text(const Model& model, const Plan& plan, std::int64_t stage,
                              const std::string& until) {
  std::vector<std::string> names;
  for (const StagePass& pass : stage_passes()) names.emplace_back(pass.name);
  const bool known = until.empty() || std::find(names.begin(), names.end(), until) != names.end();
  if (!known) {
    const std::string near = nearest_name(until, names);
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "\"" : ", \"") + name + "\"";
    return input_error("no pass is called \"" + until + "\"" +
                       (near.empty() ? "." : "; did you mean \"" + near + "\"?") +
                       " The passes, in order: " + all);
  }
  const StageStep step = step_of(model, plan, stage, until);
  std::string out = "stage " + std::to_string(stage) + " of " + std::to_string(plan.pipeline) +
                    ": " + std::to_string(step.order().size()) + " tasks" +
                    (until.empty() ? "" : " after the pass \"" + until + "\"") + "\n";
  return out +
         "passes that rewrote them: " + (step.rewritten_by.empty() ? "none" : step.rewritten_by) +
         "\n" + text_of(step);
}

}  // namespace foretrain
