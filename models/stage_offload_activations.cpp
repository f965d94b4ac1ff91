// What layers keep on the host: it is copied out, their input included, after their forward pass,
// for which compute waits after the next layer's, and back while the layer after them computes
// backward.
#include <algorithm>

#include "models/stage_writer.h"

namespace foretrain {
namespace {

// Events of what is kept on the host.
constexpr std::int16_t kKept = 0, kLoaded = 1;

}  // namespace

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
