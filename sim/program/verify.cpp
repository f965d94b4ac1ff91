#include "sim/program/verify.h"

#include <algorithm>
#include <map>
#include <set>

namespace foretrain {
namespace {

/// How far each other stream is known to have come: by stream, the number of its ops that are done.
using Clock = std::vector<std::int32_t>;

void merge(Clock& into, const Clock& other) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], other[i]);
}

struct Access {
  std::int32_t stream = 0, sequence = 0;  ///< the op's number on its stream, from 1
  Bytes begin = 0, end = 0;
};

struct BufferState {
  bool live = false;
  std::vector<Access> allocation;  ///< the op that makes room; none for what lives throughout
  std::vector<Access> writes, reads;
};

/// Where a view really lies: the owning buffer and the interval in it.
struct Place {
  std::size_t buffer = 0;
  Bytes begin = 0, end = 0;
};

class ProgramChecker {
 public:
  explicit ProgramChecker(const Program& program) : x_program(program) {}

  Status run() {
    FT_TRY(check_ids());
    set_up();
    for (std::size_t c = 0; c < x_program.calls.size(); ++c) FT_TRY(check_call(c));
    return check_end();
  }

 private:
  Error wrong(const std::string& text) const {
    return input_error("program " + x_program.name + ": " + x_where + text);
  }

  Status check_ids() {
    FT_TRY(check_frames());
    for (const Segment& segment : x_program.segments) {
      x_where = "segment " + segment.name + ": ";
      for (const LayoutId layout : segment.frames) {
        if (layout.index() >= x_program.layouts.size()) return wrong("no such layout");
      }
      for (const Op& op : segment.ops) {
        x_where = "segment " + segment.name + " op " + op.name + ": ";
        if (op.stream.index() >= x_program.streams.size()) return wrong("no such stream");
        if (op.work.index() >= x_program.works.size()) return wrong("no such work");
        for (const auto* views : {&op.reads, &op.writes}) {
          for (const View& view : *views) FT_TRY(check_view(segment, view));
        }
        FT_TRY(check_refs(segment, op));
        FT_TRY(check_bytes(op));
      }
    }
    return check_calls();
  }

  Status check_frames() {
    const auto bytes_of = [this](const Frame& frame) {
      Bytes sum = 0;
      for (const Buffer& buffer : x_program.layouts[frame.layout.index()].buffers) {
        sum += buffer.bytes();
      }
      return sum;
    };
    for (std::size_t f = 0; f < x_program.frames.size(); ++f) {
      if (x_program.frames[f].layout.index() >= x_program.layouts.size()) {
        return wrong("frame " + std::to_string(f) + " has no such layout");
      }
    }
    for (std::size_t f = 0; f < x_program.frames.size(); ++f) {
      const Frame& frame = x_program.frames[f];
      if (!frame.alias_of.valid()) continue;
      x_where = "frame " + std::to_string(f) + ": ";
      if (frame.alias_of.index() >= x_program.frames.size() ||
          x_program.frames[frame.alias_of.index()].alias_of.valid()) {
        return wrong("is an alias of no frame that owns memory");
      }
      const FrameLayout& owner =
          x_program.layouts[x_program.frames[frame.alias_of.index()].layout.index()];
      const auto b = static_cast<std::size_t>(frame.alias_buffer);
      if (frame.alias_buffer < 0 || b >= owner.buffers.size() || frame.alias_offset < 0 ||
          frame.alias_offset + bytes_of(frame) > owner.buffers[b].bytes()) {
        return wrong("an alias leaves the buffer that it lies in");
      }
    }
    return ok_status();
  }

  Status check_calls() {
    for (const Call& call : x_program.calls) {
      x_where = "call: ";
      if (call.segment.index() >= x_program.segments.size()) return wrong("no such segment");
      const Segment& segment = x_program.segments[call.segment.index()];
      x_where = "call of " + segment.name + ": ";
      if (call.frames.size() != segment.frames.size()) return wrong("wrong number of frames");
      FT_TRY(check_call_frames(segment, call));
      FT_TRY(check_bound(segment, call));
      for (const StreamWait& wait : call.waits) {
        if (wait.stream.index() >= x_program.streams.size()) return wrong("no such stream");
        if (wait.frame.index() >= x_program.frames.size()) return wrong("no such frame");
        const LayoutId layout = x_program.frames[wait.frame.index()].layout;
        if (!has_event(layout, wait.event)) return wrong("waits for an event that does not exist");
      }
    }
    x_where.clear();
    return ok_status();
  }

