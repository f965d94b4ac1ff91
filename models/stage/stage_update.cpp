#include <algorithm>

#include "models/layers/optimizer.h"
#include "models/layers/tensor_grid.h"
#include "models/stage/stage_writer.h"
#include "sim/base/check.h"

namespace foretrain {
namespace {

constexpr std::int16_t kTiedMark = 1;
constexpr std::int16_t kGridMark = 2;
constexpr std::int16_t kUpdateDone = 0;

}  // namespace

std::int64_t StageWriter::shard_elements(const Bucket& bucket) const {
  return (bucket.end - bucket.begin) / (sharded(bucket.holders) ? bucket.holders.shards : 1);
}

View StageWriter::shard_view(std::int16_t frame, const Bucket& bucket, DType type) {
  View view{frame, 0,          bytes_of(type, bucket.begin), bytes_of(type, shard_elements(bucket)),
            1,     GroupSlot()};
  if (!sharded(bucket.holders)) return view;
  view.shards = static_cast<std::int32_t>(bucket.holders.shards);
  view.shard_group = x_builder.group(bucket.holders.shard_group);
  return view;
}

/// Sums what the ranks hold that have the same shard in other groups. Experts have a stream of
/// their own for it as for their reduction: what one waits for must not hold up the other.
void StageWriter::reduce_over_replicas(Segment& segment, const Holders& holders, const View& shard,
                                       std::int64_t count, DType type, EventRef before,
                                       EventRef after) {
  Op op;
  op.stream = x_builder.stream(holders.replica_group);
  op.work = x_builder.work(Collective{CollectiveKind::kAllReduce,
                                      x_builder.group(holders.replica_group), count, type, false});
  op.name = "gradients.replicas.reduce";
  op.category = Category::kData;
  op.phase = Phase::kGradients;
  op.reads = op.writes = {shard};
  if (before.valid()) op.waits = {before};
  op.records = after;
  segment.ops.push_back(std::move(op));
}

StreamWait StageWriter::reduce_parts(const char* stream, const char* group, const Chunk& chunk,
                                     const std::vector<Range>& parts, std::int16_t mark,
                                     StreamWait after) {
  const DType type =
      x_plan.contiguous_passes() ? x_plan.local_gradients() : x_plan.precision.gradients;
  after.stream = x_builder.stream(stream);
  Segment segment;
  segment.name = mark == kTiedMark ? "gradients.tied.reduce" : "gradients.shared.reduce";
  segment.frames = {layout_of(chunk.gradients), x_marks};
  for (const auto& [begin, end] : parts) {
    Op op;
    op.stream = after.stream;
    op.work = x_builder.work(
        Collective{CollectiveKind::kAllReduce, x_builder.group(group), end - begin, type, false});
    op.name = segment.name;
    op.category = mark == kTiedMark ? Category::kPipeline : Category::kTensor;
    op.phase = Phase::kGradients;
    op.reads = op.writes = {
        View{0, 0, bytes_of(type, begin), bytes_of(type, end - begin), 1, GroupSlot()}};
    segment.ops.push_back(std::move(op));
  }
  segment.ops.back().records = EventRef{1, mark};
  const SegmentId id = x_builder.segment(std::move(segment));
  x_builder.call(Call{id, -1, -1, {chunk.gradients, chunk.marks}, {after}});
  return StreamWait{StreamId(std::size_t{0}), chunk.marks, mark};
}

/// What tensor ranks hold alike but computed in part: with sequence parallelism everything, from
/// their own tokens; without it the norms of queries and keys, from their own heads. Of the first
/// `shared` elements of a chunk or a unit, in which `before` stand before those of its `layers`.
std::vector<StageWriter::Range> StageWriter::partial_gradients(std::int64_t shared,
                                                               std::int64_t before,
                                                               std::int64_t layers) const {
  if (x_plan.tensor == 1 || shared == 0 || x_plan.in_grid()) return {};
  if (x_plan.sequence) return {{0, shared}};
  std::vector<Range> out;
  if (!x_model.qk_norm) return out;
  std::int64_t begin = before;
  for (const Buffer& buffer : x_layer.parameter_gradients.shared.buffers) {
    if (buffer.name == "attention.q_norm.weight") break;
    begin += buffer.count;
  }
  for (std::int64_t l = 0; l < layers; ++l) {
    out.emplace_back(begin, begin + 2 * x_model.head_dim);
    begin += x_layer.parameters.shared_elements;
  }
  return out;
}

/// After the last backward pass of a chunk: gradients that tensor ranks computed in part are
/// summed, then the buckets that waited for them go.
void StageWriter::finish_chunk(Chunk& chunk, FrameId frame, std::int16_t event) {
  reduce_ready(chunk, 0, frame, event);
  chunk.done_frame = frame;
  chunk.done_event = event;
  const std::int64_t before = chunk.has_embedding ? x_embedding.parameters.shared_elements : 0;
  const std::vector<Range> parts = partial_gradients(chunk.shared_elements, before, chunk.layers);
  if (!parts.empty()) {
    const StreamWait done = reduce_parts("tensor", kTensorGroup, chunk, parts, kSharedMark,
                                         StreamWait{StreamId(), frame, event});
    chunk.done_frame = done.frame;
    chunk.done_event = done.event;
    x_before_update.push_back(done);
  }
  reduce_over_grid(chunk);
  // Chunks whose tied table waits for another stage reduce their last buckets at the very end, so
  // that the wait does not hold up the buckets of other chunks.
  const bool waits = tied_across() && (chunk.has_embedding || chunk.has_head);
  if (waits || !x_plan.overlap.gradient_reduce) return;
  for (Bucket& bucket : chunk.buckets) {
    reduce_bucket(chunk, bucket, chunk.done_frame, chunk.done_event);
  }
}

/// Sums of what ranks of a grid hold in parts, one group after the other: vectors (by their
/// columns, of which 3d has two), or vectors and then matrices (2.5d).
void StageWriter::reduce_over_grid(Chunk& chunk) {
  const std::vector<GridPart> all = grid_parts(chunk, chunk.shared_elements, chunk.elements);
  std::vector<const char*> groups;
  for (const GridPart& part : all) {
    const bool known = std::find(groups.begin(), groups.end(), part.group) != groups.end();
    if (!known) groups.push_back(part.group);
  }
  FT_CHECK(groups.size() <= 2, "a grid with more than two groups of holders");
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::vector<Range> parts;
    for (const GridPart& part : all) {
      if (part.group == groups[g]) parts.emplace_back(part.begin, part.end);
    }
    const StreamWait done =
        reduce_parts(groups[g], groups[g], chunk, parts, g == 0 ? kSharedMark : kGridMark,
                     StreamWait{StreamId(), chunk.done_frame, chunk.done_event});
    chunk.done_frame = done.frame;
    chunk.done_event = done.event;
    x_before_update.push_back(done);
  }
}

