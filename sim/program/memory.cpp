#include "sim/program/memory.h"

#include <algorithm>

namespace foretrain {
namespace {

const Buffer& buffer_of(const Program& program, const Call& call, const BufferRef& ref) {
  const Frame& frame = program.frames[call.frames[static_cast<std::size_t>(ref.frame)].index()];
  return program.layouts[frame.layout.index()].buffers[static_cast<std::size_t>(ref.buffer)];
}

/// Few Programs keep anything beside the device.
bool uses(const Program& program, Memory where) {
  const auto lies_there = [where](const Buffer& buffer) { return buffer.memory == where; };
  return std::any_of(program.layouts.begin(), program.layouts.end(),
                     [&](const FrameLayout& layout) {
                       return std::any_of(layout.buffers.begin(), layout.buffers.end(), lies_there);
                     });
}

/// What an op of a segment takes (> 0) or gives back.
struct BufferChange {
  std::size_t op = 0;
  BufferKind kind = BufferKind::kActivations;
  bool saved = false;
  Bytes bytes = 0;
};

/// Those of a segment in `where`, in issue order: the same in all of its calls.
std::vector<BufferChange> changes_of(const Program& program, const Segment& segment, Memory where) {
  std::vector<BufferChange> out;
  for (std::size_t o = 0; o < segment.ops.size(); ++o) {
    const auto each = [&](const std::vector<BufferRef>& refs, int sign) {
      for (const BufferRef& ref : refs) {
        const LayoutId layout = segment.frames[static_cast<std::size_t>(ref.frame)];
        const Buffer& buffer =
            program.layouts[layout.index()].buffers[static_cast<std::size_t>(ref.buffer)];
        if (buffer.memory != where) continue;
        out.push_back({o, buffer.kind, buffer.saved, sign * buffer.bytes()});
      }
    };
    each(segment.ops[o].allocates, 1);
    each(segment.ops[o].frees, -1);
  }
  return out;
}

/// Calls visit(call, change) for every allocation and free in `where`, in issue order.
template <typename Visit>
void walk(const Program& program, Memory where, Visit visit) {
  if (!uses(program, where)) return;
  std::vector<std::vector<BufferChange>> of_segments;
  of_segments.reserve(program.segments.size());
  for (const Segment& segment : program.segments) {
    of_segments.push_back(changes_of(program, segment, where));
  }
  for (std::size_t c = 0; c < program.calls.size(); ++c) {
    for (const BufferChange& change : of_segments[program.calls[c].segment.index()])
      visit(c, change);
  }
}

bool same_memory(const Buffer& a, const Buffer& b) {
  return a.bytes() == b.bytes() && a.kind == b.kind && a.persistent == b.persistent &&
         a.saved == b.saved && a.memory == b.memory && a.pool == b.pool;
}

bool same_memory(const Frame& a, const Frame& b) {
  return a.layout == b.layout && a.alias_of == b.alias_of && a.alias_buffer == b.alias_buffer;
}

bool same_memory(const Call& a, const Call& b) {
  return a.segment == b.segment && a.frames == b.frames && a.waits == b.waits;
}

template <typename T, typename Same>
bool all_same(const std::vector<T>& a, const std::vector<T>& b, const Same& same) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

Bytes sum(const BytesByKind& kinds) {
  Bytes total = 0;
  for (const Bytes bytes : kinds) total += bytes;
  return total;
}

}  // namespace

BytesByKind persistent_bytes(const Program& program, Memory where) {
  BytesByKind out{};
  for (const Frame& frame : program.frames) {
    if (frame.alias_of.valid()) continue;
    for (const Buffer& buffer : program.layouts[frame.layout.index()].buffers) {
      if (buffer.persistent && buffer.memory == where) {
        out[static_cast<std::size_t>(buffer.kind)] += buffer.bytes();
      }
    }
  }
  return out;
}

bool same_memory(const Program& a, const Program& b) {
  const auto waits = [](const Program& program, const Op& op) {
    return std::holds_alternative<HostSync>(program.works[op.work.index()]);
  };
  const auto same_op = [&](const Op& x, const Op& y) {
    return x.allocates == y.allocates && x.frees == y.frees && x.records == y.records &&
           waits(a, x) == waits(b, y);
  };
  const auto same_segment = [&](const Segment& x, const Segment& y) {
    return x.frames == y.frames && all_same(x.ops, y.ops, same_op);
  };
  const auto same_layout = [](const FrameLayout& x, const FrameLayout& y) {
    return all_same(x.buffers, y.buffers,
                    [](const Buffer& p, const Buffer& q) { return same_memory(p, q); });
  };
  // Sizes first: most stages that differ do so in them.
  return a.calls.size() == b.calls.size() && a.frames.size() == b.frames.size() &&
         a.segments.size() == b.segments.size() && all_same(a.layouts, b.layouts, same_layout) &&
         all_same(a.frames, b.frames,
                  [](const Frame& x, const Frame& y) { return same_memory(x, y); }) &&
         all_same(a.segments, b.segments, same_segment) &&
         all_same(a.calls, b.calls, [](const Call& x, const Call& y) { return same_memory(x, y); });
}

bool keeps_level(const Program& program, const Rounds& rounds) {
  std::array<Bytes, 3 * static_cast<std::size_t>(BufferKind::kCount)> level{};
  Bytes saved = 0;
  for (std::int32_t c = rounds.at(rounds.count - 1); c < rounds.end(); ++c) {
    const Call& call = program.calls[static_cast<std::size_t>(c)];
    for (const Op& op : program.segments[call.segment.index()].ops) {
      const auto each = [&](const std::vector<BufferRef>& refs, int sign) {
        for (const BufferRef& ref : refs) {
          const Buffer& buffer = buffer_of(program, call, ref);
          level[3 * static_cast<std::size_t>(buffer.kind) +
                static_cast<std::size_t>(buffer.memory)] += sign * buffer.bytes();
          if (buffer.saved) saved += sign * buffer.bytes();
        }
      };
      each(op.allocates, 1);
      each(op.frees, -1);
    }
  }
  return saved == 0 && std::all_of(level.begin(), level.end(), [](Bytes b) { return b == 0; });
}

MemoryPeak memory_peak(const Program& program, Memory where) {
  MemoryPeak peak;
  BytesByKind live = persistent_bytes(program, where);
  Bytes now = sum(live);
  Bytes saved = 0;
  peak.bytes = peak.persistent = now;
  peak.by_kind = live;
  walk(program, where, [&](std::size_t c, const BufferChange& change) {
    live[static_cast<std::size_t>(change.kind)] += change.bytes;
    now += change.bytes;
    if (change.saved) saved += change.bytes;
    peak.saved = std::max(peak.saved, saved);
    if (now <= peak.bytes) return;
    peak.bytes = now;
    peak.by_kind = live;
    peak.call = static_cast<std::int32_t>(c);
    peak.op = static_cast<std::int32_t>(change.op);
  });
  return peak;
}

void each_memory_change(const Program& program,
                        const std::function<void(const MemoryChange&)>& visit) {
  walk(program, Memory::kDevice, [&visit](std::size_t c, const BufferChange& change) {
    visit({static_cast<std::int32_t>(c), static_cast<std::int32_t>(change.op), change.kind,
           change.bytes});
  });
}

std::vector<MemoryChange> memory_changes(const Program& program) {
  std::vector<MemoryChange> out;
  each_memory_change(program, [&out](const MemoryChange& change) { out.push_back(change); });
  return out;
}

}  // namespace foretrain
