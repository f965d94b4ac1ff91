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
                                     const std::vector<ElementRange>& parts, std::int16_t mark,
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
/// What ranks of a small group computed in parts: the vectors that tensor ranks hold alike, a table
/// that is tied to another stage's, what a group of a grid holds (vectors by their columns, of
/// which 3d has two, or vectors and then matrices: 2.5d).
StreamWait StageWriter::reduce_parts_of(Chunk& chunk, const Task& task) {
  const StreamWait after = point(task);
  if (task.form == kOverTensor) {
    const std::int64_t before = chunk.has_embedding ? x_embedding.parameters.shared_elements : 0;
    return reduce_parts(
        "tensor", kTensorGroup, chunk,
        partial_gradients(x_model, x_plan, x_layer, chunk.shared_elements, before, chunk.layers),
        kSharedMark, after);
  }
  if (task.form == kOverTied) {
    const PartFrames& part = chunk.has_embedding ? chunk.embedding : chunk.head;
    return reduce_parts("tied embedding", kTiedGroup, chunk, {{part.cut_begin, part.cut_end}},
                        kTiedMark, after);
  }
  const auto g = static_cast<std::size_t>(task.form - kOverGrid);
  const char* group = chunk.grid_groups[g];
  std::vector<ElementRange> parts;
  for (const GridPart& part : grid_parts(chunk, chunk.shared_elements, chunk.elements)) {
    if (part.group == group) parts.emplace_back(part.begin, part.end);
  }
  return reduce_parts(group, group, chunk, parts, g == 0 ? kSharedMark : kGridMark, after);
}

/// Formal frames of the update: the scalars, then parameters, gradients and optimizer of every
/// chunk.
StreamWait StageWriter::update(const Task& task) {
  LayoutWriter events("update", 0);
  SegmentWriter w(x_builder, "update", events);
  w.phase = Phase::kOptimizer;
  w.segment().frames = {x_scalars};
  Call call;
  call.frames = {x_scalar_frame};
  call.waits = waits_of(task, SegmentId());
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
  return StreamWait{StreamId(), x_scalar_frame, kUpdateDone};
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
void StageWriter::reduce_loss(const Task& task) {
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
  if (x_plan.updates_on_host()) done = point(task);
  done.stream = stream;
  x_builder.call(Call{id, -1, -1, {x_scalar_frame}, {done}});
}

}  // namespace foretrain
