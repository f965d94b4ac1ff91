#include "models/emit/emit.h"
#include "models/emit/frames.h"
#include "models/emit/tasks.h"
#include "models/gradients/buckets.h"
#include "models/units/units.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "models/layers/kernel_forms.h"
#include "models/plan/layout/plan_stages.h"
#include "sim/base/check.h"
#include "sim/base/json.h"

namespace foretrain {

// Formal frames of the step's first segment, behind the gradients, and of inputs.
static constexpr std::int16_t kLossFrame = 1, kInputsFrame = 0;

static void write_holdings(Stage& stage);
static Call forward_call(Stage& stage, Chunk& chunk, MicrobatchState& passage, const Task& task,
                         FrameId out);

/// What the stage holds: frames of parameters, gradients and states, segments that all its tasks
/// share.
void write_holdings(Stage& stage) {
  write_layouts(stage);
  write_segments(stage);
  for (std::int64_t c = 0; c < stage.plan.chunks_of_stage(); ++c) make_chunk(stage, c);
  const std::size_t own = stage.holds.chunks.size();
  for (std::size_t c = 0; c < own; ++c) make_experts(stage, c);
  stage.holds.scalar_values = stage.builder.frame(stage.holds.scalars);
  if (const Bytes page = stage.plan.offload.page;
      page > 0 && by_units(stage) && stage.plan.offload.states()) {
    fill_last_pages(stage, page);
  }
}

StageContext context(Stage& stage) {
  StageContext out{stage.model,        stage.plan,
                   stage.number,       stage.holds.chunks,
                   stage.holds.shapes, stage.holds.embedding,
                   stage.holds.head,   {}};
  for (const Chunk& chunk : stage.holds.chunks) out.kinds.push_back(kinds_of(stage, chunk));
  return out;
}

/// Where and when a task that `task` comes after is done; without a stream.
StreamWait point(Stage& stage, const Task& task) {
  if (task.after.empty()) return {};
  const After& after = task.after.front();
  const TaskDone& done = stage.values.done[after.task.index()];
  return after.end ? done.end : done.output;
}

std::vector<StreamWait> waits_of(Stage& stage, const Task& task, SegmentId segment) {
  std::vector<StreamWait> out;
  for (const After& after : task.after) {
    const TaskDone& done = stage.values.done[after.task.index()];
    StreamWait wait = after.end ? done.end : done.output;
    FT_CHECK(wait.frame.valid(), "a task comes after one that records nothing");
    wait.stream = after.stream != nullptr
                      ? stage.builder.stream(after.stream)
                      : stage.builder.program().segments[segment.index()].ops.front().stream;
    out.push_back(wait);
  }
  return out;
}

/// Workers beside the host prepare the next step's microbatches: the step takes as long as they do,
/// or what else it does. On every stage, so that each shows what all wait for.
void load_ahead(Stage& stage) {
  Op op;
  op.stream = stage.builder.stream("loader");
  op.work = stage.builder.work(Pause{Time{stage.plan.loader_time.ps * stage.plan.microbatches()}});
  op.name = "data.load_ahead";
  op.category = Category::kHost;
  op.phase = Phase::kInput;
  Segment segment;
  segment.name = "load ahead";
  segment.ops.push_back(std::move(op));
  stage.builder.call(Call{stage.builder.segment(std::move(segment)), -1, -1, {}, {}});
}

/// The step's first kernels: zeroes for what is added to. Returns where they end.
StreamWait zero(Stage& stage, std::size_t c) {
  if (by_units(stage)) return zero_units(stage);
  Chunk& chunk = stage.holds.chunks[c];
  LayoutWriter events("zero", 2);
  SegmentWriter w(stage.builder, "zero gradients " + std::to_string(c), events);
  w.phase = Phase::kGradients;
  if (c == 0) w.pause("host", stage.plan.step_time);
  Kernel fill;
  fill.rows = 1;
  fill.cols = chunk.elements;
  fill.dtype = stage.plan.precision.gradients;
  const View all{0, 0, 0, bytes_of(fill.dtype, chunk.elements), 1, GroupSlot()};
  if (!stage.plan.contiguous_passes()) w.compute("gradients.zero", fill, {}, {all});
  if (c == 0) {
    Kernel clear;
    clear.rows = clear.cols = 1;
    clear.dtype = DType::kFp32;
    w.compute("loss.zero", clear, {}, {View{kLossFrame, kLoss, 0, 4, 1, GroupSlot()}});
  }
  return call_marked(stage, w, "zeroed", {chunk.gradients, stage.holds.scalar_values});
}

/// Calls a segment of compute on `frames` and, behind them, one of its own, which marks its end.
/// Returns what comes after it.
StreamWait call_marked(Stage& stage, SegmentWriter& w, const char* event,
                       std::vector<FrameId> frames, std::vector<StreamWait> waits) {
  const EventRef end{static_cast<std::int16_t>(frames.size()), w.local().event(event).event};
  w.record(end);
  w.segment().frames.clear();
  for (const FrameId frame : frames) w.segment().frames.push_back(layout_of(stage, frame));
  w.segment().frames.push_back(stage.builder.layout(w.local().layout()));
  const FrameId own = stage.builder.frame(w.segment().frames.back());
  frames.push_back(own);
  const SegmentId segment = stage.builder.segment(std::move(w.segment()));
  stage.builder.call(Call{segment, -1, -1, std::move(frames), std::move(waits)});
  return StreamWait{StreamId(), own, end.event};
}
/// The tokens of a microbatch where its first chunk stands, its labels where its last does; both
/// where all stages share the vocabulary.
void load_inputs(Stage& stage, MicrobatchState& passage, std::int32_t microbatch) {
  const std::int64_t way = stage.plan.way_of(microbatch);
  const bool shares = stage.plan.shares_vocabulary();
  const bool first = shares || stage.number == stage.plan.stage_of(0, way);
  const bool last = shares || stage.number == stage.plan.stage_of(stage.plan.chunks() - 1, way);
  SegmentId& load = stage.segments.load[static_cast<std::size_t>(way)];
  if (!load.valid()) {
    LayoutWriter events("load", 1);
    SegmentWriter w(stage.builder, "load inputs", events);
    w.phase = Phase::kInput;
    w.pause("data.prepare", stage.plan.data_time);
    const FrameLayout& inputs = stage.builder.program().layouts[stage.holds.inputs.index()];
    const auto copy = [&](const std::string& name, std::int16_t buffer) {
      const Bytes bytes = inputs.buffers[static_cast<std::size_t>(buffer)].bytes();
      w.compute(name, Copy{Memory::kHost, Memory::kDevice, bytes}, {},
                {View{kInputsFrame, buffer, 0, bytes, 1, GroupSlot()}});
      w.segment().ops.back().category = Category::kMemory;
    };
    if (first) copy("data." + inputs.buffers[kTokens].name, kTokens);
    if (last) copy("data.labels", kLabels);
    if (stage.model.is_encoder_decoder()) copy("data.targets", kTargets);
    if (stage.model.is_network()) w.record(EventRef{kInputsFrame, kReady});
    w.segment().frames = {stage.holds.inputs};
    load = stage.builder.segment(std::move(w.segment()));
  }
  const FrameId inputs = stage.builder.frame(stage.holds.inputs, -1, microbatch);
  stage.values.input_frames.emplace(microbatch, inputs);
  stage.builder.call(Call{load, -1, microbatch, {inputs}, {}});
  if (stage.model.is_network()) passage.hidden.push_back(inputs);
}
FrameId inputs_of(Stage& stage, std::int32_t microbatch) {
  const auto known = stage.values.input_frames.find(microbatch);
  return known == stage.values.input_frames.end() ? FrameId() : known->second;
}

/// The frame that a pass begins with, made where it does not exist yet.
void need_input(Stage& stage, std::int32_t c, std::int32_t mb, bool gradient) {
  const Chunk& chunk = stage.holds.chunks[static_cast<std::size_t>(c)];
  MicrobatchState& passage = stage.values.passages[{c, mb}];
  const bool end = gradient ? chunk.last : chunk.first;
  const bool turned = !end && stays_on_stage(stage.plan, stage.number, c, gradient ? 1 : -1);
  if (gradient && !passage.gradient.valid()) {
    passage.gradient = turned ? stage.values.turned.at(mb)
                              : stage.builder.frame(stage.holds.head.hidden_gradient, -1, mb);
  } else if (!gradient && passage.hidden.empty()) {
    passage.hidden.push_back(turned ? stage.values.passages.at({c - 1, mb}).hidden.back()
                                    : stage.builder.frame(stage.holds.layer.hidden, -1, mb));
  }
}

void embedding_forward(Stage& stage, Chunk& chunk, MicrobatchState& passage, const Task& task) {
  const EndSegments& s = *stage.segments.embedding;
  const std::int32_t mb = task.microbatch;
  passage.embedding_saved = stage.builder.frame(s.saved, -1, mb);
  const bool returned = task.form == kReturned;
  if (returned) passage.embedded = stage.builder.frame(stage.holds.layer.hidden, -1, mb);
  const FrameId out = returned      ? passage.embedded
                      : chunk.first ? passage.hidden.front()
                                    : FrameId();
  const PartFrames& part = chunk.embedding;
  Call call{
      s.forward,
      -1,
      mb,
      {part.weights, part.gradients, part.shared, part.shared_gradients, out, FrameId(),
       passage.embedding_saved, stage.builder.frame(s.local_forward, -1, mb), inputs_of(stage, mb)},
      waits_of(stage, task, s.forward)};
  bind_tied(stage, chunk, false, call);
  bind_part(stage, chunk, -1, &stage.holds.embedding, false, call);
  if (stage.model.hybrid.shared.blocks > 0) call.frames.emplace_back();
  stage.builder.call(std::move(call));
}

void layer_forward(Stage& stage, Chunk& chunk, MicrobatchState& passage, TaskId id) {
  const Task& task = stage.step[id];
  const std::int32_t mb = task.microbatch;
  const auto index = static_cast<std::int32_t>(chunk.first_layer + task.layer);
  const LayerSegments& s = layer_segments(stage, chunk, task.layer);
  passage.saved.push_back(stage.builder.frame(s.saved, index, mb));
  passage.hidden.push_back(
      stage.builder.frame(kind_of(stage, chunk, task.layer).output, index, mb));
  Call call = forward_call(stage, chunk, passage, task, passage.hidden.back());
  stage.values.done[id.index()] = done_at(passage.hidden.back(), kReady);
  if ((task.form & kSliceHeads) == 0) return stage.builder.call(std::move(call));
  if (!task.of.valid()) {
    call.waits.push_back({StreamId(std::size_t{0}), passage.hidden.front(), kReady});
  }
  call_slice_heads(stage, id, std::move(call), s.forward_slices);
}

/// From the stream before the task's layer to `out`, with the frame of the layer for what is kept.
Call forward_call(Stage& stage, Chunk& chunk, MicrobatchState& passage, const Task& task,
                  FrameId out) {
  const std::int64_t l = task.layer;
  const std::int32_t mb = task.microbatch;
  const auto index = static_cast<std::int32_t>(chunk.first_layer + l);
  const auto at = static_cast<std::size_t>(l);
  const LayerSegments& s = layer_segments(stage, chunk, l);
  const PartFrames& part = chunk.parts[at];
  Call call{
      s.forward,
      index,
      mb,
      {part.weights, part.gradients, part.shared, part.shared_gradients, passage.hidden[at], out,
       passage.saved[at], stage.builder.frame(s.local_forward, index, mb), FrameId(), FrameId()},
      waits_of(stage, task, s.forward)};
  bind_experts(stage, chunk, l, false, call);
  if (part.quantized.valid()) call.frames.push_back(part.quantized);
  bind_loss(stage, chunk, l, call);
  bind_memory(stage, chunk, passage, l, false, call);
  bind_block(stage, chunk, passage, l, false, call);
  bind_part(stage, chunk, l, nullptr, false, call);
  return call;
}

/// The forward pass of a layer once more, as one of a block of them.
void layer_again(Stage& stage, Chunk& chunk, MicrobatchState& passage, const Task& task) {
  const auto at = static_cast<std::size_t>(task.layer);
  const std::int32_t mb = task.microbatch;
  const auto index = static_cast<std::int32_t>(chunk.first_layer + task.layer);
  const LayerSegments& s = layer_segments(stage, chunk, task.layer);
  passage.saved[at] = stage.builder.frame(s.saved, index, mb);
  const FrameId out = stage.builder.frame(kind_of(stage, chunk, task.layer).output, index, mb);
  Call call = forward_call(stage, chunk, passage, task, out);
  const bool last = (task.form & kBlockLast) != 0;
  call.segment = last ? s.again_last : s.again;
  const bool first = (task.form & kBlockFirst) != 0;
  if (first && !stage.plan.recompute.early && passage.gradient.valid()) {
    call.waits.push_back({StreamId(std::size_t{0}), passage.gradient, kReady});
  }
  stage.builder.call(std::move(call));
  // What lies behind the block is kept: the next block's input, or the head's.
  if (!last) passage.hidden[at + 1] = out;
}

void checkpoint(Stage& stage, std::int32_t mb) {
  if (!stage.segments.checkpoint.valid()) {
    LayoutWriter events("checkpoint", 1);
    SegmentWriter w(stage.builder, "checkpoint", events);
    w.phase = Phase::kRecompute;
    w.pause("checkpoint.state", stage.plan.checkpoint_time);
    stage.segments.checkpoint = stage.builder.segment(std::move(w.segment()));
  }
  stage.builder.call(Call{stage.segments.checkpoint, -1, mb, {}, {}});
}

/// Before the first use of a layer's weights in a step.
void quantize_weights(Stage& stage, Chunk& chunk, const Task& task) {
  const std::int64_t l = task.layer;
  const LayerSegments& s = layer_segments(stage, chunk, l);
  FT_CHECK(s.quantize.valid(), "a layer whose weights have no copies");
  PartFrames& part = chunk.parts[static_cast<std::size_t>(l)];
  const auto layer = static_cast<std::int32_t>(chunk.first_layer + l);
  part.quantized = stage.builder.frame(kind_of(stage, chunk, l).quantized, layer);
  Call call{s.quantize, layer, task.microbatch, std::vector<FrameId>(kLayerFrames),
            waits_of(stage, task, s.quantize)};
  call.frames[kWeights] = part.weights;
  call.frames[kShared] = part.shared;
  call.frames[kLocal] = stage.builder.frame(s.local_forward, layer, task.microbatch);
  bind_experts(stage, chunk, l, false, call);
  call.frames.push_back(part.quantized);
  stage.builder.call(std::move(call));
}

void head_forward(Stage& stage, Chunk& chunk, MicrobatchState& passage, const Task& task) {
  const EndSegments& s = *stage.segments.head;
  const std::int32_t mb = task.microbatch;
  passage.head_saved = stage.builder.frame(s.saved, -1, mb);
  const PartFrames& part = chunk.head;
  Call call{s.forward,
            -1,
            mb,
            {part.weights, part.gradients, part.shared, part.shared_gradients,
             chunk.last ? passage.hidden.back() : FrameId(), FrameId(), passage.head_saved,
             stage.builder.frame(s.local_forward, -1, mb), inputs_of(stage, mb),
             stage.holds.scalar_values},
            waits_of(stage, task, s.forward)};
  bind_tied(stage, chunk, false, call);
  bind_part(stage, chunk, -1, &stage.holds.head, false, call);
  stage.builder.call(std::move(call));
}

void head_backward(Stage& stage, Chunk& chunk, MicrobatchState& passage, TaskId id) {
  const Task& task = stage.step[id];
  const EndSegments& s = *stage.segments.head;
  const std::int32_t mb = task.microbatch;
  fresh_end(stage, chunk, chunk.head, stage.holds.head);
  const PartFrames& part = chunk.head;
  Call call{
      s.backward,
      -1,
      mb,
      {part.weights, part.gradients, part.shared, part.shared_gradients,
       chunk.last ? passage.hidden.back() : FrameId(), chunk.last ? passage.gradient : FrameId(),
       passage.head_saved, stage.builder.frame(s.local_backward, -1, mb), inputs_of(stage, mb),
       stage.holds.scalar_values},
      waits_of(stage, task, s.backward)};
  passage.head_done = StreamWait{StreamId(), call.frames[kHeadLocal], s.done};
  stage.values.done[id.index()] = {StreamWait{StreamId(), passage.gradient, kReady},
                                   passage.head_done};
  bind_tied(stage, chunk, true, call);
  bind_part(stage, chunk, -1, &stage.holds.head, true, call);
  if (s.weights.valid())
    stage.values.weights[{task.chunk, mb, -1}] = for_weights(stage, call, s.weights);
  stage.builder.call(std::move(call));
}

void layer_backward(Stage& stage, Chunk& chunk, MicrobatchState& passage, TaskId id) {
  const Task& task = stage.step[id];
  const std::int64_t l = task.layer;
  const std::int32_t mb = task.microbatch;
  const auto index = static_cast<std::int32_t>(chunk.first_layer + l);
  const LayerSegments& s = layer_segments(stage, chunk, l);
  PartFrames& part = chunk.parts[static_cast<std::size_t>(l)];
  const LayerLayouts& kind = kind_of(stage, chunk, l);
  if (stage.plan.contiguous_passes())
    part.gradients = stage.builder.frame(kind.gradients, index, mb);
  const FrameId below = stage.builder.frame(kind.hidden_gradient, index, mb);
  // Recomputation writes the layer's output a second time, into a frame of its own.
  const FrameId output = stage.model.is_network() ? passage.hidden[static_cast<std::size_t>(l) + 1]
                                                  : stage.builder.frame(kind.output, index, mb);
  Call call{s.backward,
            index,
            mb,
            {part.weights, part.gradients, part.shared, part.shared_gradients,
             passage.hidden[static_cast<std::size_t>(l)], output,
             passage.saved[static_cast<std::size_t>(l)],
             stage.builder.frame(s.local_backward, index, mb), passage.gradient, below},
            waits_of(stage, task, s.backward)};
  wait_loaded(stage, passage, l, call);
  bind_experts(stage, chunk, l, true, call);
  if (part.quantized.valid()) call.frames.push_back(part.quantized);
  bind_loss(stage, chunk, l, call);
  bind_memory(stage, chunk, passage, l, true, call);
  bind_block(stage, chunk, passage, l, true, call);
  bind_part(stage, chunk, l, nullptr, true, call);
  if (s.weights.valid())
    stage.values.weights[{task.chunk, mb, l}] = for_weights(stage, call, s.weights);
  stage.values.done[id.index()] = done_at(below, kReady);
  if ((task.form & kSliceHeads) != 0) {
    if (!task.of.valid()) {
      call.waits.push_back({StreamId(std::size_t{0}), passage.gradient, kReady});
    }
    call_slice_heads(stage, id, std::move(call), s.backward_slices);
  } else {
    stage.builder.call(std::move(call));
  }
  passage.gradient = below;
  passage.done = stage.values.done[id.index()].end;
}

void embedding_backward(Stage& stage, Chunk& chunk, MicrobatchState& passage, TaskId id) {
  const Task& task = stage.step[id];
  const std::int32_t mb = task.microbatch;
  const EndSegments& s = *stage.segments.embedding;
  fresh_end(stage, chunk, chunk.embedding, stage.holds.embedding);
  const PartFrames& part = chunk.embedding;
  const bool begun = passage.embedding_local.valid();
  const FrameId local =
      begun ? passage.embedding_local : stage.builder.frame(s.local_backward, -1, mb);
  Call call{s.backward,
            -1,
            mb,
            {part.weights, part.gradients, part.shared, part.shared_gradients, FrameId(),
             chunk.first ? passage.gradient : FrameId(), passage.embedding_saved, local,
             inputs_of(stage, mb)},
            waits_of(stage, task, s.backward)};
  bind_tied(stage, chunk, true, call);
  bind_part(stage, chunk, -1, &stage.holds.embedding, true, call);
  if (stage.model.hybrid.shared.blocks > 0) call.frames.push_back(passage.memory_gradient);
  stage.builder.call(std::move(call));
  stage.values.done[id.index()] = done_at(local, s.done);
  passage.done = stage.values.done[id.index()].end;
}

/// The gradients of matrices that a backward pass left.
void weight_gradients(Stage& stage, Chunk& chunk, TaskId id) {
  const Task& task = stage.step[id];
  const bool head = task.kind == TaskKind::kHead;
  const auto found =
      stage.values.weights.find({task.chunk, task.microbatch, head ? -1 : task.layer});
  FT_CHECK(found != stage.values.weights.end(), "gradients of weights before those of inputs");
  Call call = std::move(found->second);
  stage.values.weights.erase(found);
  const FrameId local = call.frames[head ? std::size_t{kHeadLocal} : std::size_t{kLocal}];
  stage.values.done[id.index()] = done_at(
      local, head ? stage.segments.head->done : layer_segments(stage, chunk, task.layer).done);
  call.waits = waits_of(stage, task, call.segment);
  stage.builder.call(std::move(call));
  const PassKind kind = stage.step.place_of(task).pass.kind;
  if (kind != PassKind::kWeightGradients) return;  // the backward pass is what others wait for
  stage.values.passages[{task.chunk, task.microbatch}].done = stage.values.done[id.index()].end;
}

namespace {

/// The plan as a stage follows it: the plan itself where all do the same, for its lists of passes
/// may be long.
struct OwnPlan {
  OwnPlan(const Plan& all, std::int64_t stage)
      : changed(all.stages.empty() ? std::nullopt : std::optional(plan_of_stage(all, stage))),
        plan(changed ? *changed : all) {}

  std::optional<Plan> changed;
  const Plan& plan;
};

Stage new_stage(const Model& model, const Plan& plan, std::int64_t number) {
  Stage stage{model, plan, number, ProgramBuilder("stage " + std::to_string(number))};
  stage.builder.stream(kComputeStream);  // stream 0
  write_holdings(stage);
  return stage;
}

}  // namespace

Program write_stage(const Model& model, const Plan& plan, std::int64_t number) {
  const OwnPlan own(plan, number);
  Stage stage = new_stage(model, own.plan, number);
  stage.step = lowered_step(context(stage));
  stage.values.done.resize(stage.step.made());
  for (const TaskId id : stage.step.order()) emit(stage, id);
  stage.builder.batch(batch(stage));
  Program program = std::move(stage.builder).build();
  form_kernels(own.plan, program);
  return program;
}

StageStep step_of(const Model& model, const Plan& plan, std::int64_t number,
                  const std::string& until, bool verified) {
  const OwnPlan own(plan, number);
  Stage stage = new_stage(model, own.plan, number);
  return lowered_step(context(stage), until, verified);
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