  Status check_call_frames(const Segment& segment, const Call& call) const {
    for (std::size_t f = 0; f < call.frames.size(); ++f) {
      if (!call.frames[f].valid()) continue;
      if (call.frames[f].index() >= x_program.frames.size()) return wrong("no such frame");
      if (x_program.frames[call.frames[f].index()].layout != segment.frames[f]) {
        return wrong("frame " + std::to_string(f) + " has another layout than its segment's");
      }
    }
    return ok_status();
  }

  bool has_event(LayoutId layout, std::int16_t event) const {
    return event >= 0 &&
           static_cast<std::size_t>(event) < x_program.layouts[layout.index()].events.size();
  }

  /// Events and buffers that an op names beside its views.
  Status check_refs(const Segment& segment, const Op& op) const {
    const auto has_frame = [&segment](std::int16_t frame) {
      return frame >= 0 && static_cast<std::size_t>(frame) < segment.frames.size();
    };
    const auto layout_of = [&segment](std::int16_t frame) {
      return segment.frames[static_cast<std::size_t>(frame)];
    };
    for (const auto* buffers : {&op.allocates, &op.frees}) {
      for (const BufferRef& ref : *buffers) {
        if (!has_frame(ref.frame) || ref.buffer < 0 ||
            static_cast<std::size_t>(ref.buffer) >=
                x_program.layouts[layout_of(ref.frame).index()].buffers.size()) {
          return wrong("allocates or frees a buffer that does not exist");
        }
      }
    }
    for (const EventRef& ref : op.waits) {
      if (!has_frame(ref.frame) || !has_event(layout_of(ref.frame), ref.event)) {
        return wrong("waits for an event that does not exist");
      }
    }
    if (op.records.valid() && (!has_frame(op.records.frame) ||
                               !has_event(layout_of(op.records.frame), op.records.event))) {
      return wrong("records an event that does not exist");
    }
    return ok_status();
  }

  /// Every formal frame that the segment's ops use is bound by the call.
  Status check_bound(const Segment& segment, const Call& call) const {
    const auto bound = [&call](std::int16_t frame) {
      return call.frames[static_cast<std::size_t>(frame)].valid();
    };
    for (const Op& op : segment.ops) {
      bool all = !op.records.valid() || bound(op.records.frame);
      for (const View& view : op.reads) all = all && bound(view.frame);
      for (const View& view : op.writes) all = all && bound(view.frame);
      for (const BufferRef& ref : op.allocates) all = all && bound(ref.frame);
      for (const BufferRef& ref : op.frees) all = all && bound(ref.frame);
      for (const EventRef& ref : op.waits) all = all && bound(ref.frame);
      if (!all) return wrong("op " + op.name + " uses a frame that the call does not bind");
    }
    return ok_status();
  }

  Status check_view(const Segment& segment, const View& view) const {
    if (view.frame < 0 || static_cast<std::size_t>(view.frame) >= segment.frames.size()) {
      return wrong("a view names a frame that the segment does not have");
    }
    const FrameLayout& layout =
        x_program.layouts[segment.frames[static_cast<std::size_t>(view.frame)].index()];
    if (view.buffer < 0 || static_cast<std::size_t>(view.buffer) >= layout.buffers.size()) {
      return wrong("a view names a buffer that layout " + layout.name + " does not have");
    }
    const Bytes size = layout.buffers[static_cast<std::size_t>(view.buffer)].bytes();
    if (view.offset < 0 || view.bytes < 0 || view.shards < 1 || view.hops < 0 ||
        view.hops > view.shards || view.offset + view.bytes * view.shards > size) {
      return wrong("a view [" + std::to_string(view.offset) + " + " + std::to_string(view.bytes) +
                   " x " + std::to_string(view.shards) + "] leaves buffer " +
                   layout.buffers[static_cast<std::size_t>(view.buffer)].name + " of " +
                   std::to_string(size) + " bytes");
    }
    return ok_status();
  }

  Status check_bytes(const Op& op) const {
    const auto* kernel = std::get_if<Kernel>(&x_program.works[op.work.index()]);
    if (kernel == nullptr) return ok_status();
    if (kernel_bytes(*kernel, op) != kernel->bytes)
      return wrong("a kernel's bytes are not those of its operands");
    return ok_status();
  }

  void set_up() {
    std::size_t buffers = 0;
    std::size_t events = 0;
    for (const Frame& frame : x_program.frames) {
      x_buffer_base.push_back(buffers);
      x_event_base.push_back(events);
      buffers += x_program.layouts[frame.layout.index()].buffers.size();
      events += x_program.layouts[frame.layout.index()].events.size();
    }
    x_buffers.resize(buffers);
    x_events.resize(events);
    for (std::size_t f = 0; f < x_program.frames.size(); ++f) {
      const FrameLayout& layout = x_program.layouts[x_program.frames[f].layout.index()];
      for (std::size_t b = 0; b < layout.buffers.size(); ++b) {
        BufferState& state = x_buffers[x_buffer_base[f] + b];
        if (!layout.buffers[b].persistent) continue;
        state.live = true;
        state.writes.push_back(Access{0, 0, 0, layout.buffers[b].bytes()});
      }
    }
    x_clocks.assign(x_program.streams.size(), Clock(x_program.streams.size(), 0));
    x_count.assign(x_program.streams.size(), 0);
  }

