// The tasks of a step as calls of segments: one after another, in their order.
#include <algorithm>

#include "models/emit/tasks.h"
#include "models/emit/update.h"
#include "models/gradients/buckets.h"
#include "models/units/units.h"
#include "sim/base/check.h"

namespace foretrain {

static void emit_of_step(Stage& stage, TaskId id);
static void mark(Stage& stage, TaskId id);
static void end_passage(Stage& stage, const Task& task, const Pass& pass, MicrobatchState& passage);
static void emit_compute(Stage& stage, TaskId id);
static void emit_message(Stage& stage, TaskId id);
static void emit_gather(Stage& stage, TaskId id);
static void emit_reduction(Stage& stage, TaskId id);

void emit(Stage& stage, TaskId id) {
  const Task& task = stage.step[id];
  switch (task.kind) {
    case TaskKind::kOpen:
    case TaskKind::kBegin:
    case TaskKind::kEnd:
    case TaskKind::kGradientsReady:
    case TaskKind::kPairBegin:
    case TaskKind::kPairEnd:
      return mark(stage, id);
    case TaskKind::kReceive:
    case TaskKind::kSend:
    case TaskKind::kGatherMessage:
    case TaskKind::kKeepPart:
    case TaskKind::kGatherOutput:
    case TaskKind::kReleaseOutput:
    case TaskKind::kReleaseCasts:
      return emit_message(stage, id);
    case TaskKind::kGather:
    case TaskKind::kRelease:
    case TaskKind::kGatherUpdated:
      return emit_gather(stage, id);
    case TaskKind::kAddPass:
    case TaskKind::kReduceBucket:
    case TaskKind::kReduceUnit:
    case TaskKind::kReduceParts:
    case TaskKind::kCopyGradients:
    case TaskKind::kFinishContiguous:
    case TaskKind::kCopyBack:
    case TaskKind::kCollect:
      return emit_reduction(stage, id);
    case TaskKind::kMoveOut:
    case TaskKind::kReleaseMoved:
    case TaskKind::kReadBack:
    case TaskKind::kMoveBack:
      return emit_move(stage, id);
    case TaskKind::kLoadAhead:
    case TaskKind::kZero:
    case TaskKind::kValidate:
    case TaskKind::kUpdate:
    case TaskKind::kHostUpdate:
    case TaskKind::kDeviceUpdate:
    case TaskKind::kLoadWeights:
    case TaskKind::kReduceLoss:
      return emit_of_step(stage, id);
    default:
      return emit_compute(stage, id);
  }
}

void emit_of_step(Stage& stage, TaskId id) {
  const Task& task = stage.step[id];
  switch (task.kind) {
    case TaskKind::kLoadAhead:
      return load_ahead(stage);
    case TaskKind::kZero:
      stage.values.done[id.index()].end =
          zero(stage, static_cast<std::size_t>(std::max(task.chunk, 0)));
      return;
    case TaskKind::kValidate:
      return validate_last_step(stage, task);
    case TaskKind::kUpdate:
      stage.values.done[id.index()].end = update(stage, task);
      return;
    case TaskKind::kHostUpdate:
      return update_on_host(stage, !task.last);
    case TaskKind::kDeviceUpdate:
      return update_on_device(stage);
    case TaskKind::kLoadWeights:
      return load_weights(stage, task);
    default:
      return reduce_loss(stage, task);
  }
}

/// What markers leave: where passes begin and end.
void mark(Stage& stage, TaskId id) {
  const Task& task = stage.step[id];
  if (task.kind == TaskKind::kPairBegin) {
    const PassKind kind = stage.step.place_of(task).pass.kind;
    stage.values.joined_begins.emplace_back(stage.builder.program().calls.size(),
                                            kind == PassKind::kForward);
    return;
  }
  if (task.kind == TaskKind::kPairEnd) return interleave_paired_passes(stage);
  if (task.kind == TaskKind::kOpen) return;
  const Pass& pass = stage.step.place_of(task).pass;
  const Chunk& chunk = stage.holds.chunks[static_cast<std::size_t>(task.chunk)];
  if (task.kind == TaskKind::kGradientsReady && task.of.valid()) {
    stage.values.done[id.index()] = stage.values.done[task.of.index()];
    return;
  }
  MicrobatchState& passage = stage.values.passages[{task.chunk, task.microbatch}];
  if (task.kind == TaskKind::kGradientsReady) {
    stage.values.done[id.index()].end = passage.done;
    return;
  }
  const bool layers = stage.step.through_layers(task);
  const bool back = task.direction == Direction::kBackward;
  if (task.kind == TaskKind::kBegin) {
    const bool forward = layers ? task.direction == Direction::kForward && !stage.model.is_network()
                                : pass.kind == PassKind::kEmbedding && chunk.first;
    const bool gradient = layers ? back : pass.kind == PassKind::kHead && chunk.last;
    if (forward) need_input(stage, task.chunk, task.microbatch, false);
    if (gradient) need_input(stage, task.chunk, task.microbatch, true);
    if (layers && back) passage.done = StreamWait{StreamId(), passage.gradient, kReady};
    return;
  }
  TaskDone& done = stage.values.done[id.index()];
  const bool of_head = pass.kind == PassKind::kHead || pass.kind == PassKind::kHeadBackward;
  if (of_head) {
    done.end = passage.head_done;
  } else if (layers && task.direction == Direction::kForward) {
    done.end = StreamWait{StreamId(), passage.hidden.back(), kReady};
  } else {
    done.end = passage.done;
  }
  end_passage(stage, task, pass, passage);
}

/// What is over with a pass, unless a message is still to go.
void end_passage(Stage& stage, const Task& task, const Pass& pass, MicrobatchState& passage) {
  const Chunk& chunk = stage.holds.chunks[static_cast<std::size_t>(task.chunk)];
  const bool back = task.direction == Direction::kBackward;
  const bool alone = stage.step.place_of(task).in_pair < 0;
  bool over = (task.direction == Direction::kWeights && alone) ||
              pass.kind == PassKind::kEmbeddingGradients;
  if (pass.kind == PassKind::kForwardOnly && chunk.first && chunk.last) {
    stage.values.returned[task.microbatch] = passage.hidden.back();
    over = true;
  }
  if (back && stage.step.through_layers(task)) {
    const bool stays = !chunk.first && stays_on_stage(stage.plan, stage.number, task.chunk, -1);
    if (stays) stage.values.turned[task.microbatch] = passage.gradient;
    const bool kept = stage.plan.splits_backward() || stage.plan.shares_vocabulary();
    over = (stays || chunk.first) && !kept;
  }
  if (over) stage.values.passages.erase({task.chunk, task.microbatch});
}

void emit_compute(Stage& stage, TaskId id) {
  const Task& task = stage.step[id];
  const std::int32_t mb = task.microbatch;
  const bool back = task.direction == Direction::kBackward;
  Chunk& chunk = stage.holds.chunks[static_cast<std::size_t>(task.chunk)];
  if (task.kind == TaskKind::kHostWait) return wait_on_host(stage, task);
  if (task.kind == TaskKind::kHostTime) return host_takes_time(stage, back, mb);
  if (task.kind == TaskKind::kShareScales) return share_scales(stage, task);
  if (task.kind == TaskKind::kCheckpoint) return checkpoint(stage, mb);
  if (task.kind == TaskKind::kQuantize) return quantize_weights(stage, chunk, task);
  if (task.kind == TaskKind::kSliceTails) return call_slice_tails(stage, task);
  const bool ends = task.kind == TaskKind::kHead || task.kind == TaskKind::kLayer;
  if (ends && task.direction == Direction::kWeights) return weight_gradients(stage, chunk, id);
  MicrobatchState& passage = stage.values.passages[{task.chunk, mb}];
  switch (task.kind) {
    case TaskKind::kLoadInputs:
      return load_inputs(stage, passage, mb);
    case TaskKind::kEmbedding:
      return back ? embedding_backward(stage, chunk, passage, id)
                  : embedding_forward(stage, chunk, passage, task);
    case TaskKind::kEmbeddingInner:
      return back ? embedding_inner_backward(stage, chunk, passage, task)
                  : embedding_inner_forward(stage, chunk, passage, task);
    case TaskKind::kAddReturned:
      return add_returned(stage, passage, mb);
    case TaskKind::kHead:
      return back ? head_backward(stage, chunk, passage, id)
                  : head_forward(stage, chunk, passage, task);
    case TaskKind::kHeadInner:
      return head_inner_backward(stage, chunk, passage, task);
    default:
      break;
  }
  FT_CHECK(task.kind == TaskKind::kLayer, "a kind of task that nothing emits");
  if ((task.form & kSliceBody) != 0) return call_slice_bodies(stage, task);
  if (task.direction == Direction::kRecompute) return layer_again(stage, chunk, passage, task);
  back ? layer_backward(stage, chunk, passage, id) : layer_forward(stage, chunk, passage, id);
}

void emit_message(Stage& stage, TaskId id) {
  const Task& task = stage.step[id];
  const std::int32_t c = task.chunk;
  const std::int32_t mb = task.microbatch;
  const bool gradient = task.direction == Direction::kBackward;
  const Chunk& chunk = stage.holds.chunks[static_cast<std::size_t>(c)];
  if (task.kind == TaskKind::kReceive && task.form != kReturned) need_input(stage, c, mb, gradient);
  MicrobatchState& passage = stage.values.passages[{c, mb}];
  switch (task.kind) {
    case TaskKind::kReceive: {
      if (task.form == kReturned)
        passage.returned = stage.builder.frame(stage.holds.layer.hidden, -1, mb);
      const FrameId frame = task.form == kReturned ? passage.returned
                            : gradient             ? passage.gradient
                                                   : passage.hidden.front();
      message(stage, task, frame, false);
      stage.values.done[id.index()] =
          done_at(frame, stage.plan.scatters_messages() ? kPartArrived : kReady);
      return;
    }
    case TaskKind::kSend: {
      const FrameId frame = gradient               ? passage.gradient
                            : passage.part.valid() ? passage.part
                                                   : passage.hidden.back();
      message(stage, task, frame, true);
      stage.values.done[id.index()] = done_at(frame, kSent);
      const PassKind kind = stage.step.place_of(task).pass.kind;
      const bool kept = stage.plan.splits_backward() || stage.plan.shares_vocabulary();
      if ((gradient && !kept) || kind == PassKind::kForwardOnly)
        stage.values.passages.erase({c, mb});
      return;
    }
    case TaskKind::kGatherMessage: {
      const FrameId arrived = stage.values.done[task.of.index()].end.frame;
      gather_message(stage, gradient, mb, arrived);
      stage.values.done[id.index()] = done_at(arrived, kReady);
      return;
    }
    case TaskKind::kKeepPart:
      return keep_part(stage, passage, mb);
    case TaskKind::kGatherOutput:
      return gather_output(stage, passage, mb);
    case TaskKind::kReleaseOutput:
      return let_go_of_output(stage, chunk, passage, mb);
    default:
      return let_go_of_casts(stage, chunk, passage, task);
  }
}

void emit_gather(Stage& stage, TaskId id) {
  const Task& task = stage.step[id];
  Chunk& chunk = stage.holds.chunks[static_cast<std::size_t>(task.chunk)];
  const auto i = static_cast<std::size_t>(task.index);
  if (task.kind == TaskKind::kGather) return open_unit(stage, chunk.units[i], task);
  if (task.kind == TaskKind::kRelease) {
    chunk.units[i].weights = FrameId();
    return;
  }
  StreamWait after = point(stage, task);
  const bool loaded = task.last && stage.plan.updates_on_host();
  if (by_units(stage)) {
    if (loaded) after = host_updated(stage, chunk.units[i]);
    return gather_weights(stage, chunk.units[i], after);
  }
  Bucket& bucket = chunk.buckets[i];
  if (loaded) after = StreamWait{StreamId(), bucket.states, kWeightsLoaded};
  gather_bucket(stage, chunk, bucket, after);
  stage.values.done[id.index()] = done_at(bucket.frame, kGathered);
}

void emit_reduction(Stage& stage, TaskId id) {
  const Task& task = stage.step[id];
  Chunk& chunk = stage.holds.chunks[static_cast<std::size_t>(task.chunk)];
  const auto i = static_cast<std::size_t>(task.index);
  switch (task.kind) {
    case TaskKind::kAddPass:
      stage.values.done[id.index()].end = add_pass(stage, chunk);
      return;
    case TaskKind::kReduceBucket: {
      const StreamWait after = point(stage, task);
      return reduce_bucket(stage, chunk, chunk.buckets[i], after.frame, after.event);
    }
    case TaskKind::kReduceUnit: {
      Unit& unit = chunk.units[i];
      reduce_unit(stage, unit, task.microbatch, point(stage, task));
      stage.values.done[id.index()] = done_at(unit.reduced, kReduced);
      return;
    }
    case TaskKind::kReduceParts:
      stage.values.done[id.index()].end =
          by_units(stage) ? sum_tied(stage, chunk.units[i]) : reduce_parts_of(stage, chunk, task);
      return;
    case TaskKind::kCopyGradients: {
      const PartFrames& part =
          task.layer < 0 ? chunk.head : chunk.parts[static_cast<std::size_t>(task.layer)];
      return copy_in(stage, chunk, part.gradients, part.cut_begin);
    }
    case TaskKind::kFinishContiguous: {
      const StreamWait after = point(stage, task);
      return finish_contiguous(stage, chunk, after.frame, after.event, task.last);
    }
    case TaskKind::kCopyBack:
      return copy_back(stage, chunk);
    default:
      return collect_pass(stage, chunk, task.last);
  }
}

}  // namespace foretrain