void StageWriter::reduce_rest() {
  for (Chunk& chunk : x_chunks) {
    if (tied_across() && (chunk.has_embedding || chunk.has_head)) {
      const PartFrames& part = chunk.has_embedding ? chunk.embedding : chunk.head;
      const StreamWait done =
          reduce_parts("tied embedding", kTiedGroup, chunk, {{part.cut_begin, part.cut_end}},
                       kTiedMark, StreamWait{StreamId(), chunk.done_frame, chunk.done_event});
      chunk.done_frame = done.frame;
      chunk.done_event = done.event;
      x_before_update.push_back(done);
    }
  }
  // Where two stages hold the same two chunks, both must begin with the same one.
  std::vector<Chunk*> order;
  for (Chunk& chunk : x_chunks) order.push_back(&chunk);
  if (x_plan.ways() == 2) {
    std::stable_sort(order.begin(), order.end(), [](const Chunk* a, const Chunk* b) {
      return a->first_layer < b->first_layer;
    });
  }
  for (Chunk* chunk : order) {
    for (Bucket& bucket : chunk->buckets) {
      reduce_bucket(*chunk, bucket, chunk->done_frame, chunk->done_event);
    }
  }
  for (Chunk& chunk : x_chunks) {
    if (!chunk.summed.valid()) copy_back(chunk);
  }
}