  /// A rank's own shard stands for all of them, as other ops may name a part of the array by its
  /// place. Where shards are named by hops they are those that the first member sees.
  Place place_of(const Call& call, const View& view) const {
    const FrameId id = call.frames[static_cast<std::size_t>(view.frame)];
    const Frame& frame = x_program.frames[id.index()];
    const bool own = view.hops == 0;
    const Bytes begin = view.offset + (own ? 0 : view.bytes * (view.shards - view.hops));
    const Bytes end = own ? view.offset + view.bytes * view.shards : begin + view.bytes;
    if (!frame.alias_of.valid()) {
      return {x_buffer_base[id.index()] + static_cast<std::size_t>(view.buffer), begin, end};
    }
    Bytes base = frame.alias_offset;
    const FrameLayout& layout = x_program.layouts[frame.layout.index()];
    for (std::int16_t b = 0; b < view.buffer; ++b) {
      base += layout.buffers[static_cast<std::size_t>(b)].bytes();
    }
    const std::size_t owner =
        x_buffer_base[frame.alias_of.index()] + static_cast<std::size_t>(frame.alias_buffer);
    return {owner, base + begin, base + end};
  }

  Status check_call(std::size_t c) {
    const Call& call = x_program.calls[c];
    const Segment& segment = x_program.segments[call.segment.index()];
    x_where = "call " + std::to_string(c) + " of " + segment.name + ": ";
    for (const StreamWait& wait : call.waits) {
      FT_TRY(wait_for(wait.stream,
                      x_event_base[wait.frame.index()] + static_cast<std::size_t>(wait.event)));
    }
    for (const Op& op : segment.ops) {
      x_where = "call " + std::to_string(c) + " of " + segment.name + " layer " +
                std::to_string(call.layer) + " microbatch " + std::to_string(call.microbatch) +
                ", op " + op.name + ": ";
      FT_TRY(check_op(call, op));
    }
    return ok_status();
  }

  Status wait_for(StreamId stream, std::size_t event) {
    if (x_events[event].empty()) return wrong("waits for an event that is not recorded yet");
    merge(x_clocks[stream.index()], x_events[event]);
    return ok_status();
  }

  std::size_t event_of(const Call& call, EventRef ref) const {
    return x_event_base[call.frames[static_cast<std::size_t>(ref.frame)].index()] +
           static_cast<std::size_t>(ref.event);
  }

  Status check_op(const Call& call, const Op& op) {
    const std::size_t s = op.stream.index();
    for (const EventRef& ref : op.waits) FT_TRY(wait_for(op.stream, event_of(call, ref)));
    const std::int32_t sequence = ++x_count[s];
    for (const BufferRef& ref : op.allocates) FT_TRY(allocate(call, ref, s, sequence));
    for (const View& view : op.reads) FT_TRY(read(call, view, s, sequence));
    for (const View& view : op.writes) FT_TRY(write(call, view, s, sequence));
    for (const BufferRef& ref : op.frees) FT_TRY(release(call, ref, s, sequence));
    x_clocks[s][s] = sequence;
    if (op.records.valid()) {
      Clock& event = x_events[event_of(call, op.records)];
      if (!event.empty()) return wrong("records an event a second time");
      event = x_clocks[s];
    }
    return ok_status();
  }

  BufferState& state_of(const Call& call, const BufferRef& ref) {
    const FrameId frame = call.frames[static_cast<std::size_t>(ref.frame)];
    return x_buffers[x_buffer_base[frame.index()] + static_cast<std::size_t>(ref.buffer)];
  }

  Status allocate(const Call& call, const BufferRef& ref, std::size_t s, std::int32_t sequence) {
    BufferState& state = state_of(call, ref);
    if (state.live) return wrong("allocates a buffer that is live");
    state.live = true;
    state.allocation = {
        Access{static_cast<std::int32_t>(s), sequence, 0, std::numeric_limits<Bytes>::max()}};
    return ok_status();
  }

