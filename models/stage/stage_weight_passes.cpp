// Passes of their own for the gradients of weights.
//
// With sharded units a backward pass lets parameters go as any other does, and what it wrote of a
// unit's gradients, those of norms and biases, waits with the microbatch until its pass for weights
// has written the rest: then the unit is reduced.
#include <algorithm>

#include "models/stage/stage_writer.h"
#include "sim/base/check.h"

namespace foretrain {
namespace {

bool refers(const Segment& segment, std::size_t formal) {
  const auto of_frame = [formal](const View& v) { return v.frame == static_cast<int>(formal); };
  return std::any_of(segment.ops.begin(), segment.ops.end(), [&](const Op& op) {
    return std::any_of(op.reads.begin(), op.reads.end(), of_frame) ||
           std::any_of(op.writes.begin(), op.writes.end(), of_frame);
  });
}

}  // namespace

/// The call of a backward pass, for its gradients of weights, which come later. Parameters of units
/// that it does not read are not held until then.
Call StageWriter::for_weights(Call call, SegmentId segment) const {
  call.segment = segment;
  if (!by_units()) return call;
  const Segment& s = x_builder.program().segments[segment.index()];
  std::vector<std::size_t> weights = {kWeights, kShared};
  for (std::size_t f = 0; f < s.frames.size(); ++f) {
    const bool owner = std::any_of(x_shapes.begin(), x_shapes.end(), [&](const UnitShape& shape) {
      return shape.weights == s.frames[f];
    });
    const bool experts = s.frames[f] == x_sparse_layer.experts;
    if (owner || experts) weights.push_back(f);
  }
  for (const std::size_t f : weights) {
    if (refers(s, f)) return call;
  }
  for (const std::size_t f : weights) call.frames[f] = FrameId();
  return call;
}

/// Each microbatch's gradients are arrays of its own: the next one's come before this one's are
/// whole.
void StageWriter::set_gradients_aside(Chunk& chunk, Passage& passage) {
  if (!x_plan.splits_backward() || !x_plan.fresh_gradients()) return;
  const auto aside = [&passage](std::vector<Unit>& units) {
    for (Unit& unit : units) {
      if (!unit.gradients.valid()) continue;
      passage.aside.emplace_back(&unit, unit.gradients);
      unit.gradients = FrameId();
    }
  };
  aside(chunk.units);
  if (chunk.experts >= 0) aside(x_chunks[static_cast<std::size_t>(chunk.experts)].units);
}

/// After the gradients of the matrices of `layer`, or of the head below 0.
void StageWriter::weights_end(Chunk& chunk, std::int64_t layer, StreamWait done, bool last) {
  if (by_units()) {
    if (layer < 0 || layer != unit_of(chunk, layer).first) return;
    reduce_unit(unit_of(chunk, layer), done, last);
    if (Unit* experts = expert_unit(chunk, layer)) reduce_unit(*experts, done, last);
    return;
  }
  if (!last) return;
  const bool own_table = !(x_model.tied_embeddings && chunk.has_embedding);
  if (layer < 0) {
    if (own_table) reduce_ready(chunk, chunk.head.cut_begin, done.frame, done.event);
    return;
  }
  reduce_ready(chunk, chunk.parts[static_cast<std::size_t>(layer)].cut_begin, done.frame,
               done.event);
  reduce_experts_ready(chunk, layer, done.frame, done.event);
}

/// What is left of a microbatch in units: those of the ends, and of what stays gathered.
void StageWriter::finish_units(Chunk& chunk, FrameId frame, std::int16_t event, bool last) {
  const StreamWait done{StreamId(), frame, event};
  if (Unit* root = root_of(chunk)) {
    if (last || !keeps(chunk, *root, true)) close_unit(*root, frame, event);
    reduce_unit(*root, done, last);
  }
  if (Unit* small = small_unit(chunk)) reduce_unit(*small, done, last);
  chunk.done_frame = frame;
  chunk.done_event = event;
}

/// What the backward pass of this microbatch left: the gradients of the chunk's matrices. The last
/// such pass finishes the chunk.
void StageWriter::weight_gradients(std::int32_t c, std::int32_t mb, bool last) {
  Chunk& chunk = x_chunks[static_cast<std::size_t>(c)];
  const auto found = x_passages.find({c, mb});
  FT_CHECK(found != x_passages.end(), "gradients of weights before those of inputs");
  Passage& passage = found->second;
  for (const auto& [unit, gradients] : passage.aside) unit->gradients = gradients;
  for (auto& [layer, call] : passage.weights) {
    const bool head = layer < 0;
    passage.done_frame = call.frames[head ? std::size_t{kHeadLocal} : std::size_t{kLocal}];
    passage.done_event = head ? x_head_segments->done : layer_segments(chunk, layer).done;
    call.waits = std::move(x_before_next);
    x_before_next.clear();
    x_builder.call(std::move(call));
    weights_end(chunk, layer, {StreamId(), passage.done_frame, passage.done_event}, last);
  }
  if (by_units()) {
    finish_units(chunk, passage.done_frame, passage.done_event, last);
  } else {
    finish_pass(chunk, passage.done_frame, passage.done_event, last);
  }
  x_pass_done = StreamWait{StreamId(), passage.done_frame, passage.done_event};
  x_layer_passes.push_back(x_pass_done);
  x_passages.erase(found);
}

}  // namespace foretrain
