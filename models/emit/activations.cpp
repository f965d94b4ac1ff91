// Copies of what layers keep, to the host and storage and back:
// models/step/passes/offload_activations.cpp.
#include <algorithm>

#include "models/emit/tasks.h"
#include "models/emit/update.h"
#include "models/units/units.h"

namespace foretrain {

static LayoutId away_layout(Stage& stage, LayoutId device, Memory memory);
static SegmentId copy_segment(Stage& stage, LayoutId near, LayoutId far, bool out);
static const HostCopies& host_copies(Stage& stage, LayoutId device);
static void move_out(Stage& stage, const Chunk& chunk, MicrobatchState& passage, TaskId id);
static FrameId store(Stage& stage, const HostCopies& copies, FrameId host, std::int32_t layer);
static void read_back(Stage& stage, const Chunk& chunk, MicrobatchState& passage, std::int64_t l);
static void let_go_of_copied(Stage& stage, const std::vector<std::pair<FrameId, FrameId>>& moved);
static SegmentId let_go_segment(Stage& stage, LayoutId device);
static void move_back(Stage& stage, const Chunk& chunk, MicrobatchState& passage, std::int64_t l);

namespace {

// Events of what is kept on the host.
constexpr std::int16_t kKept = 0, kLoaded = 1;

}  // namespace

/// The layout of a frame's copy in another memory.
LayoutId away_layout(Stage& stage, LayoutId device, Memory memory) {
  FrameLayout layout = stage.builder.program().layouts[device.index()];
  layout.name += memory == Memory::kHost ? " on the host" : " in storage";
  layout.events = {"kept", "loaded"};
  for (Buffer& buffer : layout.buffers) {
    buffer.memory = memory;
    buffer.saved = false;
  }
  return stage.builder.layout(std::move(layout));
}

/// Copies all buffers of a frame to the memory behind or back. The last copy records that it is
/// kept, in the frame that it is copied to, or that it is loaded, in that of the host.
SegmentId copy_segment(Stage& stage, LayoutId near, LayoutId far, bool out) {
  const std::vector<Buffer> buffers = stage.builder.program().layouts[near.index()].buffers;
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
    side_op(stage, segment, stream, storage ? "activations.store" : "activations.copy",
            out ? Copy{close, away, bytes} : Copy{away, close, bytes}, {out ? there : here},
            {out ? here : there});
    segment.ops.back().phase = out ? Phase::kForward : Phase::kBackward;
  }
  segment.ops.back().records = out       ? EventRef{formal::kFar, kKept}
                               : storage ? EventRef{formal::kNear, kKept}
                                         : EventRef{formal::kFar, kLoaded};
  return stage.builder.segment(std::move(segment));
}

const HostCopies& host_copies(Stage& stage, LayoutId device) {
  const auto known = stage.segments.host_copies.find(device.value);
  if (known != stage.segments.host_copies.end()) return known->second;
  HostCopies copies;
  copies.layout = away_layout(stage, device, Memory::kHost);
  copies.out = copy_segment(stage, device, copies.layout, true);
  copies.in = copy_segment(stage, device, copies.layout, false);
  copies.let_go = let_go_segment(stage, device);
  if (stage.plan.offload.activations == Memory::kStorage) {
    copies.stored = away_layout(stage, device, Memory::kStorage);
    copies.write = copy_segment(stage, copies.layout, copies.stored, true);
    copies.read = copy_segment(stage, copies.layout, copies.stored, false);
  }
  return stage.segments.host_copies.emplace(device.value, copies).first->second;
}

void emit_move(Stage& stage, TaskId id) {
  const Task& task = stage.step[id];
  const Chunk& chunk = stage.holds.chunks[static_cast<std::size_t>(task.chunk)];
  MicrobatchState& passage = stage.values.passages[{task.chunk, task.microbatch}];
  switch (task.kind) {
    case TaskKind::kMoveOut:
      return move_out(stage, chunk, passage, id);
    case TaskKind::kReleaseMoved:
      return let_go_of_copied(stage, stage.values.moved.at(task.of));
    case TaskKind::kReadBack:
      return read_back(stage, chunk, passage, task.layer);
    default:
      return move_back(stage, chunk, passage, task.layer);
  }
}