/// Formal frames of the update: the scalars, then parameters, gradients and optimizer of every
/// chunk.
void StageWriter::update() {
  if (x_plan.updates_on_host()) return finish_host_update();
  if (by_units()) sum_tied_units();
  LayoutWriter events("update", 0);
  SegmentWriter w(x_builder, "update", events);
  w.phase = Phase::kOptimizer;
  w.segment().frames = {x_scalars};
  Call call;
  call.frames = {x_scalar_frame};
  call.waits = std::move(x_before_next);
  call.waits.insert(call.waits.end(), x_before_update.begin(), x_before_update.end());
  std::vector<Updated> updated;
  if (by_units()) {
    bind_units(w, call, updated);
  } else {
    bind_update(w, call, updated);
  }
  write_unscaling(w, updated);
  write_clipping(w, updated);
  flatten_gradients(w, call, updated);
  write_updates(w, updated);
  if (loops_over_tensors(x_plan.optimizer)) {
    w.pause("host.update", Time{x_plan.update_time.ps * updated_tensors()});
  }
  // A stage without layers or ends has nothing to update, and nothing waits for it.
  if (!w.segment().ops.empty()) w.record(EventRef{0, kUpdateDone});
  call.segment = x_builder.segment(std::move(w.segment()));
  x_builder.call(std::move(call));
  if (by_units() && !x_plan.overlap.parameter_gather) {
    gather_all_weights(StreamWait{StreamId(), x_scalar_frame, kUpdateDone});
  }
  if (!by_units() && !x_plan.overlap.parameter_gather) {
    for (Chunk& chunk : x_chunks) {
      if (!sharded(chunk.holders)) continue;
      const StreamWait done{StreamId(), x_scalar_frame, kUpdateDone};
      for (Bucket& bucket : chunk.buckets) gather_bucket(chunk, bucket, done);
    }
  }
  reduce_loss();
}

/// The parameter tensors of the stage as a rank's optimizer sees them: units are flat (FSDP1)
/// unless parameters are copied out of them (FSDP2); of a sharded optimizer's a rank has its share.
std::int64_t StageWriter::updated_tensors() const {
  std::size_t out = 0;
  for (const Chunk& chunk : x_chunks) {
    if (!by_units()) out += chunk.ranges.size();
    for (const Unit& unit : chunk.units) {
      out += x_plan.copies_out() ? pieces_of(x_shapes[unit.shape]).size() : 1;
    }
  }
  const auto tensors = static_cast<std::int64_t>(out);
  return by_units() ? tensors : (tensors + x_plan.shards() - 1) / x_plan.shards();
}

void StageWriter::bind_update(SegmentWriter& w, Call& call, std::vector<Updated>& out) {
  const Precision& precision = x_plan.precision;
  for (const Chunk& chunk : x_chunks) {
    const auto base = static_cast<std::int16_t>(call.frames.size());
    const FrameId gradients = chunk.own.valid()      ? chunk.own
                              : chunk.summed.valid() ? chunk.summed
                                                     : chunk.gradients;
    for (const FrameId frame : {chunk.parameters, gradients, chunk.optimizer}) {
      w.segment().frames.push_back(layout_of(frame));
      call.frames.push_back(frame);
    }
    std::int64_t state = 0;
    std::int16_t buffer = 0;  // of contiguous buckets' sums
    for (const Bucket& bucket : chunk.buckets) {
      if (bucket.end == bucket.begin) continue;
      if (bucket.holders.ranks > 1) {
        call.waits.push_back(StreamWait{StreamId(std::size_t{0}), bucket.frame, kReduced});
      }
      const std::int64_t count = shard_elements(bucket);
      const auto of_gradients = static_cast<std::int16_t>(base + 1);
      const View gradient = chunk.own.valid()
                                ? Ref{of_gradients, buffer++, precision.gradients, count}.view()
                                : shard_view(of_gradients, bucket, precision.gradients);
      out.push_back(Updated{gradient, own_weights(base, chunk, bucket),
                            static_cast<std::int16_t>(base + 2), 0, state, count, precision.master,
                            chunk.holders.expert, chunk.factor_elements});
      state += count;
    }
  }
}

