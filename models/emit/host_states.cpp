// What lives in host memory or storage: optimizer states with the gradients that they need, shards
// of parameters, what layers keep for the backward pass.
//
// ZeRO-Offload (arXiv 2101.06840), ZeRO-Infinity (arXiv 2104.07857): a unit's reduced gradients are
// copied to the host, beside the backward pass. The host sums their squares, all ranks add these
// up, and the host updates unit by unit (the sub-groups of the papers) at the bandwidth of its
// memory, which the accelerators of a node share; states in storage are read before and written
// after, one unit beside another's update. New weights go back to the device, or stay: offloaded
// shards are copied to the device for every gather (bandwidth-centric: each rank its own part).
// Copies have a stream for each direction. With a delayed update the host works on the last step's
// gradients beside this step's passes. New weights are loaded at the end of the step, or overwrite
// the weights that the host keeps (Angel-PTM's lock-free updating, whose passes may read some new
// weights earlier).
//
// Angel-PTM (arXiv 2303.02868): what there is room for stays on the device, states, gradients and
// shards, and is updated there beside the host's update: whole units, those of the first layers,
// whose gradients come last. States lie in pages that two of them may share, so that of each memory
// the last page alone is not full; what is empty neither travels nor is updated.
//
// With a sharded optimizer alone (DeepSpeed's runtime/zero/stage_1_and_2.py with cpu_offload;
// Megatron Core's optimizer/cpu_offloading/hybrid_optimizer.py), and on one data rank without
// sharding, gradients of all microbatches are added up on the device. The rank's part of a bucket
// is copied out once that is reduced, and goes on as a unit's does; what no other rank holds is cut
// by layers. Contiguous buckets of sharded gradients are copied out in every microbatch.
//
// Memory that is not pinned (`pageable`; DeepSpeed's pin_memory false) is copied more slowly, and
// the host waits for every copy.
//
// Left out: staging buffers beside storage, page tables, that more than two small tensors share no
// page, eviction by need; that both named files square gradients on the device, that DeepSpeed's
// widens them before they are copied out and adds microbatches up there, that Megatron Core's
// copies them when all passes are over and may leave a fraction of them to the device.
#include <algorithm>

#include "models/emit/frames.h"
#include "models/emit/tasks.h"
#include "models/emit/update.h"
#include "models/gradients/buckets.h"
#include "models/layers/optimizer.h"
#include "models/units/units.h"

