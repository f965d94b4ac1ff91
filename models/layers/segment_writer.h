// Writes the ops of one segment, with the events between the compute stream and the tensor-parallel
// one.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/program/builder.h"

namespace foretrain {

/// A memory-bound kernel over rows x cols elements of `dtype`; its bytes follow from the op's
/// views.
inline Kernel kernel_of(KernelKind kind, std::int64_t rows, std::int64_t cols, DType dtype) {
  Kernel out;
  out.kind = kind;
  out.rows = rows;
  out.cols = cols;
  out.dtype = dtype;
  return out;
}

/// A buffer of a segment's formal frame, with its shape: all of it, or `count` elements from
/// `first` on.
struct Ref {
  std::int16_t frame = -1, buffer = -1;
  DType dtype = DType::kBf16;
  std::int64_t count = 0;
  std::int64_t first = 0;
  bool valid() const { return frame >= 0; }
  View view() const { return part(0, count); }
  /// Elements [begin, begin + size).
  View part(std::int64_t begin, std::int64_t size) const {
    return View{frame, buffer,     bytes_of(dtype, first + begin), bytes_of(dtype, size),
                1,     GroupSlot()};
  }
  /// The elements [begin, begin + size), as a Ref of their own.
  Ref range(std::int64_t begin, std::int64_t size) const {
    return {frame, buffer, dtype, size, first + begin};
  }
  /// The i-th of `parts` equal parts.
  Ref slice(std::int64_t i, std::int64_t parts) const {
    const std::int64_t size = count / parts;
    return range(i * size, size);
  }
  bool operator==(const Ref&) const = default;
};

inline std::vector<View> views_of(const std::vector<Ref>& refs) {
  std::vector<View> out;
  for (const Ref& ref : refs) out.push_back(ref.view());
  return out;
}

/// The rank's own part of `whole`, of which every member of `group` has an equal one.
inline View shard_of(View whole, std::int64_t members, GroupSlot group) {
  whole.bytes /= members;
  whole.shards = static_cast<std::int32_t>(members);
  whole.shard_group = group;
  return whole;
}

inline Buffer buffer_of(std::string name, BufferKind kind, DType dtype, std::int64_t count,
                        bool persistent = false) {
  Buffer buffer;
  buffer.name = std::move(name);
  buffer.kind = kind;
  buffer.dtype = dtype;
  buffer.count = count;
  buffer.persistent = persistent;
  return buffer;
}

/// Grows a FrameLayout and hands out Refs to it as formal frame `frame`.
class LayoutWriter {
 public:
  LayoutWriter(std::string name, std::int16_t frame) : x_frame(frame) {
    x_layout.name = std::move(name);
  }
  Ref add(const std::string& name, BufferKind kind, DType dtype, std::int64_t count,
          bool saved = false) {
    x_layout.buffers.push_back(buffer_of(name, kind, dtype, count));
    x_layout.buffers.back().saved = saved;
    return Ref{x_frame, static_cast<std::int16_t>(x_layout.buffers.size() - 1), dtype, count};
  }
  EventRef event(const std::string& name) {
    x_layout.events.push_back(name);
    return EventRef{x_frame, static_cast<std::int16_t>(x_layout.events.size() - 1)};
  }
  FrameLayout& layout() { return x_layout; }

 private:
  FrameLayout x_layout;
  std::int16_t x_frame;
};

/// Ops are added in issue order. A blocking collective makes the next compute op wait for it; an
/// async one returns its event for a later `wait`.
class SegmentWriter {
 public:
  SegmentWriter(ProgramBuilder& builder, std::string name, LayoutWriter& events)
      : x_builder(builder), x_events(events), x_compute(builder.stream("compute")) {
    x_segment.name = std::move(name);
  }

  Phase phase = Phase::kForward;
  /// Where gradients of weights go when they have a pass of their own.
  SegmentWriter* weight_pass = nullptr;
  SegmentWriter& of_weights() { return weight_pass == nullptr ? *this : *weight_pass; }

  /// The next compute op (and a collective before any) waits for this event.
  void wait(EventRef event) { x_pending.push_back(event); }

  Op& compute(const std::string& name, Work work, std::vector<View> reads,
              std::vector<View> writes);
  /// The host's own time; nothing where it takes none.
  void pause(const std::string& name, Time time);
  /// On another stream; waits for what compute has done so far. Returns the event it records.
  EventRef on_stream(const std::string& stream, const std::string& name, Category category,
                     Work work, std::vector<View> reads, std::vector<View> writes);
  void collective(const std::string& name, Collective work, std::vector<View> reads,
                  std::vector<View> writes) {
    wait(async_collective(name, std::move(work), std::move(reads), std::move(writes)));
  }
  EventRef async_collective(const std::string& name, Collective work, std::vector<View> reads,
                            std::vector<View> writes) {
    return on_stream("tensor", name, Category::kTensor, std::move(work), std::move(reads),
                     std::move(writes));
  }
  /// A message to one rank beside one of as many bytes from another, on channels of these names;
  /// `copied`: by copy engines.
  EventRef exchange(const std::string& stream, const std::string& name, Category category,
                    const std::string& to, const std::string& from, const View& out, const View& in,
                    bool copied = false);
  /// The last compute op records `event` (it must not record another).
  void record(EventRef event);

  Segment& segment() { return x_segment; }
  /// The frame of this segment's own buffers and events.
  LayoutWriter& local() { return x_events; }

 private:
  /// The event of the last compute op of this segment; invalid if there is none.
  EventRef last_compute();

  ProgramBuilder& x_builder;
  LayoutWriter& x_events;
  StreamId x_compute;
  Segment x_segment;
  std::vector<EventRef> x_pending;
  int x_last = -1;
};

/// A buffer lives from here to `release_kept`: of no time, on no data. Nothing where it is invalid.
void keep_until_released(SegmentWriter& w, const std::string& name, const Ref& kept);
void release_kept(SegmentWriter& w, const std::string& name, const Ref& kept);

/// The layouts that `Passes` (LayerSegments, EndSegments) were written into, now complete.
template <typename Passes>
Passes closed_layouts(ProgramBuilder& builder, LayoutWriter& saved, LayoutWriter& forward,
                      LayoutWriter& backward) {
  Passes out;
  out.saved = builder.layout(saved.layout());
  out.local_forward = builder.layout(forward.layout());
  out.local_backward = builder.layout(backward.layout());
  return out;
}

}  // namespace foretrain