/// fp16's scale of the loss is taken out of the gradients in a pass of its own, which looks for
/// what is not finite; all ranks agree on it, and the host waits to hear (torch.amp.GradScaler;
/// Megatron Core's _unscale_main_grads_and_check_for_nan). A step is taken to be finite.
void StageWriter::write_unscaling(SegmentWriter& w, const std::vector<Updated>& updated) {
  if (!x_plan.unscales) return;
  const DType type = x_plan.precision.gradients;
  const Ref found{0, x_plan.validates_later() ? kFinite : kNormSquare, DType::kFp32, 1};
  w.compute("gradients.finite.zero", kernel_of(KernelKind::kFill, 1, 1, DType::kFp32), {},
            {found.view()});
  for (const Updated& u : updated) {
    w.compute("gradients.unscale", kernel_of(KernelKind::kCast, 1, u.count, type), {u.gradient},
              {u.gradient});
  }
  sum_over_norm_group(w, "gradients.finite.reduce", found);
  w.compute("gradients.finite", HostSync{}, {found.view()}, {});
  w.segment().ops.back().category = Category::kHost;
}

/// Of a number that every rank has for what it updates.
void StageWriter::sum_over_norm_group(SegmentWriter& w, const char* name, const Ref& value) {
  if (x_plan.validates_later()) return pass_down(w, name, value);
  if (x_plan.norm_ranks() == 1) return;
  w.compute(
      name,
      Collective{CollectiveKind::kAllReduce, x_builder.group(kNormGroup), 1, DType::kFp32, false},
      {value.view()}, {value.view()});
  w.segment().ops.back().category = Category::kData;
}

/// Gradient norm over all parameters, the host's check of it, and scaling by min(1, clip / norm).
void StageWriter::write_clipping(SegmentWriter& w, const std::vector<Updated>& updated) {
  if (x_plan.clip_norm <= 0) return;
  const DType type = x_plan.precision.gradients;
  const Ref norm{0, kNormSquare, DType::kFp32, 1};
  Kernel clear;
  clear.rows = clear.cols = 1;
  clear.dtype = DType::kFp32;
  w.compute("gradients.norm.zero", clear, {}, {norm.view()});
  const Ref expert_norm{0, kExpertNormSquare, DType::kFp32, 1};
  if (own_expert_norm()) w.compute("gradients.norm.zero", clear, {}, {expert_norm.view()});
  const auto kernel = [&](KernelKind kind, std::int64_t count) {
    return kernel_of(kind, 1, count, type);
  };
  for (const Updated& u : updated) {
    const Ref& sum = u.expert && own_expert_norm() ? expert_norm : norm;
    w.compute("gradients.norm", kernel(KernelKind::kSquaredNorm, u.count), {u.gradient, sum.view()},
              {sum.view()});
  }
  sum_over_norm_group(w, "gradients.norm.reduce", norm);
  if (own_expert_norm()) add_expert_norm(w);
  w.compute("gradients.check", HostSync{}, {norm.view()}, {});
  w.segment().ops.back().category = Category::kHost;
  write_clips(w, updated);
}