namespace foretrain {

static Op& host_op(Stage& stage, Segment& segment, const std::string& name, const Kernel& kernel,
                   std::vector<View> reads, std::vector<View> writes, double factor = 1);
static Copy host_copy(Stage& stage, Memory from, Memory to, Bytes bytes);
static void wait_for_copy(Stage& stage, Segment& segment, const char* stream);
static void add_at_host(Stage& stage, Segment& segment, const View& part, const Ref& sum,
                        const Ref& arrived, EventRef done);
static SegmentId write_to_host(Stage& stage, const Chunk& chunk, const Bucket& bucket, bool again);
static std::vector<View> state_views(Stage& stage, std::int16_t frame, std::int16_t first,
                                     std::int64_t own);
static std::int16_t fresh_weights(Stage& stage);
static void write_host_norm(Stage& stage, Segment& segment, const std::vector<UpdatedPart>& parts,
                            const std::vector<UpdatedPart>& on_device);
static void write_host_update(Stage& stage, Segment& segment, const UpdatedPart& part);

namespace {

constexpr const char* kHostStream = "host update";

// Events of a unit's states.
constexpr std::int16_t kUpdated = 0, kStatesRead = 1;
// Events of the scalars.
constexpr std::int16_t kHostUpdateDone = 0, kNormsDone = 1, kDeviceUpdateDone = 2;
/// Buffer of a unit's shards: the sum over microbatches; of its gradients: a part as it arrives.
constexpr std::int16_t kHostSum = 0, kArrived = 3;

/// What stays in the host's memory changes its address alone.
Work replacing(const Copy& copy) {
  if (copy.from == copy.to) return Pause{};
  return copy;
}

}  // namespace

Op& side_op(Stage& stage, Segment& segment, const char* stream, const std::string& name, Work work,
            std::vector<View> reads, std::vector<View> writes) {
  Op op = unit_op(stage, stream, name.c_str(), std::move(work), Phase::kOptimizer);
  op.category = std::string_view(stream) == kHostStream ? Category::kHost : Category::kMemory;
  op.reads = std::move(reads);
  op.writes = std::move(writes);
  segment.ops.push_back(std::move(op));
  return segment.ops.back();
}

/// Work of the host's processor on these operands. Of last step's gradients no executor has any.
Op& host_op(Stage& stage, Segment& segment, const std::string& name, const Kernel& kernel,
            std::vector<View> reads, std::vector<View> writes, double factor) {
  Bytes bytes = 0;
  for (const std::vector<View>* views : {&reads, &writes}) {
    for (const View& view : *views) bytes += view.bytes;
  }
  bytes = static_cast<Bytes>(static_cast<double>(bytes) * factor);
  Opaque work{name, bytes, 0, DType::kFp32, Memory::kHost, kernel};
  const bool known = !stage.plan.offload.delayed_update && is_adam(stage.plan.optimizer);
  if (!known) work.kernel.reset();
  return side_op(stage, segment, kHostStream, name, std::move(work), std::move(reads),
                 std::move(writes));
}

/// A copy of what is kept in the host's memory; what is kept in storage goes through pinned
/// buffers.
Copy host_copy(Stage& stage, Memory from, Memory to, Bytes bytes) {
  const bool storage = stage.plan.offload.optimizer == Memory::kStorage ||
                       from == Memory::kStorage || to == Memory::kStorage;
  return Copy{from, to, bytes, stage.plan.offload.pageable && !storage};
}

/// cudaMemcpyAsync returns when a copy of pages that are not pinned is done.
void wait_for_copy(Stage& stage, Segment& segment, const char* stream) {
  const Work& work = stage.builder.program().works[segment.ops.back().work.index()];
  const auto* copy = std::get_if<Copy>(&work);
  if (copy == nullptr || !copy->pageable) return;
  const Phase phase = segment.ops.back().phase;
  Op& wait = side_op(stage, segment, stream, "host.wait", HostSync{}, {}, {});
  wait.category = Category::kHost;
  wait.phase = phase;
}

/// What was reduced goes to the host and is added up there, the first of a step excepted (no
/// `arrived`). `done`: where that is recorded, in the frame of the events.
void add_at_host(Stage& stage, Segment& segment, const View& part, const Ref& sum,
                 const Ref& arrived, EventRef done) {
  const bool first = !arrived.valid();
  side_op(stage, segment, kOut, "gradients.to_host",
          host_copy(stage, Memory::kDevice, Memory::kHost, part.bytes), {part},
          {first ? sum.view() : arrived.view()})
      .phase = Phase::kGradients;
  wait_for_copy(stage, segment, kOut);
  if (!first) {
    segment.ops.back().records = EventRef{done.frame, kAtHost};
    host_op(stage, segment, "gradients.accumulate",
            kernel_of(KernelKind::kAdd, 1, sum.count, sum.dtype), {sum.view(), arrived.view()},
            {sum.view()})
        .waits = {EventRef{done.frame, kAtHost}};
    segment.ops.back().phase = Phase::kGradients;
  }
  segment.ops.back().records = done;
}

/// The last ops of a unit's reduction: its part goes to the host.
void gradients_to_host(Stage& stage, Segment& segment, const View& part, std::int64_t own,
                       bool first) {
  const DType type = stage.plan.units.reduce;
  const std::size_t out = segment.ops.size();
  if (out > 0) segment.ops.back().records = EventRef{formal::kUnit, kPartReady};
  add_at_host(stage, segment, part, Ref{formal::kShard, kHostSum, type, own},
              first ? Ref() : Ref{formal::kUnit, kArrived, type, own},
              EventRef{formal::kUnit, kReduced});
  if (out > 0) segment.ops[out].waits = {EventRef{formal::kUnit, kPartReady}};
}

/// Where a chunk's states are in buckets: at the host the rank's part of each.
void make_host_buckets(Stage& stage, Chunk& chunk) {
  if (!stage.plan.updates_on_host()) return;
  for (Bucket& bucket : chunk.buckets) {
    if (bucket.begin == bucket.end) continue;
    const std::int64_t own = shard_elements(stage, bucket);
    FrameLayout sums{"bucket on the host", {own_gradients(stage, chunk, bucket)}, {}};
    sums.buffers.front().memory = Memory::kHost;
    const LayoutId layout = stage.builder.layout(std::move(sums));
    bucket.sums = stage.builder.frame(layout);
    if (stage.plan.offload.delayed_update) bucket.previous = stage.builder.frame(layout);
    FrameLayout states;
    states.name = "bucket states";
    for (const OptimizerState& state :
         optimizer_states(stage.plan.optimizer, stage.plan.master_shards())) {
      states.buffers.push_back(
          buffer_of(state.name, BufferKind::kOptimizer, state.type, state.elements(own), true));
      states.buffers.back().memory = stage.plan.offload.optimizer;
    }
    add_host_states(stage, states, own);
    bucket.states = stage.builder.frame(stage.builder.layout(std::move(states)));
  }
}

/// Formal frames: where the rank's part lies on the device, the bucket's events, its gradients at
/// the host; of later passes what arrives there.
SegmentId write_to_host(Stage& stage, const Chunk& chunk, const Bucket& bucket, bool again) {
  const std::int64_t own = shard_elements(stage, bucket);
  const DType type = stage.plan.precision.gradients;
  Segment segment;
  segment.name = "gradients to the host";
  segment.frames = {layout_of(stage, chunk.own.valid() ? chunk.own_now : chunk.gradients),
                    stage.holds.bucket, layout_of(stage, bucket.sums)};
  View part = shard_view(stage, 0, bucket, type);
  Ref arrived;
  if (chunk.own.valid()) {
    const auto index = static_cast<std::int16_t>(&bucket - chunk.buckets.data());
    part = Ref{formal::kChunk, index, again ? stage.plan.precision.compute : type, own}.view();
  }
  if (again) {
    LayoutWriter layout("arrived on the host", 3);
    arrived = layout.add("arrived", BufferKind::kGradients, stage.plan.precision.compute, own);
    layout.layout().buffers.back().memory = Memory::kHost;
    segment.frames.push_back(stage.builder.layout(layout.layout()));
  }
  add_at_host(stage, segment, part, Ref{formal::kHostSums, kHostSum, type, own}, arrived,
              EventRef{formal::kEvents, kSummedAtHost});
  return stage.builder.segment(std::move(segment));
}

/// The rank's part of a bucket, once it is reduced; what no other rank holds after `after`.
void bucket_to_host(Stage& stage, const Chunk& chunk, Bucket& bucket, StreamWait after) {
  if (!bucket.states.valid()) return;
  const bool again = chunk.own.valid() && !(chunk.own_now == chunk.own);
  SegmentId& segment = bucket.to_host[again ? 1 : 0];
  if (!segment.valid()) segment = write_to_host(stage, chunk, bucket, again);
  const FrameId from = chunk.own.valid() ? chunk.own_now : chunk.gradients;
  if (bucket.holders.ranks > 1) after = StreamWait{StreamId(), bucket.frame, kReduced};
  after.stream = stage.builder.stream(kOut);
  Call call{segment, -1, -1, {from, bucket.frame, bucket.sums}, {after}};
  if (again) {
    call.frames.push_back(
        stage.builder.frame(stage.builder.program().segments[segment.index()].frames.back()));
  }
  stage.builder.call(std::move(call));
}

/// The copy of an offloaded shard to the device, before it is gathered.
void shard_from_host(Stage& stage, Segment& segment, const View& shard, const View& to) {
  side_op(stage, segment, kIn, "parameters.from_host",
          host_copy(stage, stage.plan.offload.parameters, Memory::kDevice, shard.bytes), {shard},
          {to});
  segment.ops.back().phase = Phase::kForward;
  wait_for_copy(stage, segment, kIn);
}

/// Views of a unit's states in formal frame `frame`, of the buffers from `first` on.
std::vector<View> state_views(Stage& stage, std::int16_t frame, std::int16_t first,
                              std::int64_t own) {
  std::vector<View> out;
  for (const OptimizerState& state :
       optimizer_states(stage.plan.optimizer, stage.plan.master_shards())) {
    out.push_back(Ref{frame, first++, state.type, state.elements(own)}.view());
  }
  return out;
}

/// Buffer of a unit's states frame that holds its new weights: after the states and, where they lie
/// in storage, their copies at the host.
std::int16_t fresh_weights(Stage& stage) {
  const std::size_t states =
      optimizer_states(stage.plan.optimizer, stage.plan.master_shards()).size();
  const std::size_t copies = stage.plan.offload.optimizer == Memory::kStorage ? 2 : 1;
  const std::size_t first = sharded_parameters(stage) ? 1 : 0;
  return static_cast<std::int16_t>(first + copies * states);
}

bool kept_on_host(Stage& stage, const Chunk& chunk, std::int64_t last) {
  if (!stage.plan.updates_on_host()) return false;
  if (last == 0) return true;
  std::int64_t layers = stage.model.predict_layers;
  for (std::int64_t index = 0; index < stage.plan.chunks_of_stage(); ++index) {
    layers +=
        stage.plan
            .pipeline_layout[static_cast<std::size_t>(stage.plan.chunk_at(stage.number, index))];
  }
  const double stay = std::max(0.0, stage.plan.offload.device_share) * static_cast<double>(layers);
  return static_cast<double>(chunk.layers_before + last) > stay + 1e-9;
}

/// The host's part of the update: the norm of all gradients, then every unit's states.
void update_on_host(Stage& stage, bool at_begin) {
  Segment segment;
  segment.name = "update on the host";
  segment.frames = {stage.holds.scalars};
  Call call;
  call.frames = {stage.holds.scalar_values};
  const StreamId host = stage.builder.stream(kHostStream);
  std::vector<UpdatedPart> parts;
  std::vector<UpdatedPart> on_device;
  const auto bind = [&](FrameId frame) {
    segment.frames.push_back(layout_of(stage, frame));
    call.frames.push_back(frame);
  };
  const auto next = [&call] { return static_cast<std::int16_t>(call.frames.size()); };
  for (const Chunk& chunk : stage.holds.chunks) {
    for (const Unit& unit : chunk.units) {
      const ShardLayout& shape = stage.holds.shapes[unit.shape];
      const std::int64_t own = shape.elements / shape.holders.shards;
      if (!shape.on_host) {
        on_device.push_back({next(), stage.plan.precision.gradients, own});
        bind(unit.shards);
        call.waits.push_back(StreamWait{StreamId(std::size_t{0}), unit.reduced, kReduced});
        continue;
      }
      parts.push_back({next(), stage.plan.units.reduce, own});
      bind(at_begin ? unit.previous : unit.shards);
      bind(unit.states);
      if (!at_begin) call.waits.push_back(StreamWait{host, unit.reduced, kReduced});
    }
    for (const Bucket& bucket : chunk.buckets) {
      if (!bucket.states.valid()) continue;
      parts.push_back({next(), stage.plan.precision.gradients, shard_elements(stage, bucket)});
      bind(at_begin ? bucket.previous : bucket.sums);
      bind(bucket.states);
      if (!at_begin) call.waits.push_back(StreamWait{host, bucket.frame, kSummedAtHost});
    }
  }
  if (parts.empty()) return;
  write_host_norm(stage, segment, parts, on_device);
  for (const UpdatedPart& part : parts) write_host_update(stage, segment, part);
  call.segment = stage.builder.segment(std::move(segment));
  stage.builder.call(std::move(call));
}

/// Squares are summed by the host, then by the device, then over ranks; the host waits for the
/// result.
void write_host_norm(Stage& stage, Segment& segment, const std::vector<UpdatedPart>& parts,
                     const std::vector<UpdatedPart>& on_device) {
  if (stage.plan.clip_norm <= 0) return;
  const View norm{0, kNormSquare, 0, 4, 1, GroupSlot()};
  for (const UpdatedPart& part : parts) {
    std::vector<View> reads = {Ref{part.gradients, kHostSum, part.type, part.own}.view()};
    if (!segment.ops.empty()) reads.push_back(norm);
    host_op(stage, segment, "gradients.norm",
            kernel_of(KernelKind::kSquaredNorm, 1, part.own, part.type), std::move(reads), {norm});
  }
  segment.ops.back().records = EventRef{formal::kScalars, kNormsDone};
  std::vector<EventRef> waits = {EventRef{formal::kScalars, kNormsDone}};
  for (const UpdatedPart& part : on_device) {
    Op& sum = side_op(stage, segment, "compute", "gradients.norm",
                      kernel_of(KernelKind::kSquaredNorm, 1, part.own, part.type),
                      {Ref{part.gradients, kOnlyBuffer, part.type, part.own}.view(), norm}, {norm});
    sum.waits = std::move(waits);
    waits.clear();
  }
  if (stage.plan.norm_ranks() > 1) {
    Op& reduce = side_op(stage, segment, "compute", "gradients.norm.reduce",
                         Collective{CollectiveKind::kAllReduce, stage.builder.group(kNormGroup), 1,
                                    DType::kFp32, false},
                         {norm}, {norm});
    reduce.category = Category::kData;
    reduce.waits = std::move(waits);
    waits.clear();
  }
  Op& check = side_op(stage, segment, "compute", "gradients.check", HostSync{}, {norm}, {});
  check.category = Category::kHost;
  check.waits = std::move(waits);
  check.records = EventRef{formal::kScalars, kHostUpdateDone};
}

void write_host_update(Stage& stage, Segment& segment, const UpdatedPart& part) {
  const std::int64_t own = part.own;
  const auto states_frame = static_cast<std::int16_t>(part.gradients + 1);
  const std::int16_t first = sharded_parameters(stage) ? 1 : 0;
  std::vector<View> states = state_views(stage, states_frame, first, own);
  const auto count = static_cast<std::int16_t>(states.size());
  const bool storage = stage.plan.offload.optimizer == Memory::kStorage;
  Bytes bytes = 0;
  for (const View& view : states) bytes += view.bytes;
  std::vector<EventRef> waits;
  if (stage.plan.clip_norm > 0) waits.push_back(EventRef{formal::kScalars, kHostUpdateDone});
  std::vector<View> staged = states;
  if (storage) {
    for (View& view : staged) view.buffer = static_cast<std::int16_t>(view.buffer + count);
    side_op(stage, segment, kStorageRead, "optimizer.read",
            Copy{Memory::kStorage, Memory::kHost, bytes}, states, staged)
        .records = EventRef{states_frame, kStatesRead};
    waits.push_back(EventRef{states_frame, kStatesRead});
  }
  // New weights in the type that travels.
  const std::int16_t fresh = stage.plan.offload.in_place() ? std::int16_t{0} : fresh_weights(stage);
  const View weights = Ref{states_frame, fresh, stage.plan.precision.compute, own}.view();
  std::vector<View> reads = {Ref{part.gradients, kHostSum, part.type, own}.view()};
  if (!stage.plan.master_shards()) {
    reads.push_back(Ref{states_frame, kOnlyBuffer, stage.plan.precision.compute, own}.view());
  }
  reads.insert(reads.end(), staged.begin(), staged.end());
  if (stage.plan.clip_norm > 0)
    reads.push_back(View{formal::kScalars, kNormSquare, 0, 4, 1, GroupSlot()});
  std::vector<View> writes = staged;
  writes.insert(writes.begin(), weights);
  Kernel adam = kernel_of(KernelKind::kAdam, 1, own, DType::kFp32);
  adam.value = stage.plan.clip_norm;
  Op& update = host_op(stage, segment, update_name(stage.plan.optimizer), adam, std::move(reads),
                       std::move(writes), host_update_factor(stage.plan.optimizer));
  update.waits = std::move(waits);
  update.records = EventRef{states_frame, kUpdated};
  if (!storage) return;
  side_op(stage, segment, kStorageWrite, "optimizer.write",
          Copy{Memory::kHost, Memory::kStorage, bytes}, staged, states)
      .waits = {EventRef{states_frame, kUpdated}};
}

/// Beside it the device's part, of what stays there; the norm has been checked.
void update_on_device(Stage& stage) {
  LayoutWriter events("update", 0);
  SegmentWriter w(stage.builder, "update on the device", events);
  w.phase = Phase::kOptimizer;
  w.segment().frames = {stage.holds.scalars};
  Call call;
  call.frames = {stage.holds.scalar_values};
  std::vector<UpdatedArrays> updated;
  bind_units(stage, w, call, updated);
  if (updated.empty()) return;
  write_clips(stage, w, updated);
  write_updates(stage, w, updated);
  w.record(EventRef{formal::kScalars, kDeviceUpdateDone});
  call.segment = stage.builder.segment(std::move(w.segment()));
  stage.builder.call(std::move(call));
}

/// New weights go to the device once the host has them, and, where it was early, once nothing reads
/// the old ones; where shards are offloaded they take the place of those, in memory by their
/// address alone.
void load_weights(Stage& stage, const Task& task) {
  if (stage.plan.offload.in_place()) return;
  const Memory to_memory = stage.plan.offload.parameters;
  const StreamId in = stage.builder.stream(kIn);
  const std::int16_t fresh = fresh_weights(stage);
  // Formal frames: the states, the weights; `whole`, whose part `to` is where no shard of states
  // is.
  const auto load = [&](FrameId states, LayoutId weights, FrameId whole, const View& to) {
    const DType type = stage.plan.precision.compute;
    Segment segment;
    segment.name = "load weights";
    segment.frames = {layout_of(stage, states), weights};
    const View from = Ref{formal::kStates, fresh, type, to.bytes * 8 / bits_of(type)}.view();
    side_op(stage, segment, kIn, "parameters.load",
            replacing(host_copy(stage, Memory::kHost, to_memory, to.bytes)), {from}, {to})
        .records = EventRef{formal::kStates, kWeightsLoaded};
    wait_for_copy(stage, segment, kIn);
    Call call{stage.builder.segment(std::move(segment)),
              -1,
              -1,
              {states, whole},
              {StreamWait{in, states, kUpdated}}};
    const std::vector<StreamWait> last_reads = waits_of(stage, task, call.segment);
    call.waits.insert(call.waits.end(), last_reads.begin(), last_reads.end());
    stage.builder.call(std::move(call));
  };
  for (const Chunk& chunk : stage.holds.chunks) {
    for (const Unit& unit : chunk.units) {
      const ShardLayout& shape = stage.holds.shapes[unit.shape];
      if (!shape.on_host) continue;
      const bool whole = !sharded_parameters(stage);
      const DType type = stage.plan.precision.compute;
      const std::int64_t own = shape.elements / shape.holders.shards;
      load(unit.states, shape.weights, whole ? unit.weights : FrameId(),
           whole ? own_shard(stage, formal::kLoaded, kOnlyBuffer, shape, type)
                 : Ref{formal::kStates, kOnlyBuffer, type, own}.view());
    }
    for (const Bucket& bucket : chunk.buckets) {
      if (!bucket.states.valid()) continue;
      load(bucket.states, layout_of(stage, chunk.parameters), chunk.parameters,
           own_weights(stage, 1, chunk, bucket));
    }
  }
}

/// Where a unit's new weights are there, after a step whose update is the host's.
StreamWait host_updated(Stage& stage, const Unit& unit) {
  if (!stage.holds.shapes[unit.shape].on_host)
    return {StreamId(), stage.holds.scalar_values, kDeviceUpdateDone};
  return {StreamId(), unit.states, stage.plan.offload.in_place() ? kUpdated : kWeightsLoaded};
}

}  // namespace foretrain