/// After the forward pass of a layer: what it keeps, and its input, leave the device.
void move_out(Stage& stage, const Chunk& chunk, MicrobatchState& passage, TaskId id) {
  const Task& task = stage.step[id];
  const std::int64_t l = task.layer;
  const auto i = static_cast<std::size_t>(l);
  const auto layer = static_cast<std::int32_t>(chunk.first_layer + l);
  FrameId stored;
  std::vector<std::pair<FrameId, FrameId>>& moved = stage.values.moved[id];
  for (FrameId* frame : {&passage.saved[i], &passage.hidden[i]}) {
    const HostCopies& copies = host_copies(stage, layout_of(stage, *frame));
    if (!copies.out.valid()) continue;
    const FrameId host = stage.builder.frame(copies.layout, layer);
    const FrameId passed = passage.hidden[i + 1];
    Call call{copies.out, layer, -1, {*frame, host}, waits_of(stage, task, copies.out)};
    call.waits.push_back(StreamWait{stage.builder.stream(kOut), passed, kReady});
    stage.builder.call(std::move(call));
    moved.emplace_back(*frame, host);
    if (copies.write.valid()) stored = store(stage, copies, host, layer);
    passage.on_host[{l, frame == &passage.hidden[i]}] = copies.write.valid() ? stored : host;
  }
  if (stored.valid()) stage.values.done[id.index()] = done_at(stored, kKept);
}

/// What was copied to the host goes on to storage. Returns where it is.
FrameId store(Stage& stage, const HostCopies& copies, FrameId host, std::int32_t layer) {
  const FrameId stored = stage.builder.frame(copies.stored, layer);
  const StreamWait copied{stage.builder.stream(kStorageWrite), host, kKept};
  stage.builder.call(Call{copies.write, layer, -1, {host, stored}, {copied}});
  return stored;
}

/// What layer `l` has in storage comes back to the host.
void read_back(Stage& stage, const Chunk& chunk, MicrobatchState& passage, std::int64_t l) {
  const StreamId stream = stage.builder.stream(kStorageRead);
  for (const bool input : {false, true}) {
    const auto found = passage.on_host.find({l, input});
    if (found == passage.on_host.end()) continue;
    const auto i = static_cast<std::size_t>(l);
    const FrameId frame = input ? passage.hidden[i] : passage.saved[i];
    const HostCopies& copies = stage.segments.host_copies.at(layout_of(stage, frame).value);
    if (!(layout_of(stage, found->second) == copies.stored)) continue;
    const auto layer = static_cast<std::int32_t>(chunk.first_layer + l);
    const FrameId host = stage.builder.frame(copies.layout, layer);
    stage.builder.call(Call{
        copies.read,
        layer,
        -1,
        {host, found->second},
        {StreamWait{stream, passage.gradient, kReady}, StreamWait{stream, found->second, kKept}}});
    found->second = host;
  }
}

void let_go_of_copied(Stage& stage, const std::vector<std::pair<FrameId, FrameId>>& moved) {
  for (const auto& [device, host] : moved) {
    const StreamWait copied{StreamId(std::size_t{0}), host, kKept};
    const SegmentId segment = stage.segments.host_copies.at(layout_of(stage, device).value).let_go;
    stage.builder.call(Call{segment, -1, -1, {device}, {copied}});
  }
}

SegmentId let_go_segment(Stage& stage, LayoutId device) {
  Segment segment;
  segment.name = "let go of what is on the host";
  segment.frames = {device};
  Op op = unit_op(stage, "compute", "activations.copied", Pause{}, Phase::kForward);
  op.category = Category::kMemory;
  const std::vector<Buffer>& buffers = stage.builder.program().layouts[device.index()].buffers;
  for (std::size_t b = 0; b < buffers.size(); ++b) {
    op.reads.push_back(
        View{formal::kNear, static_cast<std::int16_t>(b), 0, buffers[b].bytes(), 1, GroupSlot()});
  }
  segment.ops.push_back(std::move(op));
  return stage.builder.segment(std::move(segment));
}

/// What layer `l` keeps comes back to the device, into new memory.
void move_back(Stage& stage, const Chunk& chunk, MicrobatchState& passage, std::int64_t l) {
  const auto i = static_cast<std::size_t>(l);
  const auto layer = static_cast<std::int32_t>(chunk.first_layer + l);
  for (const bool input : {false, true}) {
    const auto found = passage.on_host.find({l, input});
    if (found == passage.on_host.end()) continue;
    FrameId& frame = input ? passage.hidden[i] : passage.saved[i];
    const HostCopies& copies = stage.segments.host_copies.at(layout_of(stage, frame).value);
    frame = stage.builder.frame(layout_of(stage, frame), layer);
    stage.builder.call(Call{copies.in,
                            layer,
                            -1,
                            {frame, found->second},
                            {StreamWait{stage.builder.stream(kIn), passage.gradient, kReady},
                             StreamWait{stage.builder.stream(kIn), found->second, kKept}}});
  }
}

/// Every stream of the call waits for what comes back.
void wait_loaded(Stage& stage, const MicrobatchState& passage, std::int64_t l, Call& call) {
  if (passage.on_host.empty()) return;
  std::vector<StreamId> streams;
  for (const Op& op : stage.builder.program().segments[call.segment.index()].ops) {
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