void StageWriter::write_clips(SegmentWriter& w, const std::vector<Updated>& updated) const {
  if (x_plan.clip_norm <= 0 || x_plan.validates_later()) return;
  const Ref norm{0, kNormSquare, DType::kFp32, 1};
  for (const Updated& u : updated) {
    Kernel clip = kernel_of(KernelKind::kScale, 1, u.count, x_plan.precision.gradients);
    clip.value = x_plan.clip_norm;
    w.compute("gradients.clip", clip, {u.gradient, norm.view()}, {u.gradient});
  }
}

/// DeepSpeed's runtime/zero/stage_1_and_2.py, step: what a rank updates becomes one array in the
/// gradients' type, then one in fp32, both of which live until the update is done.
void StageWriter::flatten_gradients(SegmentWriter& w, Call& call, std::vector<Updated>& updated) {
  const DType type = x_plan.precision.gradients;
  if (!x_plan.flat_update || by_units() || type == DType::kFp32) return;
  std::int64_t total = 0;
  for (const Updated& u : updated) total += u.count;
  if (total == 0) return;
  LayoutWriter local("flat gradients", static_cast<std::int16_t>(call.frames.size()));
  const Ref flat = local.add("flat", BufferKind::kGradients, type, total);
  const Ref wide = local.add("in fp32", BufferKind::kGradients, DType::kFp32, total);
  const LayoutId layout = x_builder.layout(local.layout());
  w.segment().frames.push_back(layout);
  call.frames.push_back(x_builder.frame(layout));
  std::int64_t begin = 0;
  for (Updated& u : updated) {
    w.compute("gradients.flatten", kernel_of(KernelKind::kCast, 1, u.count, type), {u.gradient},
              {flat.part(begin, u.count)});
    u.gradient = wide.part(begin, u.count);
    begin += u.count;
  }
  w.compute("gradients.widen", kernel_of(KernelKind::kCast, 1, total, DType::kFp32), {flat.view()},
            {wide.view()});
}

/// The operands of one update: the gradient, the weights unless a copy of them is a state, states.
/// Where 16-bit weights are cast from that copy afterwards, it is what is updated.
void StageWriter::update_operands(const Updated& u, std::vector<View>& reads,
                                  std::vector<View>& writes) const {
  std::vector<View> states;
  std::int16_t buffer = u.first;
  for (const OptimizerState& state : optimizer_states(x_plan.optimizer, u.master)) {
    const std::int64_t begin = state.factored ? 0 : u.begin / state.block;
    const std::int64_t end = state.factored ? u.factors : state.elements(u.begin + u.count);
    states.push_back(Ref{u.states, buffer++, state.type, 0}.part(begin, end - begin));
  }
  View weights = u.weights;
  const bool apart = u.master && x_plan.copies_back;
  if (apart) {
    weights = states.back();
    states.pop_back();
  }
  reads = {u.gradient};
  if (!u.master || apart) reads.push_back(weights);
  reads.insert(reads.end(), states.begin(), states.end());
  writes = {weights};
  writes.insert(writes.end(), states.begin(), states.end());
}

/// With `copies_back` the update's kernels know the fp32 copies alone: Megatron-LM's
/// _copy_main_params_to_model_params, DeepSpeed's step.
void StageWriter::write_updates(SegmentWriter& w, const std::vector<Updated>& updated) {
  std::vector<std::pair<View, const Updated*>> copied;
  for (const Updated& u : updated) {
    std::vector<View> reads;
    std::vector<View> writes;
    update_operands(u, reads, writes);
    const std::string name = update_name(x_plan.optimizer);
    if (u.master && x_plan.copies_back) copied.emplace_back(writes.front(), &u);
    if (!is_adam(x_plan.optimizer)) {
      Bytes bytes = update_bytes_beside(x_plan.optimizer) * u.count;
      for (const std::vector<View>* views : {&reads, &writes}) {
        for (const View& view : *views) bytes += view.bytes;
      }
      w.compute(name, Opaque{name, bytes, 0, DType::kFp32, Memory::kDevice}, std::move(reads),
                std::move(writes));
      continue;
    }
    Kernel adam;
    adam.kind = KernelKind::kAdam;
    adam.rows = 1;
    adam.cols = u.count;
    adam.dtype = DType::kFp32;
    // Multi-tensor implementations launch once for many tensors, the plain one eight times.
    adam.launches = x_plan.optimizer == Optimizer::kFusedAdam ? 1 : 8;
    adam.intermediate_bytes = update_bytes_beside(x_plan.optimizer);
    w.compute(name, adam, std::move(reads), std::move(writes));
  }
  for (const auto& [master, u] : copied) {
    w.compute("optimizer.weights", kernel_of(KernelKind::kCast, 1, u->count, DType::kFp32),
              {master}, {u->weights});
  }
}

