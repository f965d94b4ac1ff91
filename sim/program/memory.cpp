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

/// Calls visit(call, op, buffer, +1 or -1) for every allocation and free in `where`, in issue
/// order.
template <typename Visit>
void walk(const Program& program, Memory where, Visit visit) {
  if (!uses(program, where)) return;
  for (std::size_t c = 0; c < program.calls.size(); ++c) {
    const Call& call = program.calls[c];
    const Segment& segment = program.segments[call.segment.index()];
    for (std::size_t o = 0; o < segment.ops.size(); ++o) {
      const Op& op = segment.ops[o];
      const auto each = [&](const std::vector<BufferRef>& refs, int sign) {
        for (const BufferRef& ref : refs) {
          const Buffer& buffer = buffer_of(program, call, ref);
          if (buffer.memory == where) visit(c, o, buffer, sign);
        }
      };
      each(op.allocates, 1);
      each(op.frees, -1);
    }
  }
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
  walk(program, where, [&](std::size_t c, std::size_t o, const Buffer& buffer, int sign) {
    const Bytes bytes = buffer.bytes() * sign;
    live[static_cast<std::size_t>(buffer.kind)] += bytes;
    now += bytes;
    if (buffer.saved) saved += bytes;
    peak.saved = std::max(peak.saved, saved);
    if (now <= peak.bytes) return;
    peak.bytes = now;
    peak.by_kind = live;
    peak.call = static_cast<std::int32_t>(c);
    peak.op = static_cast<std::int32_t>(o);
  });
  return peak;
}

std::vector<MemoryChange> memory_changes(const Program& program) {
  std::vector<MemoryChange> out;
  walk(program, Memory::kDevice,
       [&out](std::size_t c, std::size_t o, const Buffer& buffer, int sign) {
         out.push_back(MemoryChange{static_cast<std::int32_t>(c), static_cast<std::int32_t>(o),
                                    buffer.kind, buffer.bytes() * sign});
       });
  return out;
}

}  // namespace foretrain