  Status release(const Call& call, const BufferRef& ref, std::size_t s, std::int32_t sequence) {
    BufferState& state = state_of(call, ref);
    if (!state.live) return wrong("frees a buffer that is not live");
    const FrameId frame = call.frames[static_cast<std::size_t>(ref.frame)];
    const FrameLayout& layout = x_program.layouts[x_program.frames[frame.index()].layout.index()];
    if (layout.buffers[static_cast<std::size_t>(ref.buffer)].persistent) {
      return wrong("frees a persistent buffer");
    }
    const Access whole{static_cast<std::int32_t>(s), sequence, 0,
                       std::numeric_limits<Bytes>::max()};
    FT_TRY(ordered(state.writes, whole, "is freed while it may still be written"));
    FT_TRY(ordered(state.reads, whole, "is freed while it may still be read"));
    state = BufferState{};
    return ok_status();
  }

  Status ordered(const std::vector<Access>& earlier, const Access& now, const char* what) const {
    for (const Access& access : earlier) {
      if (access.end <= now.begin || now.end <= access.begin) continue;
      if (access.stream == now.stream) continue;
      const Clock& clock = x_clocks[static_cast<std::size_t>(now.stream)];
      if (access.sequence <= clock[static_cast<std::size_t>(access.stream)]) continue;
      return wrong(std::string("race: a buffer ") + what + " on stream " +
                   x_program.streams[static_cast<std::size_t>(access.stream)]);
    }
    return ok_status();
  }

  Status read(const Call& call, const View& view, std::size_t s, std::int32_t sequence) {
    const Place place = place_of(call, view);
    BufferState& state = x_buffers[place.buffer];
    if (!state.live) return wrong("reads " + name_of(call, view) + ", which is not live");
    const Access now{static_cast<std::int32_t>(s), sequence, place.begin, place.end};
    if (!covered(state.writes, place)) {
      return wrong("reads " + name_of(call, view) + ", parts of which nothing has written");
    }
    FT_TRY(ordered(state.writes, now, "is read while it may still be written"));
    // One entry a stream and interval is enough: a later read of the same bytes covers the earlier.
    for (Access& access : state.reads) {
      if (access.stream != now.stream || access.begin != now.begin || access.end != now.end)
        continue;
      access.sequence = sequence;
      return ok_status();
    }
    state.reads.push_back(now);
    return ok_status();
  }

  Status write(const Call& call, const View& view, std::size_t s, std::int32_t sequence) {
    const Place place = place_of(call, view);
    BufferState& state = x_buffers[place.buffer];
    if (!state.live) return wrong("writes " + name_of(call, view) + ", which is not live");
    const Access now{static_cast<std::int32_t>(s), sequence, place.begin, place.end};
    FT_TRY(ordered(state.allocation, now, "is written before there may be room for it"));
    FT_TRY(ordered(state.writes, now, "is written while it may still be written"));
    FT_TRY(ordered(state.reads, now, "is written while it may still be read"));
    const auto inside = [&now](const Access& access) {
      return access.begin >= now.begin && access.end <= now.end;
    };
    std::erase_if(state.writes, inside);
    std::erase_if(state.reads, inside);
    state.writes.push_back(now);
    return ok_status();
  }

  static bool covered(const std::vector<Access>& writes, const Place& place) {
    Bytes reached = place.begin;
    bool grown = true;
    while (reached < place.end && grown) {
      grown = false;
      for (const Access& access : writes) {
        if (access.begin > reached || access.end <= reached) continue;
        reached = access.end;
        grown = true;
      }
    }
    return reached >= place.end;
  }

  std::string name_of(const Call& call, const View& view) const {
    const FrameId frame = call.frames[static_cast<std::size_t>(view.frame)];
    const FrameLayout& layout = x_program.layouts[x_program.frames[frame.index()].layout.index()];
    return layout.name + "." + layout.buffers[static_cast<std::size_t>(view.buffer)].name;
  }

  Status check_end() {
    x_where.clear();
    for (std::size_t f = 0; f < x_program.frames.size(); ++f) {
      const FrameLayout& layout = x_program.layouts[x_program.frames[f].layout.index()];
      for (std::size_t b = 0; b < layout.buffers.size(); ++b) {
        if (layout.buffers[b].persistent || !x_buffers[x_buffer_base[f] + b].live) continue;
        return wrong("buffer " + layout.name + "." + layout.buffers[b].name + " is never freed");
      }
    }
    return ok_status();
  }

  const Program& x_program;
  std::string x_where;
  std::vector<std::size_t> x_buffer_base, x_event_base;
  std::vector<BufferState> x_buffers;
  std::vector<Clock> x_events;  ///< what is done when the event fires; empty before it is recorded
  std::vector<Clock> x_clocks;  ///< by stream: what is done before its next op
  std::vector<std::int32_t> x_count;
};

}  // namespace

Status verify(const Program& program) { return ProgramChecker(program).run(); }

}  // namespace foretrain
