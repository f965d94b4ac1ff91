// Copies of what layers keep, to the host and storage and back:
// models/step/passes/offload_activations.cpp.
#include <algorithm>

#include "models/stage/stage_writer.h"

namespace foretrain {
namespace {

// Events of what is kept on the host.
constexpr std::int16_t kKept = 0, kLoaded = 1;

}  // namespace

/// The layout of a frame's copy in another memory.
LayoutId StageWriter::away_layout(LayoutId device, Memory memory) {
  FrameLayout layout = x_builder.program().layouts[device.index()];
  layout.name += memory == Memory::kHost ? " on the host" : " in storage";
  layout.events = {"kept", "loaded"};
  for (Buffer& buffer : layout.buffers) {
    buffer.memory = memory;
    buffer.saved = false;
  }
  return x_builder.layout(std::move(layout));
}

/// Copies all buffers of a frame to the memory behind or back. The last copy records that it is
/// kept, in the frame that it is copied to, or that it is loaded, in that of the host.
SegmentId StageWriter::copy_segment(LayoutId near, LayoutId far, bool out) {
  const std::vector<Buffer> buffers = x_builder.program().layouts[near.index()].buffers;
  if (buffers.empty()) return SegmentId();
  const Memory close = buffers.front().memory;
  const Memory away = close == Memory::kDevice ? Memory::kHost : Memory::kStorage;
  const bool storage = away == Memory::kStorage;
  const char* stream = storage ? (out ? kStorageWrite : kStorageRead) : (out ? kOut : kIn);
  Segment segment;
  segment.name = storage ? (out ? "write to storage" : "read from storage")
                         : (out ? "keep on the host" : "load from the host");
  segment.frames = {near, far};
  for (std::size_t b = 0; b < buffers.size(); ++b) {
    const Bytes bytes = buffers[b].bytes();
    const View there{0, static_cast<std::int16_t>(b), 0, bytes, 1, GroupSlot()};
    View here = there;
    here.frame = 1;
    side_op(segment, stream, storage ? "activations.store" : "activations.copy",
            out ? Copy{close, away, bytes} : Copy{away, close, bytes}, {out ? there : here},
            {out ? here : there});
    segment.ops.back().phase = out ? Phase::kForward : Phase::kBackward;
  }
  segment.ops.back().records = out       ? EventRef{1, kKept}
                               : storage ? EventRef{0, kKept}
                                         : EventRef{1, kLoaded};
  return x_builder.segment(std::move(segment));
}

const HostCopies& StageWriter::host_copies(LayoutId device) {
  const auto known = x_host_copies.find(device.value);
  if (known != x_host_copies.end()) return known->second;
  HostCopies copies;
  copies.layout = away_layout(device, Memory::kHost);
  copies.out = copy_segment(device, copies.layout, true);
  copies.in = copy_segment(device, copies.layout, false);
  copies.let_go = let_go_segment(device);
  if (x_plan.offload.activations == Memory::kStorage) {
    copies.stored = away_layout(device, Memory::kStorage);
    copies.write = copy_segment(copies.layout, copies.stored, true);
    copies.read = copy_segment(copies.layout, copies.stored, false);
  }
  return x_host_copies.emplace(device.value, copies).first->second;
}

void StageWriter::emit_move(TaskId id) {
  const Task& task = x_step[id];
  const Chunk& chunk = x_chunks[static_cast<std::size_t>(task.chunk)];
  Passage& passage = x_passages[{task.chunk, task.microbatch}];
  switch (task.kind) {
    case TaskKind::kMoveOut:
      return move_out(chunk, passage, id);
    case TaskKind::kReleaseMoved:
      return let_go_of_copied(x_moved.at(task.of));
    case TaskKind::kReadBack:
      return read_back(chunk, passage, task.layer);
    default:
      return move_back(chunk, passage, task.layer);
  }
}

/// After the forward pass of a layer: what it keeps, and its input, leave the device.
void StageWriter::move_out(const Chunk& chunk, Passage& passage, TaskId id) {
  const Task& task = x_step[id];
  const std::int64_t l = task.layer;
  const auto i = static_cast<std::size_t>(l);
  const auto layer = static_cast<std::int32_t>(chunk.first_layer + l);
  FrameId stored;
  std::vector<std::pair<FrameId, FrameId>>& moved = x_moved[id];
  for (FrameId* frame : {&passage.saved[i], &passage.hidden[i]}) {
    const HostCopies& copies = host_copies(layout_of(*frame));
    if (!copies.out.valid()) continue;
    const FrameId host = x_builder.frame(copies.layout, layer);
    const FrameId passed = passage.hidden[i + 1];
    Call call{copies.out, layer, -1, {*frame, host}, waits_of(task, copies.out)};
    call.waits.push_back(StreamWait{x_builder.stream(kOut), passed, kReady});
    x_builder.call(std::move(call));
    moved.emplace_back(*frame, host);
    if (copies.write.valid()) stored = store(copies, host, layer);
    passage.on_host[{l, frame == &passage.hidden[i]}] = copies.write.valid() ? stored : host;
  }
  if (stored.valid()) x_done[id.index()] = done_at(stored, kKept);
}

/// What was copied to the host goes on to storage. Returns where it is.
FrameId StageWriter::store(const HostCopies& copies, FrameId host, std::int32_t layer) {
  const FrameId stored = x_builder.frame(copies.stored, layer);
  const StreamWait copied{x_builder.stream(kStorageWrite), host, kKept};
  x_builder.call(Call{copies.write, layer, -1, {host, stored}, {copied}});
  return stored;
}

/// What layer `l` has in storage comes back to the host.
void StageWriter::read_back(const Chunk& chunk, Passage& passage, std::int64_t l) {
  const StreamId stream = x_builder.stream(kStorageRead);
  for (const bool input : {false, true}) {
    const auto found = passage.on_host.find({l, input});
    if (found == passage.on_host.end()) continue;
    const auto i = static_cast<std::size_t>(l);
    const FrameId frame = input ? passage.hidden[i] : passage.saved[i];
    const HostCopies& copies = x_host_copies.at(layout_of(frame).value);
    if (!(layout_of(found->second) == copies.stored)) continue;
    const auto layer = static_cast<std::int32_t>(chunk.first_layer + l);
    const FrameId host = x_builder.frame(copies.layout, layer);
    x_builder.call(Call{
        copies.read,
        layer,
        -1,
        {host, found->second},
        {StreamWait{stream, passage.gradient, kReady}, StreamWait{stream, found->second, kKept}}});
    found->second = host;
  }
}

void StageWriter::let_go_of_copied(const std::vector<std::pair<FrameId, FrameId>>& moved) {
  for (const auto& [device, host] : moved) {
    const StreamWait copied{StreamId(std::size_t{0}), host, kKept};
    const SegmentId segment = x_host_copies.at(layout_of(device).value).let_go;
    x_builder.call(Call{segment, -1, -1, {device}, {copied}});
  }
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

/// What layer `l` keeps comes back to the device, into new memory.
void StageWriter::move_back(const Chunk& chunk, Passage& passage, std::int64_t l) {
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
