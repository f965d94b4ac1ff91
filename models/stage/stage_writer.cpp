#include "models/stage/stage_writer.h"

#include <algorithm>
#include <utility>

#include "models/layers/kernel_forms.h"
#include "sim/base/check.h"

namespace foretrain {

StageWriter::StageWriter(const Model& model, const Plan& plan, std::int64_t stage)
    : x_model(model), x_plan(plan), x_stage(stage), x_builder("stage " + std::to_string(stage)) {
  x_builder.stream("compute");  // stream 0
}

Program StageWriter::run() && {
  write_layouts();
  write_segments();
  for (std::int64_t c = 0; c < x_plan.chunks_of_stage(); ++c) make_chunk(c);
  const std::size_t own = x_chunks.size();
  for (std::size_t c = 0; c < own; ++c) make_experts(c);
  x_scalar_frame = x_builder.frame(x_scalars);
  step_begins();
  write_passes();
  if (!by_units()) reduce_rest();
  update();
  x_builder.batch(batch());
  Program program = std::move(x_builder).build();
  form_kernels(x_plan, program);
  return program;
}

/// Before the forward pass by which the last stage's state can be here, at most the last one of the
/// warm-up: get_post_validation_time of sail-sg/zero-bubble-pipeline-parallelism,
/// megatron/core/pipeline_parallel/zerobubble/scheduler/communication.py.
std::size_t StageWriter::place_of_validation(const std::vector<Pass>& list) const {
  std::size_t warmup = 0;
  while (warmup < list.size() && list[warmup].kind == PassKind::kForward) ++warmup;
  const auto hops = static_cast<std::size_t>(x_plan.pipeline - 1 - x_stage);
  return std::min(2 * hops, std::max<std::size_t>(warmup, 1) - 1);
}

void StageWriter::write_passes() {
  const std::int64_t all = x_plan.microbatches() / x_plan.ways();
  std::vector<std::int64_t> forwards(x_chunks.size(), 0);
  std::vector<std::int64_t> backwards(x_chunks.size(), 0);
  const std::vector<Pass> list = passes_of(x_plan, x_stage);
  const std::size_t validation = x_plan.validates_later() ? place_of_validation(list) : list.size();
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Pass& pass = list[i];
    if (i == validation) validate_last_step();
    if (pass.joined && (i == 0 || !list[i - 1].joined)) joined_begin(list, i);
    if (x_joined) {
      x_joined_begins.emplace_back(x_builder.program().calls.size(),
                                   pass.kind == PassKind::kForward);
    }
    x_same_follows =
        i + 1 < list.size() && list[i + 1].kind == pass.kind && list[i + 1].chunk == pass.chunk;
    const auto c = static_cast<std::size_t>(pass.chunk);
    switch (pass.kind) {
      case PassKind::kForward:
      case PassKind::kForwardOnly:
        x_first_pass = forwards[c]++ == 0;
        forward(pass);
        break;
      case PassKind::kBackward:
        backward(pass.chunk, pass.microbatch, ++backwards[c] == all);
        break;
      case PassKind::kInputGradients:
        backward(pass.chunk, pass.microbatch, false);
        break;
      case PassKind::kWeightGradients:
        weight_gradients(pass.chunk, pass.microbatch, ++backwards[c] == all);
        break;
      default:
        vocabulary_pass(pass);
    }
    if (!pass.joined) joined_end();
  }
  finish_head();
}