void StageWriter::gather_bucket(Chunk& chunk, Bucket& bucket, StreamWait after) {
  if (bucket.end == bucket.begin) return;
  const View all = weights_of(0, chunk, bucket);
  const bool low = !chunk.weights.empty();
  const DType type = low ? DType::kUint8 : x_plan.precision.compute;
  const std::int64_t count = low ? all.bytes : bucket.end - bucket.begin;
  const Phase phase = x_plan.overlap.parameter_gather ? Phase::kForward : Phase::kOptimizer;
  Segment segment;
  segment.name = "gather parameters";
  segment.frames = {layout_of(chunk.parameters), x_bucket};
  if (x_plan.to_owners()) {
    segment.ops = from_owners(bucket.holders, all, count, type, phase);
  } else {
    const Collective gather{CollectiveKind::kAllGather, x_builder.group(bucket.holders.shard_group),
                            count, type, false};
    segment.ops.push_back(unit_op(bucket.holders.stream, "parameters.gather", gather, phase));
    segment.ops.back().reads = {own_weights(0, chunk, bucket)};
    segment.ops.back().writes = {all};
  }
  segment.ops.back().records = EventRef{1, kGathered};
  Call call{x_builder.segment(std::move(segment)), -1, -1, {chunk.parameters, bucket.frame}, {}};
  after.stream = x_builder.stream(bucket.holders.stream);
  call.waits.push_back(after);
  x_builder.call(std::move(call));
}

/// The mean loss, for the log.
void StageWriter::reduce_loss() {
  const auto end = std::find_if(x_chunks.begin(), x_chunks.end(),
                                [](const Chunk& chunk) { return chunk.has_head; });
  if (end == x_chunks.end()) return;
  const char* tokens = x_plan.in_grid() ? inner_axes(x_plan).tokens : nullptr;
  Segment segment;
  segment.name = "reduce loss";
  segment.frames = {x_scalars};
  const auto reduce = [&](const char* stream, const char* group, const char* name,
                          Category category) {
    Op op;
    op.stream = x_builder.stream(stream);
    op.work = x_builder.work(
        Collective{CollectiveKind::kAllReduce, x_builder.group(group), 1, DType::kFp32, false});
    op.name = name;
    op.category = category;
    op.phase = Phase::kOptimizer;
    op.reads = op.writes = {View{0, kLoss, 0, 4, 1, GroupSlot()}};
    if (!segment.ops.empty()) op.waits = {EventRef{0, kLossSummed}};
    segment.ops.push_back(std::move(op));
  };
  if (tokens != nullptr) {
    reduce(tokens, tokens, "loss.sum", Category::kTensor);
    segment.ops.back().records = EventRef{0, kLossSummed};
  }
  if (end->holders.ranks > 1) {
    reduce(end->holders.stream, end->holders.group, "loss.reduce", Category::kData);
  }
  if (segment.ops.empty()) return;
  const StreamId stream = segment.ops.front().stream;
  const SegmentId id = x_builder.segment(std::move(segment));
  StreamWait done{stream, x_scalar_frame, kUpdateDone};
  if (x_plan.updates_on_host()) done = StreamWait{stream, end->done_frame, end->done_event};
  x_builder.call(Call{id, -1, -1, {x_scalar_frame}, {done}});
}

}  // namespace foretrain
