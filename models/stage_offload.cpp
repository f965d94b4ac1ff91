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
// gradients beside this step's passes, and new weights are loaded at its end, or take the place of
// those that it keeps (Angel-PTM's lock-free updating, whose passes may find some of them before).
//
// Angel-PTM (arXiv 2303.02868): what there is room for stays on the device, states, gradients and
// shards, and is updated there beside the host's update: whole units, those of the first layers,
// whose gradients come last. States lie in pages that two of them may share, so that of each memory
// the last page alone is not full; what is empty neither travels nor is updated.
//
// What layers keep, their input included, is copied out after their forward pass, for which compute
// waits after the next layer's, and back while the layer after them computes backward.
//
// Memory that is not pinned (`pageable`; DeepSpeed's pin_memory false) is copied more slowly, and
// the host waits for every copy.
//
// Left out: staging buffers beside storage, page tables, that more than two small tensors share no
// page, eviction by need.
#include <algorithm>

#include "models/optimizer.h"
#include "models/stage_writer.h"

namespace foretrain {
namespace {

constexpr const char* kOut = "to host";
constexpr const char* kIn = "from host";
constexpr const char* kHostStream = "host update";

// Events of a unit's states.
constexpr std::int16_t kUpdated = 0, kStatesRead = 1;
// Events of the scalars.
constexpr std::int16_t kHostUpdateDone = 0, kNormsDone = 1, kDeviceUpdateDone = 2;
// Events of activations that are kept on the host.
constexpr std::int16_t kKept = 0, kLoaded = 1;

/// Buffer of a unit's shards: the sum over microbatches; of its gradients: a part as it arrives.
constexpr std::int16_t kHostSum = 0, kArrived = 3;

/// What stays in the host's memory changes its address alone.
Work replacing(const Copy& copy) {
  if (copy.from == copy.to) return Pause{};
  return copy;
}

}  // namespace

Op& StageWriter::side_op(Segment& segment, const char* stream, const std::string& name, Work work,
                         std::vector<View> reads, std::vector<View> writes) {
  Op op = unit_op(stream, name.c_str(), std::move(work), Phase::kOptimizer);
  op.category = std::string_view(stream) == kHostStream ? Category::kHost : Category::kMemory;
  op.reads = std::move(reads);
  op.writes = std::move(writes);
  segment.ops.push_back(std::move(op));
  return segment.ops.back();
}

/// Work of the host's processor on these operands. Of last step's gradients no executor has any.
Op& StageWriter::host_op(Segment& segment, const std::string& name, const Kernel& kernel,
                         std::vector<View> reads, std::vector<View> writes, double factor) {
  Bytes bytes = 0;
  for (const std::vector<View>* views : {&reads, &writes}) {
    for (const View& view : *views) bytes += view.bytes;
  }
  bytes = static_cast<Bytes>(static_cast<double>(bytes) * factor);
  Opaque work{name, bytes, 0, DType::kFp32, Memory::kHost, kernel};
  const bool known = !x_plan.offload.delayed_update && is_adam(x_plan.optimizer);
  if (!known) work.kernel.reset();
  return side_op(segment, kHostStream, name, std::move(work), std::move(reads), std::move(writes));
}

/// A copy of what is kept in the host's memory; what is kept in storage goes through pinned
/// buffers.
Copy StageWriter::host_copy(Memory from, Memory to, Bytes bytes) const {
  const bool storage = x_plan.offload.optimizer == Memory::kStorage || from == Memory::kStorage ||
                       to == Memory::kStorage;
  return Copy{from, to, bytes, x_plan.offload.pageable && !storage};
}

/// cudaMemcpyAsync returns when a copy of pages that are not pinned is done.
void StageWriter::wait_for_copy(Segment& segment, const char* stream) {
  const Work& work = x_builder.program().works[segment.ops.back().work.index()];
  const auto* copy = std::get_if<Copy>(&work);
  if (copy == nullptr || !copy->pageable) return;
  const Phase phase = segment.ops.back().phase;
  Op& wait = side_op(segment, stream, "host.wait", HostSync{}, {}, {});
  wait.category = Category::kHost;
  wait.phase = phase;
}

/// The last ops of a unit's reduction: its part goes to the host and is added up there.
void StageWriter::gradients_to_host(Segment& segment, const View& part, std::int64_t own,
                                    bool first) {
  const DType type = x_plan.units.reduce;
  const Ref sum{1, kHostSum, type, own};
  const Ref arrived{0, kArrived, type, own};
  const View to = first ? sum.view() : arrived.view();
  const bool reduced = !segment.ops.empty();
  if (reduced) segment.ops.back().records = EventRef{0, kPartReady};
  Op& out = side_op(segment, kOut, "gradients.to_host",
                    host_copy(Memory::kDevice, Memory::kHost, part.bytes), {part}, {to});
  if (reduced) out.waits = {EventRef{0, kPartReady}};
  out.phase = Phase::kGradients;
  wait_for_copy(segment, kOut);
  if (!first) {
    segment.ops.back().records = EventRef{0, kAtHost};
    host_op(segment, "gradients.accumulate", kernel_of(KernelKind::kAdd, 1, own, type),
            {sum.view(), arrived.view()}, {sum.view()})
        .waits = {EventRef{0, kAtHost}};
    segment.ops.back().phase = Phase::kGradients;
  }
  segment.ops.back().records = EventRef{0, kReduced};
}

/// The copy of an offloaded shard to the device, before it is gathered.
void StageWriter::shard_from_host(Segment& segment, const View& shard, const View& to) {
  side_op(segment, kIn, "parameters.from_host",
          host_copy(x_plan.offload.parameters, Memory::kDevice, shard.bytes), {shard}, {to});
  segment.ops.back().phase = Phase::kForward;
  wait_for_copy(segment, kIn);
}

/// Views of a unit's states in formal frame `frame`, of the buffers from `first` on.
std::vector<View> StageWriter::state_views(std::int16_t frame, std::int16_t first,
                                           std::int64_t own) const {
  std::vector<View> out;
  for (const OptimizerState& state : optimizer_states(x_plan.optimizer, x_plan.master_shards())) {
    out.push_back(Ref{frame, first++, state.type, state.elements(own)}.view());
  }
  return out;
}

/// Buffer of a unit's states frame that holds its new weights: after the states and, where they lie
/// in storage, their copies at the host.
std::int16_t StageWriter::fresh_weights() const {
  const std::size_t states = optimizer_states(x_plan.optimizer, x_plan.master_shards()).size();
  const std::size_t copies = x_plan.offload.optimizer == Memory::kStorage ? 2 : 1;
  const std::size_t first = sharded_parameters() ? 1 : 0;
  return static_cast<std::int16_t>(first + copies * states);
}

bool StageWriter::kept_on_host(const Chunk& chunk, std::int64_t last) const {
  if (!x_plan.updates_on_host()) return false;
  if (last == 0) return true;
  std::int64_t layers = x_model.predict_layers;
  for (std::int64_t index = 0; index < x_plan.chunks_of_stage(); ++index) {
    layers += x_plan.pipeline_layout[static_cast<std::size_t>(x_plan.chunk_at(x_stage, index))];
  }
  const double stay = std::max(0.0, x_plan.offload.device_share) * static_cast<double>(layers);
  return static_cast<double>(chunk.layers_before + last) > stay + 1e-9;
}

/// The host's part of the update: the norm of all gradients, then every unit's states.
void StageWriter::update_on_host(bool at_begin) {
  Segment segment;
  segment.name = "update on the host";
  segment.frames = {x_scalars};
  Call call;
  call.frames = {x_scalar_frame};
  const StreamId host = x_builder.stream(kHostStream);
  UnitFrames units;
  UnitFrames on_device;
  for (const Chunk& chunk : x_chunks) {
    for (const Unit& unit : chunk.units) {
      const UnitShape& shape = x_shapes[unit.shape];
      const auto frame_of_gradients = static_cast<std::int16_t>(call.frames.size());
      if (!shape.on_host) {
        on_device.emplace_back(&shape, frame_of_gradients);
        segment.frames.push_back(shape.shards);
        call.frames.push_back(unit.shards);
        call.waits.push_back(StreamWait{StreamId(std::size_t{0}), unit.reduced, kReduced});
        continue;
      }
      units.emplace_back(&shape, frame_of_gradients);
      for (const auto& [layout, frame] :
           {std::pair(shape.shards, at_begin ? unit.previous : unit.shards),
            std::pair(shape.states, unit.states)}) {
        segment.frames.push_back(layout);
        call.frames.push_back(frame);
      }
      if (!at_begin) call.waits.push_back(StreamWait{host, unit.reduced, kReduced});
    }
  }
  if (units.empty()) return;
  write_host_norm(segment, units, on_device);
  for (const auto& [shape, frame] : units) write_host_update(segment, *shape, frame);
  call.segment = x_builder.segment(std::move(segment));
  x_builder.call(std::move(call));
}

/// Squares are summed by the host, then by the device, then over ranks; the host waits for the
/// result.
void StageWriter::write_host_norm(Segment& segment, const UnitFrames& units,
                                  const UnitFrames& on_device) {
  if (x_plan.clip_norm <= 0) return;
  const View norm{0, kNormSquare, 0, 4, 1, GroupSlot()};
  for (const auto& [shape, frame] : units) {
    const std::int64_t own = shape->elements / shape->holders.shards;
    std::vector<View> reads = {Ref{frame, kHostSum, x_plan.units.reduce, own}.view()};
    if (!segment.ops.empty()) reads.push_back(norm);
    host_op(segment, "gradients.norm",
            kernel_of(KernelKind::kSquaredNorm, 1, own, x_plan.units.reduce), std::move(reads),
            {norm});
  }
  segment.ops.back().records = EventRef{0, kNormsDone};
  std::vector<EventRef> waits = {EventRef{0, kNormsDone}};
  for (const auto& [shape, frame] : on_device) {
    const std::int64_t own = shape->elements / shape->holders.shards;
    const DType type = x_plan.precision.gradients;
    Op& sum = side_op(segment, "compute", "gradients.norm",
                      kernel_of(KernelKind::kSquaredNorm, 1, own, type),
                      {Ref{frame, 0, type, own}.view(), norm}, {norm});
    sum.waits = std::move(waits);
    waits.clear();
  }
  if (x_plan.norm_ranks() > 1) {
    Op& reduce = side_op(
        segment, "compute", "gradients.norm.reduce",
        Collective{CollectiveKind::kAllReduce, x_builder.group(kNormGroup), 1, DType::kFp32, false},
        {norm}, {norm});
    reduce.category = Category::kData;
    reduce.waits = std::move(waits);
    waits.clear();
  }
  Op& check = side_op(segment, "compute", "gradients.check", HostSync{}, {norm}, {});
  check.category = Category::kHost;
  check.waits = std::move(waits);
  check.records = EventRef{0, kHostUpdateDone};
}

void StageWriter::write_host_update(Segment& segment, const UnitShape& shape, std::int16_t frame) {
  const std::int64_t own = shape.elements / shape.holders.shards;
  const auto states_frame = static_cast<std::int16_t>(frame + 1);
  const std::int16_t first = sharded_parameters() ? 1 : 0;
  std::vector<View> states = state_views(states_frame, first, own);
  const auto count = static_cast<std::int16_t>(states.size());
  const bool storage = x_plan.offload.optimizer == Memory::kStorage;
  Bytes bytes = 0;
  for (const View& view : states) bytes += view.bytes;
  std::vector<EventRef> waits;
  if (x_plan.clip_norm > 0) waits.push_back(EventRef{0, kHostUpdateDone});
  std::vector<View> staged = states;
  if (storage) {
    for (View& view : staged) view.buffer = static_cast<std::int16_t>(view.buffer + count);
    side_op(segment, "storage read", "optimizer.read", Copy{Memory::kStorage, Memory::kHost, bytes},
            states, staged)
        .records = EventRef{states_frame, kStatesRead};
    waits.push_back(EventRef{states_frame, kStatesRead});
  }
  // New weights in the type that travels.
  const std::int16_t fresh = x_plan.offload.in_place() ? std::int16_t{0} : fresh_weights();
  const View weights = Ref{states_frame, fresh, x_plan.precision.compute, own}.view();
  std::vector<View> reads = {Ref{frame, kHostSum, x_plan.units.reduce, own}.view()};
  if (!x_plan.master_shards()) {
    reads.push_back(Ref{states_frame, 0, x_plan.precision.compute, own}.view());
  }
  reads.insert(reads.end(), staged.begin(), staged.end());
  if (x_plan.clip_norm > 0) reads.push_back(View{0, kNormSquare, 0, 4, 1, GroupSlot()});
  std::vector<View> writes = staged;
  writes.insert(writes.begin(), weights);
  Kernel adam = kernel_of(KernelKind::kAdam, 1, own, DType::kFp32);
  adam.value = x_plan.clip_norm;
  Op& update = host_op(segment, update_name(x_plan.optimizer), adam, std::move(reads),
                       std::move(writes), host_update_factor(x_plan.optimizer));
  update.waits = std::move(waits);
  update.records = EventRef{states_frame, kUpdated};
  if (!storage) return;
  side_op(segment, "storage write", "optimizer.write", Copy{Memory::kHost, Memory::kStorage, bytes},
          staged, states)
      .waits = {EventRef{states_frame, kUpdated}};
}

/// Beside it the device's part, of what stays there; the norm has been checked.
void StageWriter::update_on_device() {
  LayoutWriter events("update", 0);
  SegmentWriter w(x_builder, "update on the device", events);
  w.phase = Phase::kOptimizer;
  w.segment().frames = {x_scalars};
  Call call;
  call.frames = {x_scalar_frame};
  std::vector<Updated> updated;
  bind_units(w, call, updated);
  if (updated.empty()) return;
  write_clips(w, updated);
  write_updates(w, updated);
  w.record(EventRef{0, kDeviceUpdateDone});
  call.segment = x_builder.segment(std::move(w.segment()));
  x_builder.call(std::move(call));
}

/// New weights go to the device once the host has them, and, where it was early, once nothing reads
/// the old ones; where shards are offloaded they take the place of those, in memory by their
/// address alone.
void StageWriter::load_weights() {
  if (x_plan.offload.in_place()) return;
  const Memory to_memory = x_plan.offload.parameters;
  const StreamId in = x_builder.stream(kIn);
  const std::int16_t fresh = fresh_weights();
  for (Chunk& chunk : x_chunks) {
    for (Unit& unit : chunk.units) {
      const UnitShape& shape = x_shapes[unit.shape];
      if (!shape.on_host) continue;
      const std::int64_t own = shape.elements / shape.holders.shards;
      const DType type = x_plan.precision.compute;
      Segment segment;
      segment.name = "load weights";
      segment.frames = {shape.states, shape.weights};
      const View to =
          sharded_parameters() ? Ref{0, 0, type, own}.view() : own_shard(1, 0, shape, type);
      const Ref from{0, fresh, type, own};
      const Copy copy = host_copy(Memory::kHost, to_memory, from.view().bytes);
      side_op(segment, kIn, "parameters.load", replacing(copy), {from.view()}, {to}).records =
          EventRef{0, kWeightsLoaded};
      wait_for_copy(segment, kIn);
      Call call{x_builder.segment(std::move(segment)),
                -1,
                -1,
                {unit.states, sharded_parameters() ? FrameId() : unit.weights},
                {StreamWait{in, unit.states, kUpdated}}};
      for (const Chunk& done : x_chunks) {
        if (!x_plan.offload.delayed_update || !done.done_frame.valid()) continue;
        call.waits.push_back(StreamWait{in, done.done_frame, done.done_event});
      }
      x_builder.call(std::move(call));
    }
  }
}

/// The end of a step whose update is the host's; parameters that every rank holds whole are
/// gathered once each rank has loaded its part.
void StageWriter::finish_host_update() {
  if (!x_plan.offload.delayed_update) {
    update_on_host(false);
    update_on_device();
  }
  load_weights();
  if (!x_plan.overlap.parameter_gather) {
    const bool stays = x_plan.offload.in_place();
    for (Chunk& chunk : x_chunks) {
      for (Unit& unit : chunk.units) {
        const bool on_host = x_shapes[unit.shape].on_host;
        gather_weights(
            unit, on_host ? StreamWait{StreamId(), unit.states, stays ? kUpdated : kWeightsLoaded}
                          : StreamWait{StreamId(), x_scalar_frame, kDeviceUpdateDone});
      }
    }
  }
  reduce_loss();
}

/// The layout of a frame's copy on the host.
LayoutId StageWriter::host_layout(LayoutId device) {
  FrameLayout layout = x_builder.program().layouts[device.index()];
  layout.name += " on the host";
  layout.events = {"kept", "loaded"};
  for (Buffer& buffer : layout.buffers) {
    buffer.memory = Memory::kHost;
    buffer.saved = false;
  }
  return x_builder.layout(std::move(layout));
}

/// Copies all buffers of a frame to the host or back; the last copy records `event` of the host's.
SegmentId StageWriter::copy_segment(LayoutId device, LayoutId host, bool out) {
  Segment segment;
  segment.name = out ? "keep on the host" : "load from the host";
  segment.frames = {device, host};
  const FrameLayout& layout = x_builder.program().layouts[device.index()];
  for (std::size_t b = 0; b < layout.buffers.size(); ++b) {
    const Buffer& buffer = layout.buffers[b];
    const View there{0, static_cast<std::int16_t>(b), 0, buffer.bytes(), 1, GroupSlot()};
    View here = there;
    here.frame = 1;
    const Copy copy = out ? Copy{Memory::kDevice, Memory::kHost, buffer.bytes()}
                          : Copy{Memory::kHost, Memory::kDevice, buffer.bytes()};
    side_op(segment, out ? kOut : kIn, "activations.copy", copy, {out ? there : here},
            {out ? here : there});
    segment.ops.back().phase = out ? Phase::kForward : Phase::kBackward;
  }
  if (segment.ops.empty()) return SegmentId();
  segment.ops.back().records = EventRef{1, out ? kKept : kLoaded};
  return x_builder.segment(std::move(segment));
}

bool StageWriter::keeps_on_host(const Chunk& chunk, std::int64_t l) const {
  return chunk.layers_before + l < x_plan.offload.activation_layers;
}

/// After the forward pass of layer `l`: what it keeps, and its input, leave the device.
void StageWriter::keep_on_host(const Chunk& chunk, Passage& passage, std::int64_t l) {
  let_go_of_copied();
  if (!keeps_on_host(chunk, l)) return;
  const auto i = static_cast<std::size_t>(l);
  const auto layer = static_cast<std::int32_t>(chunk.first_layer + l);
  for (FrameId* frame : {&passage.saved[i], &passage.hidden[i]}) {
    const LayoutId device = layout_of(*frame);
    auto known = x_host_copies.find(device.value);
    if (known == x_host_copies.end()) {
      const LayoutId host = host_layout(device);
      known = x_host_copies
                  .emplace(device.value,
                           HostCopies{host, copy_segment(device, host, true),
                                      copy_segment(device, host, false), let_go_segment(device)})
                  .first;
    }
    const HostCopies& copies = known->second;
    if (!copies.out.valid()) continue;
    const FrameId host = x_builder.frame(copies.layout, layer);
    const FrameId passed = passage.hidden[i + 1];
    x_builder.call(Call{copies.out,
                        layer,
                        -1,
                        {*frame, host},
                        {StreamWait{x_builder.stream(kOut), passed, kReady}}});
    passage.on_host[{l, frame == &passage.hidden[i]}] = host;
    x_copied_out.emplace_back(*frame, host);
  }
}

/// What was copied out of the device is there until compute has waited for the copy, which it does
/// after the next layer's pass: a framework gives memory to what comes next only then.
void StageWriter::let_go_of_copied() {
  for (const auto& [device, host] : x_copied_out) {
    const StreamWait copied{StreamId(std::size_t{0}), host, kKept};
    const SegmentId segment = x_host_copies.at(layout_of(device).value).let_go;
    x_builder.call(Call{segment, -1, -1, {device}, {copied}});
  }
  x_copied_out.clear();
}

SegmentId StageWriter::let_go_segment(LayoutId device) {
  Segment segment;
  segment.name = "let go of what is on the host";
  segment.frames = {device};
  Op op = unit_op("compute", "activations.copied", Pause{}, Phase::kForward);
  op.category = Category::kMemory;
  const std::vector<Buffer>& buffers = x_builder.program().layouts[device.index()].buffers;
  for (std::size_t b = 0; b < buffers.size(); ++b) {
    op.reads.push_back(
        View{0, static_cast<std::int16_t>(b), 0, buffers[b].bytes(), 1, GroupSlot()});
  }
  segment.ops.push_back(std::move(op));
  return x_builder.segment(std::move(segment));
}

/// Before the backward pass of the layer behind layer `l` (or of `l` itself, the last one): its
/// frames come back, into new memory, while that one computes.
void StageWriter::load_from_host(const Chunk& chunk, Passage& passage, std::int64_t l) {
  let_go_of_copied();
  if (l < 0) return;
  const auto i = static_cast<std::size_t>(l);
  const auto layer = static_cast<std::int32_t>(chunk.first_layer + l);
  for (const bool input : {false, true}) {
    const auto found = passage.on_host.find({l, input});
    if (found == passage.on_host.end()) continue;
    FrameId& frame = input ? passage.hidden[i] : passage.saved[i];
    const HostCopies& copies = x_host_copies.at(layout_of(frame).value);
    frame = x_builder.frame(layout_of(frame), layer);
    x_builder.call(Call{copies.in,
                        layer,
                        -1,
                        {frame, found->second},
                        {StreamWait{x_builder.stream(kIn), passage.gradient, kReady},
                         StreamWait{x_builder.stream(kIn), found->second, kKept}}});
  }
}

/// Every stream of the call waits for what comes back.
void StageWriter::wait_loaded(const Passage& passage, std::int64_t l, Call& call) const {
  if (passage.on_host.empty()) return;
  std::vector<StreamId> streams;
  for (const Op& op : x_builder.program().segments[call.segment.index()].ops) {
    if (std::find(streams.begin(), streams.end(), op.stream) == streams.end()) {
      streams.push_back(op.stream);
    }
  }
  for (const bool input : {false, true}) {
    const auto found = passage.on_host.find({l, input});
    if (found == passage.on_host.end()) continue;
    for (const StreamId stream : streams) {
      call.waits.push_back(StreamWait{stream, found->second, kLoaded});
    }
  }
}

}  // namespace foretrain