/// Workers beside the host prepare the next step's microbatches: the step takes as long as they do,
/// or what else it does. On every stage, so that each shows what all wait for.
void StageWriter::load_ahead() {
  if (x_plan.loader_time.ps == 0) return;
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

/// Zeroes the gradients; with gathers overlapped, last step's parameters come in after it, beside
/// the forward pass: a framework's collectives wait for what its compute stream was given before.
void StageWriter::step_begins() {
  load_ahead();
  if (by_units()) return zero_units();
  StreamWait zeroed;
  for (std::size_t c = 0; c < x_chunks.size(); ++c) {
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
    if (w.segment().ops.empty()) continue;
    zeroed = call_marked(w, "zeroed", {chunk.gradients, x_scalar_frame});
  }
  if (x_plan.offload.delayed_update) update_on_host(true);
  if (!x_plan.overlap.parameter_gather) return;
  for (Chunk& chunk : x_chunks) {
    if (sharded(chunk.holders)) gather_parameters(chunk, zeroed);
  }
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

/// First what the forward pass needs first: the end of the list of buckets.
void StageWriter::gather_parameters(Chunk& chunk, StreamWait after) {
  for (auto bucket = chunk.buckets.rbegin(); bucket != chunk.buckets.rend(); ++bucket) {
    gather_bucket(chunk, *bucket, after);
  }
}

void StageWriter::wait_gathered(const Chunk& chunk, const PartFrames& part, Call& call) const {
  if (!x_first_pass || !sharded(chunk.holders) || !x_plan.overlap.parameter_gather) return;
  const StreamId compute(std::size_t{0});
  for (const Bucket& bucket : chunk.buckets) {
    const bool cut = bucket.begin < part.cut_end && part.cut_begin < bucket.end;
    const bool shared = bucket.begin < chunk.shared_elements;
    if (cut || shared) call.waits.push_back(StreamWait{compute, bucket.frame, kGathered});
  }
}

/// After a microbatch's backward pass through the whole chunk.
void StageWriter::finish_pass(Chunk& chunk, FrameId frame, std::int16_t event, bool last) {
  if (by_units()) {
    if (!x_plan.splits_backward()) finish_units(chunk, frame, event, last);
    return;
  }
  if (x_plan.contiguous_passes()) return finish_contiguous(chunk, frame, event, last);
  const StreamWait done = x_plan.sums_after_pass && chunk.elements > 0
                              ? add_pass(chunk)
                              : StreamWait{StreamId(), frame, event};
  if (last || x_plan.reduces_each_pass()) {
    finish_chunk(chunk, done.frame, done.event);
    if (chunk.summed.valid()) collect_pass(chunk, last);
  }
}

/// The tokens of a microbatch where its first chunk stands, its labels where its last does; both
/// where all stages share the vocabulary.
void StageWriter::load_inputs(Passage& passage, std::int32_t microbatch) {
  const auto known = x_input_frames.find(microbatch);
  if (known != x_input_frames.end()) {
    passage.inputs = known->second;
    return;
  }
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
  passage.inputs = x_builder.frame(x_inputs, -1, microbatch);
  x_input_frames.emplace(microbatch, passage.inputs);
  x_builder.call(Call{load, -1, microbatch, {passage.inputs}, {}});
  if (x_model.is_network()) passage.hidden.push_back(passage.inputs);
}

void StageWriter::forward(const Pass& pass) {
  const std::int32_t c = pass.chunk;
  const std::int32_t mb = pass.microbatch;
  Chunk& chunk = x_chunks[static_cast<std::size_t>(c)];
  Passage& passage = x_passages[{c, mb}];
  passage.keeps = pass.kind == PassKind::kForward;
  if (Unit* root = root_of(chunk)) open_unit(*root, false);
  const bool ends = !x_plan.shares_vocabulary();  // else they have passes of their own
  const bool head = ends && chunk.last && passage.keeps;
  if ((ends && chunk.first) || head) load_inputs(passage, mb);
  const FrameId returned = pass.round > 0 ? receive_returned(chunk, mb) : FrameId();
  const FrameId arrived = receive_input(c, mb, false);
  pass_begins(false, mb, chunk.first && x_plan.pipeline > 1 ? returned : arrived);
  if (ends && chunk.first && !x_model.is_network()) {
    returned.valid() ? embed_returned(chunk, passage, mb, returned)
                     : embedding_forward(chunk, passage, mb);
  }
  if (x_plan.spreads_vocabulary()) embedding_inner_forward(chunk, passage, mb);
  for (std::int64_t l = 0; l < chunk.layers; ++l) layer_forward(chunk, passage, l, mb);
  finish_slices();
  if (head && pass.round > 0) x_first_pass = mb == 0;  // its own
  if (head) head_forward(chunk, passage, mb);
  // Blocks of a woven pass go in between: it lets go of its own.
  if (x_joined && x_plan.weaves() && x_model.has_experts()) let_go_of_copied();
  let_go_of_casts(chunk, passage, mb);
  pass_ends(false, mb);
  share_scales(chunk, mb, false);
  x_layer_passes.push_back(StreamWait{StreamId(), passage.hidden.back(), kReady});
  if (!passage.keeps) return forward_ends(chunk, pass);
  if (!chunk.last && !turns(c, 1)) send(c, sent_output(passage, mb), mb, false);
  if (!ends) x_pass_done = StreamWait{StreamId(), passage.hidden.back(), kReady};
}

void StageWriter::embedding_forward(Chunk& chunk, Passage& passage, std::int32_t mb) {
  const EndSegments& s = *x_embedding_segments;
  passage.embedding_saved = x_builder.frame(s.saved, -1, mb);
  const PartFrames& part = chunk.embedding;
  Call call{s.forward,
            -1,
            mb,
            {part.weights, part.gradients, part.shared, part.shared_gradients,
             chunk.first ? passage.hidden.front() : FrameId(), FrameId(), passage.embedding_saved,
             x_builder.frame(s.local_forward, -1, mb), passage.inputs},
            std::move(x_before_next)};
  x_before_next.clear();
  wait_gathered(chunk, part, call);
  bind_tied(chunk, false, call);
  bind_part(chunk, -1, &x_embedding, false, call);
  x_builder.call(std::move(call));
}

void StageWriter::layer_forward(Chunk& chunk, Passage& passage, std::int64_t l, std::int32_t mb) {
  const auto index = static_cast<std::int32_t>(chunk.first_layer + l);
  unit_opens(chunk, l, false);
  const LayerSegments& s = layer_segments(chunk, l);
  PartFrames& part = chunk.parts[static_cast<std::size_t>(l)];
  if (s.quantize.valid() && !part.quantized.valid()) quantize_weights(chunk, l, s, mb);
  passage.saved.push_back(x_builder.frame(s.saved, index, mb));
  passage.hidden.push_back(x_builder.frame(kind_of(chunk, l).output, index, mb));
  Call call = forward_call(chunk, passage, l, mb, passage.hidden.back());
  if (sliced()) {
    if (l == 0) call.waits.push_back({StreamId(std::size_t{0}), passage.hidden.front(), kReady});
    return call_slices(std::move(call), s.forward_slices);
  }
  x_builder.call(std::move(call));
  unit_ends(chunk, l, passage.hidden.back(), false, false);
  if (passage.keeps) keep_on_host(chunk, passage, l);
}

/// From the stream before layer `l` to `out`, with the frame of the layer for what is kept.
Call StageWriter::forward_call(Chunk& chunk, Passage& passage, std::int64_t l, std::int32_t mb,
                               FrameId out) {
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
      std::move(x_before_next)};
  x_before_next.clear();
  wait_gathered(chunk, part, call);
  bind_experts(chunk, l, false, call);
  if (part.quantized.valid()) call.frames.push_back(part.quantized);
  bind_loss(chunk, passage, l, call);
  bind_memory(chunk, passage, l, false, call);
  bind_part(chunk, l, nullptr, false, call);
  return call;
}

/// Before the first use of a layer's weights in a step.
void StageWriter::quantize_weights(Chunk& chunk, std::int64_t l, const LayerSegments& s,
                                   std::int32_t mb) {
  PartFrames& part = chunk.parts[static_cast<std::size_t>(l)];
  const auto layer = static_cast<std::int32_t>(chunk.first_layer + l);
  part.quantized = x_builder.frame(kind_of(chunk, l).quantized, layer);
  Call call{s.quantize, layer, mb, std::vector<FrameId>(kLayerFrames), std::move(x_before_next)};
  x_before_next.clear();
  call.frames[kWeights] = part.weights;
  call.frames[kShared] = part.shared;
  call.frames[kLocal] = x_builder.frame(s.local_forward, layer, mb);
  wait_gathered(chunk, part, call);
  bind_experts(chunk, l, false, call);
  call.frames.push_back(part.quantized);
  x_builder.call(std::move(call));
}

void StageWriter::head_forward(Chunk& chunk, Passage& passage, std::int32_t mb) {
  const EndSegments& s = *x_head_segments;
  passage.head_saved = x_builder.frame(s.saved, -1, mb);
  const PartFrames& part = chunk.head;
  Call call{s.forward,
            -1,
            mb,
            {part.weights, part.gradients, part.shared, part.shared_gradients,
             chunk.last ? passage.hidden.back() : FrameId(), FrameId(), passage.head_saved,
             x_builder.frame(s.local_forward, -1, mb), passage.inputs, x_scalar_frame},
            std::move(x_before_next)};
  x_before_next.clear();
  wait_gathered(chunk, part, call);
  bind_tied(chunk, false, call);
  bind_part(chunk, -1, &x_head, false, call);
  x_builder.call(std::move(call));
}

void StageWriter::head_backward(Chunk& chunk, Passage& passage, std::int32_t mb) {
  const EndSegments& s = *x_head_segments;
  fresh_end(chunk, chunk.head, x_head);
  const PartFrames& part = chunk.head;
  Call call{s.backward,
            -1,
            mb,
            {part.weights, part.gradients, part.shared, part.shared_gradients,
             chunk.last ? passage.hidden.back() : FrameId(),
             chunk.last ? passage.gradient : FrameId(), passage.head_saved,
             x_builder.frame(s.local_backward, -1, mb), passage.inputs, x_scalar_frame},
            std::move(x_before_next)};
  x_head_done = call.frames[kHeadLocal];
  x_before_next.clear();
  bind_tied(chunk, true, call);
  bind_part(chunk, -1, &x_head, true, call);
  if (!s.weights.valid()) return x_builder.call(std::move(call));
  Call weights = for_weights(call, s.weights);
  x_builder.call(std::move(call));
  if (!x_plan.defers_head()) {
    passage.weights.emplace_back(-1, std::move(weights));
  } else if (static_cast<std::int64_t>(x_head_left.size()) < x_plan.overlap.head_deferral) {
    x_head_left.push_back(std::move(weights));
  } else {
    x_builder.call(std::move(weights));
  }
}

/// What `overlap.head_deferral` left: the stage has sent its last gradients and waits for others.
void StageWriter::finish_head() {
  if (x_head_left.empty()) return;
  FrameId done;
  for (Call& call : x_head_left) {
    done = call.frames[kHeadLocal];
    call.waits = std::move(x_before_next);
    x_before_next.clear();
    x_builder.call(std::move(call));
  }
  const auto last =
      std::find_if(x_chunks.begin(), x_chunks.end(), [](const Chunk& chunk) { return chunk.last; });
  x_pass_done = StreamWait{StreamId(), done, x_head_segments->done};
  finish_pass(*last, done, x_head_segments->done, true);
}

void StageWriter::layer_backward(Chunk& chunk, Passage& passage, std::int64_t l, std::int32_t mb) {
  const auto index = static_cast<std::int32_t>(chunk.first_layer + l);
  unit_opens(chunk, l, true);
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
            std::move(x_before_next)};
  x_before_next.clear();
  wait_loaded(passage, l, call);
  bind_experts(chunk, l, true, call);
  if (part.quantized.valid()) call.frames.push_back(part.quantized);
  bind_loss(chunk, passage, l, call);
  bind_memory(chunk, passage, l, true, call);
  bind_part(chunk, l, nullptr, true, call);
  if (s.weights.valid()) passage.weights.emplace_back(l, for_weights(call, s.weights));
  if (sliced()) {
    const bool first = l + 1 == chunk.layers;
    if (first) call.waits.push_back({StreamId(std::size_t{0}), passage.gradient, kReady});
    call_slices(std::move(call), s.backward_slices);
  } else {
    x_builder.call(std::move(call));
  }
  passage.gradient = below;
}

void StageWriter::embedding_backward(Chunk& chunk, Passage& passage, std::int32_t mb, bool last) {
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
       chunk.first ? passage.gradient : FrameId(), passage.embedding_saved, local, passage.inputs},
      std::move(x_before_next)};
  x_before_next.clear();
  bind_tied(chunk, true, call);
  bind_part(chunk, -1, &x_embedding, true, call);
  x_builder.call(std::move(call));
  passage.done_frame = local;
  passage.done_event = s.done;
  finish_pass(chunk, local, s.done, last);
}

Program write_stage(const Model& model, const Plan& plan, std::int64_t stage) {
  return StageWriter(model, plan, stage).run();
}

}  // namespace foretrain
