// Layouts and segments of sharded units: the gather of their parameters, the reduction of their
// gradients.
#include <algorithm>

#include "models/emit/update.h"
#include "models/gradients/buckets.h"
#include "models/layers/optimizer.h"
#include "models/units/units.h"

namespace foretrain {

static void mark_shard(Stage& stage, Buffer& buffer, const ShardLayout& shape);
static bool copies_out(Stage& stage, const ShardLayout& shape);
static SegmentId write_copy_out(Stage& stage, const ShardLayout& shape);
static FrameLayout weights_layout(Stage& stage, const ShardLayout& shape);
static void write_shape(Stage& stage, ShardLayout& shape, const std::vector<Piece>& pieces);
static SegmentId write_gather(Stage& stage, ShardLayout& shape,
                              std::pair<std::int16_t, std::int16_t> calls);
static void sum_shared(Stage& stage, const ShardLayout& shape, Segment& segment);
static void sum_copies_of_unit(Stage& stage, const ShardLayout& shape, const View& part,
                               std::int64_t count, Segment& segment);
static Ref as_it_travels(Stage& stage, const ShardLayout& shape, Ref whole, const PushOp& push);
static void note_calls(Stage& stage, ShardLayout& shape);
static SegmentId write_reduction(Stage& stage, const ShardLayout& shape, bool first);

namespace {

constexpr std::int16_t kToCopyOut = 2;         ///< of the weights, where they are copied out of it
constexpr std::int16_t kWhole = 0;             ///< buffer of gathered weights, of whole gradients
constexpr std::int16_t kNarrowed = 1;          ///< the shard in the type that travels
constexpr std::int16_t kWidened = 1;           ///< whole gradients in the type that is reduced
constexpr std::int16_t kPart = 2;              ///< the rank's part of one microbatch's sum
constexpr std::int16_t kSummedOverTensor = 1;  ///< event: parts of tensor ranks are added

void add(FrameLayout& layout, const char* name, BufferKind kind, DType type, std::int64_t count,
         bool persistent) {
  layout.buffers.push_back(buffer_of(name, kind, type, count, persistent));
}

/// The host's views of every parameter for every rank: DeepSpeed's reduce_scatter_coalesced, which
/// its reductions in 4 bits do not call.
Time time_of_views(const Plan& plan, const ShardLayout& shape) {
  if (!plan.shards_parameters() || plan.units.quantized_reduction || shape.holders.shards == 1) {
    return {};
  }
  constexpr double kMost = 1e18;  // ps: more than any step may take
  const double ps = static_cast<double>(plan.scatter_time.ps) * static_cast<double>(shape.tensors) *
                    static_cast<double>(shape.holders.shards);
  return Time{static_cast<std::int64_t>(std::min(ps, kMost))};
}

}  // namespace

/// The shape of a unit of which holders, layers and where it is kept are given.
std::size_t shape_of(Stage& stage, ShardLayout shape, const UnitContent& content) {
  shape.filled = content.elements;
  shape.runs = unit_runs(stage, shape, content);
  shape.elements = unit_elements(stage, shape);
  shape.alike = content.alike;
  shape.partial = content.partial;
  for (std::size_t s = 0; s < stage.holds.shapes.size(); ++s) {
    const ShardLayout& known = stage.holds.shapes[s];
    if (known.holders.expert != shape.holders.expert || known.root != shape.root) continue;
    if (known.layers != shape.layers || known.filled != shape.filled) continue;
    if (known.whole != shape.whole || known.on_host != shape.on_host) continue;
    if (known.runs != shape.runs || known.tensors != shape.tensors) continue;
    const bool alike = !sharded_parameters(stage) || pieces_of(stage, known) == content.pieces;
    if (alike) return s;
  }
  write_shape(stage, shape, content.pieces);
  stage.holds.shapes.push_back(shape);
  return stage.holds.shapes.size() - 1;
}

/// What a unit's shards are parts of; layers of different kinds may be as large.
const std::vector<Piece>& pieces_of(Stage& stage, const ShardLayout& shape) {
  return stage.builder.program().layouts[shape.states.index()].buffers[0].pieces;
}

/// The buffer holds the rank's part of a unit.
void mark_shard(Stage& stage, Buffer& buffer, const ShardLayout& shape) {
  const View own = own_shard(stage, 0, 0, shape, buffer.dtype);
  buffer.shards = own.shards;
  buffer.shard_group = own.shard_group;
  buffer.runs = shape.runs;
}

bool copies_out(Stage& stage, const ShardLayout& shape) {
  return stage.plan.copies_out() && shape.holders.shards > 1 && !stays_whole(stage.plan, shape);
}

/// FSDP2: one array holds what came from every rank, and compute copies each parameter out of it
/// (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_all_gather_copy_out).
SegmentId write_copy_out(Stage& stage, const ShardLayout& shape) {
  const DType type = stage.plan.precision.compute;
  LayoutWriter events("copy out", 1);
  SegmentWriter w(stage.builder, "copy parameters out", events);
  w.phase = Phase::kForward;
  const Ref gathered{0, kToCopyOut, type, shape.elements};
  const Ref whole{0, kWhole, type, shape.elements};
  w.compute("parameters.copy_out", kernel_of(KernelKind::kCast, 1, shape.elements, type),
            {gathered.view()}, {whole.view()});
  w.segment().frames = {shape.weights};
  return stage.builder.segment(std::move(w.segment()));
}

/// The whole parameters of a unit, and what travels for them.
FrameLayout weights_layout(Stage& stage, const ShardLayout& shape) {
  const DType type = stage.plan.precision.compute;
  FrameLayout weights;
  weights.name = "unit weights";
  add(weights, "whole", BufferKind::kParameters, type, shape.elements,
      stays_whole(stage.plan, shape));
  if (!copies_out(stage, shape)) weights.buffers.back().pool = Buffer::kGatherPool;
  const auto add_travelling = [&](const char* name, std::int64_t count) {
    add(weights, name, BufferKind::kCommunication, type, count, false);
    weights.buffers.back().pool = Buffer::kGatherPool;
  };
  if (sharded_parameters(stage)) {
    add_travelling("shard to gather", shape.elements / shape.holders.shards);
  }
  if (copies_out(stage, shape)) add_travelling("gathered", shape.elements);
  if (gathers_in_levels(stage, shape)) {
    add_travelling("gathered across groups", shape.elements / stage.plan.units.inner_group);
  }
  weights.events = {"gathered"};
  if (shard_memory(stage, shape) != Memory::kDevice) weights.events.emplace_back("from host");
  return weights;
}

/// A rank's part of a unit's gradients.
static FrameLayout shards_layout(Stage& stage, const ShardLayout& shape) {
  const std::int64_t own = shape.elements / shape.holders.shards;
  const bool on_host = shape.on_host;
  FrameLayout shards;
  shards.name = "unit gradient shard";
  add(shards, "shard", BufferKind::kGradients,
      on_host ? stage.plan.units.reduce : stage.plan.precision.gradients, own, true);
  if (on_host) shards.buffers[0].memory = Memory::kHost;
  mark_shard(stage, shards.buffers[0], shape);
  for (const auto& [begin, end] : shape.alike) {
    shards.buffers[0].replicas.push_back({begin, end, stage.builder.group(kTensorGroup)});
  }
  if (const auto [begin, end] = shape.tied; end > begin) {
    shards.buffers[0].replicas.push_back({begin, end, stage.builder.group(kTiedGroup)});
  }
  return shards;
}

void write_shape(Stage& stage, ShardLayout& shape, const std::vector<Piece>& pieces) {
  const Precision& p = stage.plan.precision;
  const std::int64_t own = shape.elements / shape.holders.shards;
  const bool sharded = sharded_parameters(stage);
  if (shape.holders.shards > 1) (void)stage.builder.group(shape.holders.shard_group);
  const DType stored = stage.plan.shard_type();
  FrameLayout weights = weights_layout(stage, shape);
  FrameLayout gradients;
  gradients.name = "unit gradients";
  add(gradients, "whole", BufferKind::kGradients, stage.plan.local_gradients(), shape.elements,
      !stage.plan.fresh_gradients());
  add(gradients, "to reduce", BufferKind::kCommunication, stage.plan.units.reduce, shape.elements,
      false);
  if (!stage.plan.copies_out()) gradients.buffers.back().pool = Buffer::kReducePool;
  add(gradients, "part", BufferKind::kCommunication, stage.plan.units.reduce, own, false);
  gradients.buffers.back().pool = Buffer::kReducePool;
  const bool on_host = shape.on_host;
  gradients.events = {"reduced", "summed over tensor ranks", "scattered"};
  if (on_host) gradients.events.insert(gradients.events.end(), {"part ready", "at host"});
  if (on_host && stage.plan.fresh_gradients() && stage.plan.microbatches() > 1) {
    add(gradients, "arrived on the host", BufferKind::kGradients, stage.plan.units.reduce, own,
        false);
    gradients.buffers.back().memory = Memory::kHost;
  }
  if (shape.holders.shards > 1) add_quantized(stage, shape, weights, gradients);
  shape.weights = stage.builder.layout(std::move(weights));
  shape.gradients = stage.builder.layout(std::move(gradients));

  shape.shards = stage.builder.layout(shards_layout(stage, shape));

  FrameLayout states;
  states.name = "unit states";
  if (sharded) {
    add(states, "weights shard", BufferKind::kParameters, stored, own, true);
    mark_shard(stage, states.buffers[0], shape);
    states.buffers[0].pieces = pieces;
    states.buffers[0].memory = shard_memory(stage, shape);
  }
  for (const OptimizerState& state :
       optimizer_states(stage.plan.optimizer, stage.plan.master_shards())) {
    add(states, state.name.c_str(), BufferKind::kOptimizer, state.type, state.elements(own), true);
    if (on_host) states.buffers.back().memory = stage.plan.offload.optimizer;
  }
  if (on_host) add_host_states(stage, states, own);
  const std::int64_t ranks = shape.whole ? 0 : stage.plan.units.secondary;
  if (ranks > 0 && shape.holders.shards > 1) {
    shape.secondary = Ref{formal::kShard, static_cast<std::int16_t>(states.buffers.size()),
                          p.compute, shape.elements / ranks};
    add(states, "second copy's part", BufferKind::kParameters, p.compute, shape.secondary.count,
        true);
  }
  shape.states = stage.builder.layout(std::move(states));

  shape.gather.all = write_gather(stage, shape, {0, 0});
  note_calls(stage, shape);
  if (copies_out(stage, shape)) shape.copy_out = write_copy_out(stage, shape);
  shape.reduce_first = write_reduction(stage, shape, true);
  if (stage.plan.fresh_gradients() && stage.plan.microbatches() > 1) {
    shape.reduce_next = write_reduction(stage, shape, false);
  }
}

/// What the host needs beside the states: those that lie in storage while it updates them, and new
/// weights on their way to the device, or while passes read the old ones.
void add_host_states(Stage& stage, FrameLayout& states, std::int64_t own) {
  states.events = {"updated", "states read", "weights loaded"};
  const std::size_t first = sharded_parameters(stage) ? 1 : 0;
  const std::size_t count = states.buffers.size();
  for (std::size_t b = first; stage.plan.offload.optimizer == Memory::kStorage && b < count; ++b) {
    Buffer buffer = states.buffers[b];
    buffer.name += " read";
    buffer.persistent = false;
    buffer.memory = Memory::kHost;
    states.buffers.push_back(std::move(buffer));
  }
  if (stage.plan.offload.in_place()) return;
  add(states, "new weights", BufferKind::kParameters, stage.plan.precision.compute, own, false);
  states.buffers.back().memory = Memory::kHost;
}

Op unit_op(Stage& stage, const char* stream, const char* name, Work work, Phase phase) {
  Op op;
  op.stream = stage.builder.stream(stream);
  op.work = stage.builder.work(std::move(work));
  op.name = name;
  op.category = Category::kData;
  op.phase = phase;
  return op;
}

View own_shard(Stage& stage, std::int16_t frame, std::int16_t buffer, const ShardLayout& shape,
               DType type) {
  const std::int64_t shards = shape.holders.shards;
  View view{frame, buffer, 0, bytes_of(type, shape.elements / shards), 1, GroupSlot()};
  if (shards == 1) return view;
  view.shards = static_cast<std::int32_t>(shards);
  const std::vector<std::string>& slots = stage.builder.program().group_slots;
  const auto it = std::find(slots.begin(), slots.end(), shape.holders.shard_group);
  view.shard_group = GroupSlot(static_cast<std::size_t>(it - slots.begin()));
  return view;
}

/// Formal frames: the whole weights, the states. The shard is cast where it is wider than what
/// travels; ranks that share with nobody only cast.
SegmentId write_gather(Stage& stage, ShardLayout& shape,
                       std::pair<std::int16_t, std::int16_t> calls) {
  const DType type = stage.plan.precision.compute;
  const std::int64_t own = shape.elements / shape.holders.shards;
  const Ref whole{0, copies_out(stage, shape) ? kToCopyOut : kWhole, type, shape.elements};
  Segment segment;
  segment.name = "gather unit";
  segment.frames = {shape.weights, shape.states};
  View part = sharded_parameters(stage)
                  ? Ref{formal::kShard, kOnlyBuffer, stage.plan.shard_type(), own}.view()
                  : own_shard(stage, 0, kWhole, shape, type);
  const bool alone = shape.holders.shards == 1;
  const bool offloaded = shard_memory(stage, shape) != Memory::kDevice;
  if (offloaded) {
    const View here = alone ? whole.view() : Ref{formal::kUnit, kNarrowed, type, own}.view();
    shard_from_host(stage, segment, part, here);
    part = here;
  }
  const bool narrow = !alone && gathers_quantized(stage, shape);
  if (narrow)
    gather_quantized(stage, shape, Ref{formal::kShard, kOnlyBuffer, stage.plan.shard_type(), own},
                     whole, segment);
  if (sharded_parameters(stage) && !offloaded && !narrow &&
      (alone || stage.plan.shard_type() != type)) {
    const Ref narrowed = alone ? whole : Ref{formal::kUnit, kNarrowed, type, own};
    Op cast = unit_op(stage, shape.holders.stream, "parameters.cast",
                      kernel_of(KernelKind::kCast, 1, own, type), Phase::kForward);
    cast.reads = {part};
    cast.writes = {narrowed.view()};
    if (calls.first == 0) segment.ops.push_back(std::move(cast));
    part = narrowed.view();
  }
  if (!alone && stage.plan.reduces_to_owner()) {
    segment.ops =
        from_owners(stage, shape.holders, whole.view(), shape.elements, type, Phase::kForward);
  } else if (!alone && !narrow) {
    const std::size_t first = segment.ops.size();
    gather_whole(stage, shape,
                 sharded_parameters(stage) ? part : own_shard(stage, 0, kWhole, shape, type), whole,
                 calls, segment);
    if (offloaded) {
      segment.ops[first - 1].records = EventRef{formal::kUnit, kFromHost};
      segment.ops[first].waits = {EventRef{formal::kUnit, kFromHost}};
    }
  }
  if (shape.secondary.valid()) write_secondary(stage, shape, whole, segment);
  if (segment.ops.empty()) return SegmentId();
  if (calls.second == 0) segment.ops.back().records = EventRef{formal::kUnit, kGatheredUnit};
  return stage.builder.segment(std::move(segment));
}

/// The all-gathers that may be issued apart: those of parameters cut one by one, which lie on the
/// device and travel in the compute type from all ranks at once.
void note_calls(Stage& stage, ShardLayout& shape) {
  const bool plain = !shape.runs.empty() && stage.plan.shards_by_parameter() &&
                     shard_memory(stage, shape) == Memory::kDevice &&
                     !gathers_in_levels(stage, shape) && !gathers_quantized(stage, shape) &&
                     !shape.secondary.valid();
  if (!plain || shape.whole || shape.root) return;
  for (const UnitRuns& runs : gathered_together(stage, shape))
    shape.gather.calls.push_back(runs.count);
}

/// All-gathers [from, to) of a unit's gather; 0: to the end.
SegmentId gather_part(Stage& stage, std::size_t shape, std::int16_t from, std::int16_t to) {
  ShardLayout& of = stage.holds.shapes[shape];
  SegmentId& known = of.gather.parts[{from, to}];
  if (!known.valid()) known = write_gather(stage, of, {from, to});
  return known;
}

/// Gradients that every tensor rank holds but computed in part: their sum over tensor ranks.
void sum_shared(Stage& stage, const ShardLayout& shape, Segment& segment) {
  const DType type = stage.plan.local_gradients();
  for (const auto& [begin, end] : shape.partial) {
    Op op = unit_op(stage, "tensor", "gradients.shared.reduce",
                    Collective{CollectiveKind::kAllReduce, stage.builder.group(kTensorGroup),
                               end - begin, type, false},
                    Phase::kGradients);
    op.category = Category::kTensor;
    op.reads = op.writes = {View{formal::kUnit, kWhole, bytes_of(type, begin),
                                 bytes_of(type, end - begin), 1, GroupSlot()}};
    segment.ops.push_back(std::move(op));
  }
  if (!segment.ops.empty()) segment.ops.back().records = EventRef{formal::kUnit, kSummedOverTensor};
}

/// What a rank holds of a unit's sum, all of it where it shares with nobody, over the other copies.
void sum_copies_of_unit(Stage& stage, const ShardLayout& shape, const View& part,
                        std::int64_t count, Segment& segment) {
  EventRef before;
  if (!segment.ops.empty())
    segment.ops.back().records = before = EventRef{formal::kUnit, kScattered};
  reduce_over_replicas(stage, segment, shape.holders, part, count, stage.plan.units.reduce, before,
                       EventRef());
}

/// A unit's gradients in the type that is reduced, divided where that comes before.
Ref as_it_travels(Stage& stage, const ShardLayout& shape, Ref whole, const PushOp& push) {
  const DType reduced = stage.plan.units.reduce;
  const bool shared = shape.holders.shards > 1 || shape.holders.shards < shape.holders.ranks;
  if ((shared || shape.on_host) && reduced != whole.dtype) {
    const Ref wide{0, kWidened, reduced, shape.elements};
    push(unit_op(stage, shape.holders.stream, "gradients.cast",
                 kernel_of(KernelKind::kCast, 1, shape.elements, reduced), Phase::kGradients),
         {whole.view()}, wide.view());
    whole = wide;
  }
  if (stage.plan.divides_gradients() && shared) {
    push(unit_op(stage, shape.holders.stream, "gradients.average",
                 kernel_of(KernelKind::kCast, 1, shape.elements, whole.dtype), Phase::kGradients),
         {whole.view()}, whole.view());
  }
  return whole;
}

/// Formal frames: the whole gradients, the shard. The first reduction of a step sets the shard,
/// later ones add to it.
SegmentId write_reduction(Stage& stage, const ShardLayout& shape, bool first) {
  const std::int64_t own = shape.elements / shape.holders.shards;
  const DType reduced = stage.plan.units.reduce;
  Segment segment;
  segment.name = first ? "reduce unit" : "reduce unit and add";
  segment.frames = {shape.gradients, shape.shards};
  sum_shared(stage, shape, segment);
  std::vector<EventRef> waits;
  if (!segment.ops.empty()) waits.push_back(EventRef{formal::kUnit, kSummedOverTensor});
  if (const Time host = time_of_views(stage.plan, shape); host.ps > 0) {
    segment.ops.push_back(
        unit_op(stage, shape.holders.stream, "host.scatter", HostDelay{host}, Phase::kGradients));
    segment.ops.back().category = Category::kHost;
  }
  const PushOp push = [&](Op op, std::vector<View> reads, const View& write) {
    op.reads = std::move(reads);
    op.writes = {write};
    op.waits = std::move(waits);
    waits.clear();
    segment.ops.push_back(std::move(op));
  };
  Ref whole{0, kWhole, stage.plan.local_gradients(), shape.elements};
  if (const std::int64_t rest = shape.elements - shape.filled; rest > 0) {
    push(unit_op(stage, shape.holders.stream, "gradients.pad",
                 kernel_of(KernelKind::kFill, 1, rest, whole.dtype), Phase::kGradients),
         {}, whole.part(shape.filled, rest));
  }
  const Ref shard{1, 0, stage.plan.precision.gradients, own};
  const bool alone = shape.holders.shards == 1;
  const bool on_host = shape.on_host;
  const bool narrow = !alone && stage.plan.units.quantized_reduction;
  const bool copies = shape.holders.shards < shape.holders.ranks;
  if (!narrow) whole = as_it_travels(stage, shape, whole, push);
  const bool at_once = first && reduced == shard.dtype && !on_host;
  const Ref part = alone ? whole : at_once ? shard : Ref{formal::kUnit, kPart, reduced, own};
  const char* stream = shape.holders.stream;
  if (narrow) {
    reduce_quantized(stage, shape, whole, part, push);
  } else if (!alone) {
    for (const UnitRuns& runs : reduced_together(stage, shape)) {
      const View from = whole.part(runs.begin, runs.count);
      const View to =
          part.part(runs.begin / shape.holders.shards, runs.count / shape.holders.shards);
      for (Op& op :
           scattered(stage, shape.holders, from, to, runs.count, reduced, runs.several())) {
        const std::vector<View> reads = op.reads;
        push(std::move(op), reads, to);
      }
    }
  }
  if (copies) {
    stream = shape.holders.replica_group;
    sum_copies_of_unit(stage, shape, part.view(), own, segment);
  }
  if (on_host) {
    gradients_to_host(stage, segment, part.view(), own, first);
    return stage.builder.segment(std::move(segment));
  }
  if (!(part.frame == shard.frame)) {
    std::vector<View> reads = {part.view()};
    if (!first) reads.push_back(shard.view());
    const KernelKind kind = first ? KernelKind::kCast : KernelKind::kAdd;
    push(unit_op(stage, stream, first ? "gradients.keep" : "gradients.accumulate",
                 kernel_of(kind, 1, own, shard.dtype), Phase::kGradients),
         std::move(reads), shard.view());
  }
  segment.ops.back().records = EventRef{formal::kUnit, kReduced};
  return stage.builder.segment(std::move(segment));
}

}  // namespace foretrain
