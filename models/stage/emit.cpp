// The tasks of a step as calls of segments: one after another, in their order.
#include <algorithm>

#include "models/stage/stage_writer.h"
#include "sim/base/check.h"

namespace foretrain {

void StageWriter::emit(TaskId id) {
  const Task& task = x_step[id];
  switch (task.kind) {
    case TaskKind::kOpen:
    case TaskKind::kBegin:
    case TaskKind::kEnd:
    case TaskKind::kGradientsReady:
    case TaskKind::kPairBegin:
    case TaskKind::kPairEnd:
      return mark(id);
    case TaskKind::kReceive:
    case TaskKind::kSend:
    case TaskKind::kGatherMessage:
    case TaskKind::kKeepPart:
    case TaskKind::kGatherOutput:
    case TaskKind::kReleaseOutput:
    case TaskKind::kReleaseCasts:
      return emit_message(id);
    case TaskKind::kGather:
    case TaskKind::kRelease:
    case TaskKind::kGatherUpdated:
      return emit_gather(id);
    case TaskKind::kAddPass:
    case TaskKind::kReduceBucket:
    case TaskKind::kReduceUnit:
    case TaskKind::kReduceParts:
    case TaskKind::kCopyGradients:
    case TaskKind::kFinishContiguous:
    case TaskKind::kCopyBack:
    case TaskKind::kCollect:
      return emit_reduction(id);
    case TaskKind::kMoveOut:
    case TaskKind::kReleaseMoved:
    case TaskKind::kReadBack:
    case TaskKind::kMoveBack:
      return emit_move(id);
    case TaskKind::kLoadAhead:
    case TaskKind::kZero:
    case TaskKind::kValidate:
    case TaskKind::kUpdate:
    case TaskKind::kHostUpdate:
    case TaskKind::kDeviceUpdate:
    case TaskKind::kLoadWeights:
    case TaskKind::kReduceLoss:
      return emit_of_step(id);
    default:
      return emit_compute(id);
  }
}

void StageWriter::emit_of_step(TaskId id) {
  const Task& task = x_step[id];
  switch (task.kind) {
    case TaskKind::kLoadAhead:
      return load_ahead();
    case TaskKind::kZero:
      x_done[id.index()].end = zero(static_cast<std::size_t>(std::max(task.chunk, 0)));
      return;
    case TaskKind::kValidate:
      return validate_last_step(task);
    case TaskKind::kUpdate:
      x_done[id.index()].end = update(task);
      return;
    case TaskKind::kHostUpdate:
      return update_on_host(!task.last);
    case TaskKind::kDeviceUpdate:
      return update_on_device();
    case TaskKind::kLoadWeights:
      return load_weights(task);
    default:
      return reduce_loss(task);
  }
}

/// What markers leave: where passes begin and end.
void StageWriter::mark(TaskId id) {
  const Task& task = x_step[id];
  if (task.kind == TaskKind::kPairBegin) {
    const PassKind kind = x_step.passes[static_cast<std::size_t>(task.pass)].pass.kind;
    x_joined_begins.emplace_back(x_builder.program().calls.size(), kind == PassKind::kForward);
    return;
  }
  if (task.kind == TaskKind::kPairEnd) return weave();
  if (task.kind == TaskKind::kOpen) return;
  const Pass& pass = x_step.passes[static_cast<std::size_t>(task.pass)].pass;
  const Chunk& chunk = x_chunks[static_cast<std::size_t>(task.chunk)];
  if (task.kind == TaskKind::kGradientsReady && task.of.valid()) {
    x_done[id.index()] = x_done[task.of.index()];
    return;
  }
  Passage& passage = x_passages[{task.chunk, task.microbatch}];
  if (task.kind == TaskKind::kGradientsReady) {
    x_done[id.index()].end = passage.done;
    return;
  }
  const bool layers = pass.kind < PassKind::kEmbedding;
  const bool back = task.direction == Direction::kBackward;
  if (task.kind == TaskKind::kBegin) {
    const bool forward = layers ? task.direction == Direction::kForward && !x_model.is_network()
                                : pass.kind == PassKind::kEmbedding && chunk.first;
    const bool gradient = layers ? back : pass.kind == PassKind::kHead && chunk.last;
    if (forward) need_input(task.chunk, task.microbatch, false);
    if (gradient) need_input(task.chunk, task.microbatch, true);
    if (layers && back) passage.done = StreamWait{StreamId(), passage.gradient, kReady};
    return;
  }
  Done& done = x_done[id.index()];
  const bool of_head = pass.kind == PassKind::kHead || pass.kind == PassKind::kHeadBackward;
  if (of_head) {
    done.end = passage.head_done;
  } else if (layers && task.direction == Direction::kForward) {
    done.end = StreamWait{StreamId(), passage.hidden.back(), kReady};
  } else {
    done.end = passage.done;
  }
  end_passage(task, pass, passage);
}

/// What is over with a pass, unless a message is still to go.
void StageWriter::end_passage(const Task& task, const Pass& pass, Passage& passage) {
  const Chunk& chunk = x_chunks[static_cast<std::size_t>(task.chunk)];
  const bool back = task.direction == Direction::kBackward;
  const bool alone = x_step.passes[static_cast<std::size_t>(task.pass)].in_pair < 0;
  bool over = (task.direction == Direction::kWeights && alone) ||
              pass.kind == PassKind::kEmbeddingGradients;
  if (pass.kind == PassKind::kForwardOnly && chunk.first && chunk.last) {
    x_returned[task.microbatch] = passage.hidden.back();
    over = true;
  }
  if (back && pass.kind < PassKind::kEmbedding) {
    const bool stays = !chunk.first && stays_on_stage(context(), task.chunk, -1);
    if (stays) x_turned[task.microbatch] = passage.gradient;
    const bool kept = x_plan.splits_backward() || x_plan.shares_vocabulary();
    over = (stays || chunk.first) && !kept;
  }
  if (over) x_passages.erase({task.chunk, task.microbatch});
}

void StageWriter::emit_compute(TaskId id) {
  const Task& task = x_step[id];
  const std::int32_t mb = task.microbatch;
  const bool back = task.direction == Direction::kBackward;
  Chunk& chunk = x_chunks[static_cast<std::size_t>(task.chunk)];
  if (task.kind == TaskKind::kHostWait) return wait_on_host(task);
  if (task.kind == TaskKind::kHostTime) return host_takes_time(back, mb);
  if (task.kind == TaskKind::kShareScales) return share_scales(task);
  if (task.kind == TaskKind::kCheckpoint) return checkpoint(mb);
  if (task.kind == TaskKind::kQuantize) return quantize_weights(chunk, task);
  if (task.kind == TaskKind::kSliceTails) return call_slice_tails(task);
  const bool ends = task.kind == TaskKind::kHead || task.kind == TaskKind::kLayer;
  if (ends && task.direction == Direction::kWeights) return weight_gradients(chunk, id);
  Passage& passage = x_passages[{task.chunk, mb}];
  switch (task.kind) {
    case TaskKind::kLoadInputs:
      return load_inputs(passage, mb);
    case TaskKind::kEmbedding:
      return back ? embedding_backward(chunk, passage, id)
                  : embedding_forward(chunk, passage, task);
    case TaskKind::kEmbeddingInner:
      return back ? embedding_inner_backward(chunk, passage, task)
                  : embedding_inner_forward(chunk, passage, task);
    case TaskKind::kAddReturned:
      return add_returned(passage, mb);
    case TaskKind::kHead:
      return back ? head_backward(chunk, passage, id) : head_forward(chunk, passage, task);
    case TaskKind::kHeadInner:
      return head_inner_backward(chunk, passage, task);
    default:
      break;
  }
  FT_CHECK(task.kind == TaskKind::kLayer, "a kind of task that nothing emits");
  if ((task.form & kSliceBody) != 0) return call_slice_bodies(task);
  if (task.direction == Direction::kRecompute) return layer_again(chunk, passage, task);
  back ? layer_backward(chunk, passage, id) : layer_forward(chunk, passage, id);
}

void StageWriter::emit_message(TaskId id) {
  const Task& task = x_step[id];
  const std::int32_t c = task.chunk;
  const std::int32_t mb = task.microbatch;
  const bool gradient = task.direction == Direction::kBackward;
  const Chunk& chunk = x_chunks[static_cast<std::size_t>(c)];
  if (task.kind == TaskKind::kReceive && task.form != kReturned) need_input(c, mb, gradient);
  Passage& passage = x_passages[{c, mb}];
  switch (task.kind) {
    case TaskKind::kReceive: {
      if (task.form == kReturned) passage.returned = x_builder.frame(x_layer.hidden, -1, mb);
      const FrameId frame = task.form == kReturned ? passage.returned
                            : gradient             ? passage.gradient
                                                   : passage.hidden.front();
      message(task, frame, false);
      x_done[id.index()] = done_at(frame, x_plan.scatters_messages() ? kPartArrived : kReady);
      return;
    }
    case TaskKind::kSend: {
      const FrameId frame = gradient               ? passage.gradient
                            : passage.part.valid() ? passage.part
                                                   : passage.hidden.back();
      message(task, frame, true);
      x_done[id.index()] = done_at(frame, kSent);
      const PassKind kind = x_step.passes[static_cast<std::size_t>(task.pass)].pass.kind;
      const bool kept = x_plan.splits_backward() || x_plan.shares_vocabulary();
      if ((gradient && !kept) || kind == PassKind::kForwardOnly) x_passages.erase({c, mb});
      return;
    }
    case TaskKind::kGatherMessage: {
      const FrameId arrived = x_done[task.of.index()].end.frame;
      gather_message(gradient, mb, arrived);
      x_done[id.index()] = done_at(arrived, kReady);
      return;
    }
    case TaskKind::kKeepPart:
      return keep_part(passage, mb);
    case TaskKind::kGatherOutput:
      return gather_output(passage, mb);
    case TaskKind::kReleaseOutput:
      return let_go_of_output(chunk, passage, mb);
    default:
      return let_go_of_casts(chunk, passage, task);
  }
}

void StageWriter::emit_gather(TaskId id) {
  const Task& task = x_step[id];
  Chunk& chunk = x_chunks[static_cast<std::size_t>(task.chunk)];
  const auto i = static_cast<std::size_t>(task.index);
  if (task.kind == TaskKind::kGather) return open_unit(chunk.units[i], task);
  if (task.kind == TaskKind::kRelease) {
    chunk.units[i].weights = FrameId();
    return;
  }
  StreamWait after = point(task);
  const bool loaded = task.last && x_plan.updates_on_host();
  if (by_units()) {
    if (loaded) after = host_updated(chunk.units[i]);
    return gather_weights(chunk.units[i], after);
  }
  Bucket& bucket = chunk.buckets[i];
  if (loaded) after = StreamWait{StreamId(), bucket.states, kWeightsLoaded};
  gather_bucket(chunk, bucket, after);
  x_done[id.index()] = done_at(bucket.frame, kGathered);
}

void StageWriter::emit_reduction(TaskId id) {
  const Task& task = x_step[id];
  Chunk& chunk = x_chunks[static_cast<std::size_t>(task.chunk)];
  const auto i = static_cast<std::size_t>(task.index);
  switch (task.kind) {
    case TaskKind::kAddPass:
      x_done[id.index()].end = add_pass(chunk);
      return;
    case TaskKind::kReduceBucket: {
      const StreamWait after = point(task);
      return reduce_bucket(chunk, chunk.buckets[i], after.frame, after.event);
    }
    case TaskKind::kReduceUnit: {
      Unit& unit = chunk.units[i];
      reduce_unit(unit, task.microbatch, point(task));
      x_done[id.index()] = done_at(unit.reduced, kReduced);
      return;
    }
    case TaskKind::kReduceParts:
      x_done[id.index()].end = by_units() ? sum_tied(chunk.units[i]) : reduce_parts_of(chunk, task);
      return;
    case TaskKind::kCopyGradients: {
      const PartFrames& part =
          task.layer < 0 ? chunk.head : chunk.parts[static_cast<std::size_t>(task.layer)];
      return copy_in(chunk, part.gradients, part.cut_begin);
    }
    case TaskKind::kFinishContiguous: {
      const StreamWait after = point(task);
      return finish_contiguous(chunk, after.frame, after.event, task.last);
    }
    case TaskKind::kCopyBack:
      return copy_back(chunk);
    default:
      return collect_pass(chunk, task.last);
  }
}

}  // namespace foretrain
