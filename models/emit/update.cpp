#include <algorithm>

#include "models/emit/frames.h"
#include "models/emit/tasks.h"
#include "models/emit/update.h"
#include "models/gradients/buckets.h"
#include "models/layers/optimizer.h"
#include "models/layers/tensor_grid.h"
#include "models/units/units.h"
#include "sim/base/check.h"

namespace foretrain {

static std::int64_t updated_tensors(Stage& stage);
static void bind_update(Stage& stage, SegmentWriter& w, Call& call,
                        std::vector<UpdatedArrays>& out);
static void write_unscaling(Stage& stage, SegmentWriter& w,
                            const std::vector<UpdatedArrays>& updated);
static void sum_over_norm_group(Stage& stage, SegmentWriter& w, const char* name, const Ref& value);
static void write_clipping(Stage& stage, SegmentWriter& w,
                           const std::vector<UpdatedArrays>& updated);
static void flatten_gradients(Stage& stage, SegmentWriter& w, Call& call,
                              std::vector<UpdatedArrays>& updated);
static void update_operands(Stage& stage, const UpdatedArrays& u, std::vector<View>& reads,
                            std::vector<View>& writes);

namespace {

constexpr std::int16_t kTiedMark = 1;
constexpr std::int16_t kGridMark = 2;
constexpr std::int16_t kUpdateDone = 0;

}  // namespace

std::int64_t shard_elements(Stage& stage, const Bucket& bucket) {
  return (bucket.end - bucket.begin) / (sharded(stage, bucket.holders) ? bucket.holders.shards : 1);
}

View shard_view(Stage& stage, std::int16_t frame, const Bucket& bucket, DType type) {
  View view{
      frame,      0, bytes_of(type, bucket.begin), bytes_of(type, shard_elements(stage, bucket)), 1,
      GroupSlot()};
  if (!sharded(stage, bucket.holders)) return view;
  view.shards = static_cast<std::int32_t>(bucket.holders.shards);
  view.shard_group = stage.builder.group(bucket.holders.shard_group);
  return view;
}

/// Sums what the ranks hold that have the same shard in other groups. Experts have a stream of
/// their own for it as for their reduction: what one waits for must not hold up the other.
void reduce_over_replicas(Stage& stage, Segment& segment, const ReplicaGroup& holders,
                          const View& shard, std::int64_t count, DType type, EventRef before,
                          EventRef after) {
  Op op;
  op.stream = stage.builder.stream(holders.replica_group);
  op.work = stage.builder.work(Collective{
      CollectiveKind::kAllReduce, stage.builder.group(holders.replica_group), count, type, false});
  op.name = "gradients.replicas.reduce";
  op.category = Category::kData;
  op.phase = Phase::kGradients;
  op.reads = op.writes = {shard};
  if (before.valid()) op.waits = {before};
  op.records = after;
  segment.ops.push_back(std::move(op));
}

StreamWait reduce_parts(Stage& stage, const char* stream, const char* group, const Chunk& chunk,
                        const std::vector<ElementRange>& parts, std::int16_t mark,
                        StreamWait after) {
  const DType type = stage.plan.contiguous_passes() ? stage.plan.local_gradients()
                                                    : stage.plan.precision.gradients;
  after.stream = stage.builder.stream(stream);
  Segment segment;
  segment.name = mark == kTiedMark ? "gradients.tied.reduce" : "gradients.shared.reduce";
  segment.frames = {layout_of(stage, chunk.gradients), stage.holds.marks};
  for (const auto& [begin, end] : parts) {
    Op op;
    op.stream = after.stream;
    op.work = stage.builder.work(Collective{CollectiveKind::kAllReduce, stage.builder.group(group),
                                            end - begin, type, false});
    op.name = segment.name;
    op.category = mark == kTiedMark ? Category::kPipeline : Category::kTensor;
    op.phase = Phase::kGradients;
    op.reads = op.writes = {View{formal::kChunk, kOnlyBuffer, bytes_of(type, begin),
                                 bytes_of(type, end - begin), 1, GroupSlot()}};
    segment.ops.push_back(std::move(op));
  }
  segment.ops.back().records = EventRef{formal::kEvents, mark};
  const SegmentId id = stage.builder.segment(std::move(segment));
  stage.builder.call(Call{id, -1, -1, {chunk.gradients, chunk.marks}, {after}});
  return StreamWait{StreamId(std::size_t{0}), chunk.marks, mark};
}
/// What ranks of a small group computed in parts: the vectors that tensor ranks hold alike, a table
/// that is tied to another stage's, what a group of a grid holds (vectors by their columns, of
/// which 3d has two, or vectors and then matrices: 2.5d).
StreamWait reduce_parts_of(Stage& stage, Chunk& chunk, const Task& task) {
  const StreamWait after = point(stage, task);
  if (task.form == kOverTensor) {
    const std::int64_t before =
        chunk.has_embedding ? stage.holds.embedding.parameters.shared_elements : 0;
    return reduce_parts(stage, "tensor", kTensorGroup, chunk,
                        partial_gradients(stage.model, stage.plan, kinds_of(stage, chunk),
                                          chunk.shared_elements, before),
                        kSharedMark, after);
  }
  if (task.form == kOverTied) {
    const PartFrames& part = chunk.has_embedding ? chunk.embedding : chunk.head;
    return reduce_parts(stage, "tied embedding", kTiedGroup, chunk,
                        {{part.cut_begin, part.cut_end}}, kTiedMark, after);
  }
  const auto g = static_cast<std::size_t>(task.form - kOverGrid);
  const char* group = chunk.grid_groups[g];
  std::vector<ElementRange> parts;
  for (const GridPart& part : grid_parts(stage, chunk, chunk.shared_elements, chunk.elements)) {
    if (part.group == group) parts.emplace_back(part.begin, part.end);
  }
  return reduce_parts(stage, group, group, chunk, parts, g == 0 ? kSharedMark : kGridMark, after);
}

/// Formal frames of the update: the scalars, then parameters, gradients and optimizer of every
/// chunk.
StreamWait update(Stage& stage, const Task& task) {
  LayoutWriter events("update", 0);
  SegmentWriter w(stage.builder, "update", events);
  w.phase = Phase::kOptimizer;
  w.segment().frames = {stage.holds.scalars};
  Call call;
  call.frames = {stage.holds.scalar_values};
  call.waits = waits_of(stage, task, SegmentId());
  std::vector<UpdatedArrays> updated;
  if (by_units(stage)) {
    bind_units(stage, w, call, updated);
  } else {
    bind_update(stage, w, call, updated);
  }
  write_unscaling(stage, w, updated);
  write_clipping(stage, w, updated);
  flatten_gradients(stage, w, call, updated);
  write_updates(stage, w, updated);
  if (loops_over_tensors(stage.plan.optimizer)) {
    w.pause("host.update", Time{stage.plan.update_time.ps * updated_tensors(stage)});
  }
  // A stage without layers or ends has nothing to update, and nothing waits for it.
  if (!w.segment().ops.empty()) w.record(EventRef{formal::kScalars, kUpdateDone});
  call.segment = stage.builder.segment(std::move(w.segment()));
  stage.builder.call(std::move(call));
  return StreamWait{StreamId(), stage.holds.scalar_values, kUpdateDone};
}

/// The parameter tensors of the stage as a rank's optimizer sees them: units are flat (FSDP1)
/// unless parameters are copied out of them (FSDP2); of a sharded optimizer's a rank has its share.
std::int64_t updated_tensors(Stage& stage) {
  std::size_t out = 0;
  for (const Chunk& chunk : stage.holds.chunks) {
    if (!by_units(stage)) out += chunk.ranges.size();
    for (const Unit& unit : chunk.units) {
      out += stage.plan.copies_out() ? pieces_of(stage, stage.holds.shapes[unit.shape]).size() : 1;
    }
  }
  const auto tensors = static_cast<std::int64_t>(out);
  return by_units(stage) ? tensors : (tensors + stage.plan.shards() - 1) / stage.plan.shards();
}

void bind_update(Stage& stage, SegmentWriter& w, Call& call, std::vector<UpdatedArrays>& out) {
  const Precision& precision = stage.plan.precision;
  for (const Chunk& chunk : stage.holds.chunks) {
    const auto base = static_cast<std::int16_t>(call.frames.size());
    const FrameId gradients = chunk.own.valid()      ? chunk.own
                              : chunk.summed.valid() ? chunk.summed
                                                     : chunk.gradients;
    for (const FrameId frame : {chunk.parameters, gradients, chunk.optimizer}) {
      w.segment().frames.push_back(layout_of(stage, frame));
      call.frames.push_back(frame);
    }
    std::int64_t state = 0;
    std::int16_t buffer = 0;  // of contiguous buckets' sums
    for (const Bucket& bucket : chunk.buckets) {
      if (bucket.end == bucket.begin) continue;
      if (bucket.holders.ranks > 1) {
        call.waits.push_back(StreamWait{StreamId(std::size_t{0}), bucket.frame, kReduced});
      }
      const std::int64_t count = shard_elements(stage, bucket);
      const auto of_gradients = static_cast<std::int16_t>(base + 1);
      const View gradient = chunk.own.valid()
                                ? Ref{of_gradients, buffer++, precision.gradients, count}.view()
                                : shard_view(stage, of_gradients, bucket, precision.gradients);
      out.push_back(UpdatedArrays{gradient, own_weights(stage, base, chunk, bucket),
                                  static_cast<std::int16_t>(base + 2), 0, state, count,
                                  precision.master, chunk.holders.expert, chunk.factor_elements});
      state += count;
    }
  }
}

/// fp16's scale of the loss is taken out of the gradients in a pass of its own, which looks for
/// what is not finite; all ranks agree on it, and the host waits to hear (torch.amp.GradScaler;
/// Megatron Core's _unscale_main_grads_and_check_for_nan). A step is taken to be finite.
void write_unscaling(Stage& stage, SegmentWriter& w, const std::vector<UpdatedArrays>& updated) {
  if (!stage.plan.unscales) return;
  const DType type = stage.plan.precision.gradients;
  const Ref found{0, stage.plan.validates_later() ? kFinite : kNormSquare, DType::kFp32, 1};
  w.compute("gradients.finite.zero", kernel_of(KernelKind::kFill, 1, 1, DType::kFp32), {},
            {found.view()});
  for (const UpdatedArrays& u : updated) {
    w.compute("gradients.unscale", kernel_of(KernelKind::kCast, 1, u.count, type), {u.gradient},
              {u.gradient});
  }
  sum_over_norm_group(stage, w, "gradients.finite.reduce", found);
  w.compute("gradients.finite", HostSync{}, {found.view()}, {});
  w.segment().ops.back().category = Category::kHost;
}

/// Of a number that every rank has for what it updates.
void sum_over_norm_group(Stage& stage, SegmentWriter& w, const char* name, const Ref& value) {
  if (stage.plan.validates_later()) return pass_down(stage, w, name, value);
  if (stage.plan.norm_ranks() == 1) return;
  w.compute(name,
            Collective{CollectiveKind::kAllReduce, stage.builder.group(kNormGroup), 1, DType::kFp32,
                       false},
            {value.view()}, {value.view()});
  w.segment().ops.back().category = Category::kData;
}

/// Gradient norm over all parameters, the host's check of it, and scaling by min(1, clip / norm).
void write_clipping(Stage& stage, SegmentWriter& w, const std::vector<UpdatedArrays>& updated) {
  if (stage.plan.clip_norm <= 0) return;
  const DType type = stage.plan.precision.gradients;
  const Ref norm{0, kNormSquare, DType::kFp32, 1};
  Kernel clear;
  clear.rows = clear.cols = 1;
  clear.dtype = DType::kFp32;
  w.compute("gradients.norm.zero", clear, {}, {norm.view()});
  const Ref expert_norm{0, kExpertNormSquare, DType::kFp32, 1};
  if (own_expert_norm(stage)) w.compute("gradients.norm.zero", clear, {}, {expert_norm.view()});
  const auto kernel = [&](KernelKind kind, std::int64_t count) {
    return kernel_of(kind, 1, count, type);
  };
  for (const UpdatedArrays& u : updated) {
    const Ref& sum = u.expert && own_expert_norm(stage) ? expert_norm : norm;
    w.compute("gradients.norm", kernel(KernelKind::kSquaredNorm, u.count), {u.gradient, sum.view()},
              {sum.view()});
  }
  sum_over_norm_group(stage, w, "gradients.norm.reduce", norm);
  if (own_expert_norm(stage)) add_expert_norm(stage, w);
  w.compute("gradients.check", HostSync{}, {norm.view()}, {});
  w.segment().ops.back().category = Category::kHost;
  write_clips(stage, w, updated);
}

void write_clips(Stage& stage, SegmentWriter& w, const std::vector<UpdatedArrays>& updated) {
  if (stage.plan.clip_norm <= 0 || stage.plan.validates_later()) return;
  const Ref norm{0, kNormSquare, DType::kFp32, 1};
  for (const UpdatedArrays& u : updated) {
    Kernel clip = kernel_of(KernelKind::kScale, 1, u.count, stage.plan.precision.gradients);
    clip.value = stage.plan.clip_norm;
    w.compute("gradients.clip", clip, {u.gradient, norm.view()}, {u.gradient});
  }
}

/// DeepSpeed's runtime/zero/stage_1_and_2.py, step: what a rank updates becomes one array in the
/// gradients' type, then one in fp32, both of which live until the update is done.
void flatten_gradients(Stage& stage, SegmentWriter& w, Call& call,
                       std::vector<UpdatedArrays>& updated) {
  const DType type = stage.plan.precision.gradients;
  if (!stage.plan.flat_update || by_units(stage) || type == DType::kFp32) return;
  std::int64_t total = 0;
  for (const UpdatedArrays& u : updated) total += u.count;
  if (total == 0) return;
  LayoutWriter local("flat gradients", static_cast<std::int16_t>(call.frames.size()));
  const Ref flat = local.add("flat", BufferKind::kGradients, type, total);
  const Ref wide = local.add("in fp32", BufferKind::kGradients, DType::kFp32, total);
  const LayoutId layout = stage.builder.layout(local.layout());
  w.segment().frames.push_back(layout);
  call.frames.push_back(stage.builder.frame(layout));
  std::int64_t begin = 0;
  for (UpdatedArrays& u : updated) {
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
void update_operands(Stage& stage, const UpdatedArrays& u, std::vector<View>& reads,
                     std::vector<View>& writes) {
  std::vector<View> states;
  std::int16_t buffer = u.first;
  for (const OptimizerState& state : optimizer_states(stage.plan.optimizer, u.master)) {
    const std::int64_t begin = state.factored ? 0 : u.begin / state.block;
    const std::int64_t end = state.factored ? u.factors : state.elements(u.begin + u.count);
    states.push_back(Ref{u.states, buffer++, state.type, 0}.part(begin, end - begin));
  }
  View weights = u.weights;
  const bool apart = u.master && stage.plan.copies_master_to_model;
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

/// With `copies_master_to_model` the update's kernels know the fp32 copies alone: Megatron-LM's
/// _copy_main_params_to_model_params, DeepSpeed's step.
void write_updates(Stage& stage, SegmentWriter& w, const std::vector<UpdatedArrays>& updated) {
  std::vector<std::pair<View, const UpdatedArrays*>> copied;
  for (const UpdatedArrays& u : updated) {
    std::vector<View> reads;
    std::vector<View> writes;
    update_operands(stage, u, reads, writes);
    const std::string name = update_name(stage.plan.optimizer);
    if (u.master && stage.plan.copies_master_to_model) copied.emplace_back(writes.front(), &u);
    if (!is_adam(stage.plan.optimizer)) {
      Bytes bytes = update_bytes_beside(stage.plan.optimizer) * u.count;
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
    adam.launches = stage.plan.optimizer == Optimizer::kFusedAdam ? 1 : 8;
    adam.between.bytes = update_bytes_beside(stage.plan.optimizer);
    w.compute(name, adam, std::move(reads), std::move(writes));
  }
  for (const auto& [master, u] : copied) {
    w.compute("optimizer.weights", kernel_of(KernelKind::kCast, 1, u->count, DType::kFp32),
              {master}, {u->weights});
  }
}

void gather_bucket(Stage& stage, Chunk& chunk, Bucket& bucket, StreamWait after) {
  if (bucket.end == bucket.begin) return;
  const View all = weights_of(stage, 0, chunk, bucket);
  const bool low = !chunk.weights.empty();
  const DType type = low ? DType::kUint8 : stage.plan.precision.compute;
  const std::int64_t count = low ? all.bytes : bucket.end - bucket.begin;
  const Phase phase = stage.plan.overlap.parameter_gather ? Phase::kForward : Phase::kOptimizer;
  Segment segment;
  segment.name = "gather parameters";
  segment.frames = {layout_of(stage, chunk.parameters), stage.holds.bucket};
  if (stage.plan.reduces_to_owner()) {
    segment.ops = from_owners(stage, bucket.holders, all, count, type, phase);
  } else {
    const Collective gather{CollectiveKind::kAllGather,
                            stage.builder.group(bucket.holders.shard_group), count, type, false};
    segment.ops.push_back(
        unit_op(stage, bucket.holders.stream, "parameters.gather", gather, phase));
    segment.ops.back().reads = {own_weights(stage, 0, chunk, bucket)};
    segment.ops.back().writes = {all};
  }
  segment.ops.back().records = EventRef{formal::kEvents, kGathered};
  Call call{
      stage.builder.segment(std::move(segment)), -1, -1, {chunk.parameters, bucket.frame}, {}};
  after.stream = stage.builder.stream(bucket.holders.stream);
  call.waits.push_back(after);
  stage.builder.call(std::move(call));
}

/// The mean loss, for the log.
void reduce_loss(Stage& stage, const Task& task) {
  const auto end = std::find_if(stage.holds.chunks.begin(), stage.holds.chunks.end(),
                                [](const Chunk& chunk) { return chunk.has_head; });
  if (end == stage.holds.chunks.end()) return;
  const char* tokens = stage.plan.in_grid() ? inner_axes(stage.plan).tokens : nullptr;
  Segment segment;
  segment.name = "reduce loss";
  segment.frames = {stage.holds.scalars};
  const auto reduce = [&](const char* stream, const char* group, const char* name,
                          Category category) {
    Op op;
    op.stream = stage.builder.stream(stream);
    op.work = stage.builder.work(
        Collective{CollectiveKind::kAllReduce, stage.builder.group(group), 1, DType::kFp32, false});
    op.name = name;
    op.category = category;
    op.phase = Phase::kOptimizer;
    op.reads = op.writes = {View{formal::kScalars, kLoss, 0, 4, 1, GroupSlot()}};
    if (!segment.ops.empty()) op.waits = {EventRef{formal::kScalars, kLossSummed}};
    segment.ops.push_back(std::move(op));
  };
  if (tokens != nullptr) {
    reduce(tokens, tokens, "loss.sum", Category::kTensor);
    segment.ops.back().records = EventRef{formal::kScalars, kLossSummed};
  }
  if (end->holders.ranks > 1) {
    reduce(end->holders.stream, end->holders.group, "loss.reduce", Category::kData);
  }
  if (segment.ops.empty()) return;
  const StreamId stream = segment.ops.front().stream;
  const SegmentId id = stage.builder.segment(std::move(segment));
  StreamWait done{stream, stage.holds.scalar_values, kUpdateDone};
  if (stage.plan.updates_on_host()) done = point(stage, task);
  done.stream = stream;
  stage.builder.call(Call{id, -1, -1, {stage.holds.scalar_values}, {done}});
}

}  // namespace foretrain
