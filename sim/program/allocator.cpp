#include "sim/program/allocator.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <utility>
#include <vector>

namespace foretrain {
namespace {

constexpr std::int32_t kNoBlock = -1;

/// Part of a segment.
struct Block {
  Bytes size = 0;
  Bytes unmapped = 0;  ///< of a free block that was given back in part
  std::int32_t before = kNoBlock, after = kNoBlock;  ///< neighbours in the segment
  bool free = false;
  std::uint8_t pool = 0;  ///< 2 x the buffers' pool + (0: small blocks, 1: large ones)
  bool small() const { return pool % 2 == 0; }
};

Bytes rounded_up(Bytes bytes, Bytes to) { return (bytes + to - 1) / to * to; }

class Allocator {
 public:
  Allocator(const AllocatorRules& rules, Bytes limit) : x_rules(rules), x_limit(limit) {}

  /// The block's index; kNoBlock where there is no room.
  std::int32_t allocate(Bytes bytes, std::int8_t of_pool) {
    const Bytes size = rounded_up(std::max<Bytes>(bytes, 1), x_rules.round);
    const bool small = size <= x_rules.small_limit;
    const auto pool = static_cast<std::uint8_t>(2 * of_pool + (small ? 0 : 1));
    std::int32_t block = take_free(pool, size);
    if (block == kNoBlock && lacks_room(small, size)) heard(x_call);
    if (block == kNoBlock) block = take_segment(pool, size);
    if (block == kNoBlock || !map(block, size)) return kNoBlock;
    const Bytes rest = x_blocks[at(block)].size - size;
    const bool splits =
        small || x_rules.expandable ? rest >= x_rules.round : rest > x_rules.small_limit;
    if (splits) split(block, size);
    x_allocated += x_blocks[at(block)].size;
    x_use.allocated = std::max(x_use.allocated, x_allocated);
    return block;
  }

  void release(std::int32_t block) {
    Block& b = x_blocks[at(block)];
    x_allocated -= b.size;
    if (b.before != kNoBlock && x_blocks[at(b.before)].free) {
      unlist(b.before);
      block = joined(b.before, block);
    }
    const std::int32_t after = x_blocks[at(block)].after;
    if (after != kNoBlock && x_blocks[at(after)].free) {
      unlist(after);
      joined(block, after);
    }
    list(block);
  }

  /// Free once the host has heard that call `number`, the one that is entered, is over.
  void hold(std::int32_t block) { x_held.push_back(Held{x_call, block}); }

  /// The host knows that all calls up to `number` are over.
  void heard(std::int32_t number) {
    while (!x_held.empty() && x_held.front().call <= number) {
      const std::int32_t block = x_held.front().block;
      x_held.pop_front();
      release(block);
    }
  }

  /// Calls are numbered anew, and retries counted.
  void next_step() {
    x_use.retries.clear();
    for (Held& held : x_held) held.call = -1;
  }
  /// What is allocated from now on is so by call `number`.
  void enter(std::size_t number) { x_call = static_cast<std::int32_t>(number); }
  const AllocatorUse& use() const { return x_use; }

 private:
  struct Held {
    std::int32_t call, block;
  };
  /// Free blocks of a pool by size, then in the order in which they came.
  struct Free {
    Bytes size;
    std::int32_t block;
    bool operator<(const Free& other) const {
      return size != other.size ? size < other.size : block < other.block;
    }
  };

  static std::size_t at(std::int32_t block) { return static_cast<std::size_t>(block); }

  std::vector<Free>& pool(std::uint8_t index) { return x_free[static_cast<std::size_t>(index)]; }

  void list(std::int32_t block) {
    Block& b = x_blocks[at(block)];
    b.free = true;
    const Free free{b.size, block};
    std::vector<Free>& of = pool(b.pool);
    of.insert(std::lower_bound(of.begin(), of.end(), free), free);
  }

  void unlist(std::int32_t block) {
    Block& b = x_blocks[at(block)];
    b.free = false;
    std::vector<Free>& of = pool(b.pool);
    of.erase(std::lower_bound(of.begin(), of.end(), Free{b.size, block}));
  }

  std::int32_t new_block(const Block& block) {
    if (x_unused.empty()) {
      x_blocks.push_back(block);
      return static_cast<std::int32_t>(x_blocks.size()) - 1;
    }
    const std::int32_t index = x_unused.back();
    x_unused.pop_back();
    x_blocks[at(index)] = block;
    return index;
  }

  std::int32_t take_free(std::uint8_t from, Bytes size) {
    const std::vector<Free>& free = pool(from);
    const auto found = std::lower_bound(free.begin(), free.end(), Free{size, kNoBlock});
    if (found == free.end()) return kNoBlock;
    const std::int32_t block = found->block;
    unlist(block);
    return block;
  }

  Bytes segment_size(bool small, Bytes size) const {
    if (small) return x_rules.small_segment;
    if (size < x_rules.middle_limit) return x_rules.middle_segment;
    return rounded_up(size, x_rules.large_round);
  }

  std::int32_t take_segment(std::uint8_t of, Bytes size) {
    if (x_rules.expandable) return grow(of, size);
    const Bytes segment = segment_size(of % 2 == 0, size);
    if (!has_room(segment)) return kNoBlock;
    Block block;
    block.size = segment;
    block.pool = of;
    add_reserved(segment);
    return new_block(block);
  }

  /// Whether memory would have to be given back for a block of `size`, which waits for the device.
  bool lacks_room(bool small, Bytes size) const {
    const Bytes more =
        x_rules.expandable ? rounded_up(size, page_of(small)) : segment_size(small, size);
    return x_limit > 0 && x_reserved + more > x_limit;
  }

  /// The pool's one segment becomes longer, its last block large enough.
  std::int32_t grow(std::uint8_t of, Bytes size) {
    std::int32_t& last = x_last[static_cast<std::size_t>(of)];
    const bool joins = last != kNoBlock && x_blocks[at(last)].free;
    const Bytes has = joins ? x_blocks[at(last)].size : 0;
    const Bytes more = rounded_up(size - has, page_of(of % 2 == 0));
    if (!has_room(more)) return kNoBlock;
    add_reserved(more);
    if (joins) {
      unlist(last);
      x_blocks[at(last)].size += more;
      return last;
    }
    Block block;
    block.size = more;
    block.pool = of;
    block.before = last;
    const std::int32_t index = new_block(block);
    if (last != kNoBlock) x_blocks[at(last)].after = index;
    last = index;
    return index;
  }

  /// Maps again what of the taken block's first `size` bytes had been given back.
  bool map(std::int32_t block, Bytes size) {
    const Bytes lacking = size - (x_blocks[at(block)].size - x_blocks[at(block)].unmapped);
    if (lacking <= 0) return true;
    const Bytes page = page_of(x_blocks[at(block)].small());
    const Bytes more = std::min(rounded_up(lacking, page), x_blocks[at(block)].unmapped);
    if (!has_room(more)) {
      list(block);
      return false;
    }
    add_reserved(more);
    x_blocks[at(block)].unmapped -= more;
    return true;
  }

  Bytes page_of(bool small) const { return small ? x_rules.small_segment : x_rules.middle_segment; }

  /// Whether so much can be had, at worst after what is free is given back: whole segments, or
  /// whole pages of those that can grow.
  bool has_room(Bytes bytes) {
    if (x_limit == 0 || x_reserved + bytes <= x_limit) return true;
    const Bytes before = x_reserved;
    for (std::vector<Free>& free : x_free) {
      std::erase_if(free, [this](const Free& f) {
        Block& b = x_blocks[at(f.block)];
        const bool whole = b.before == kNoBlock && b.after == kNoBlock && !x_rules.expandable;
        if (x_rules.expandable) give_back_pages(b);
        if (whole) {
          x_reserved -= b.size;
          x_unused.push_back(f.block);
        }
        return whole;
      });
    }
    x_use.retries.push_back({x_call, before - x_reserved});
    x_use.fits = x_use.fits && x_reserved + bytes <= x_limit;
    return x_reserved + bytes <= x_limit;
  }

  void give_back_pages(Block& free) {
    const Bytes page = page_of(free.small());
    const Bytes pages = (free.size - free.unmapped) / page * page;
    x_reserved -= pages;
    free.unmapped += pages;
  }

  void add_reserved(Bytes bytes) {
    x_reserved += bytes;
    x_use.reserved = std::max(x_use.reserved, x_reserved);
  }

  /// Cuts `block` to `size`; the rest is free.
  void split(std::int32_t block, Bytes size) {
    Block rest = x_blocks[at(block)];
    rest.size -= size;
    rest.before = block;
    const std::int32_t index = new_block(rest);
    if (rest.after != kNoBlock) x_blocks[at(rest.after)].before = index;
    x_blocks[at(block)].size = size;
    x_blocks[at(block)].unmapped = 0;
    x_blocks[at(block)].after = index;
    std::int32_t& last = x_last[static_cast<std::size_t>(rest.pool)];
    if (last == block) last = index;
    list(index);
  }

  /// `second` becomes part of `first`, its neighbour before.
  std::int32_t joined(std::int32_t first, std::int32_t second) {
    Block& to = x_blocks[at(first)];
    const Block& from = x_blocks[at(second)];
    to.size += from.size;
    to.unmapped += from.unmapped;
    to.after = from.after;
    if (from.after != kNoBlock) x_blocks[at(from.after)].before = first;
    std::int32_t& last = x_last[static_cast<std::size_t>(to.pool)];
    if (last == second) last = first;
    x_unused.push_back(second);
    return first;
  }

  AllocatorRules x_rules;
  Bytes x_limit, x_reserved = 0, x_allocated = 0;
  std::int32_t x_call = 0;
  AllocatorUse x_use;
  std::vector<Block> x_blocks;
  std::vector<std::int32_t> x_unused;
  std::deque<Held> x_held;  ///< in the order of their calls
  static constexpr std::size_t kPools = 2 * Buffer::kPools;
  std::array<std::vector<Free>, kPools> x_free;  ///< sorted: few blocks are free at once
  std::vector<std::int32_t> x_last =
      std::vector<std::int32_t>(kPools, kNoBlock);  ///< end of a pool's expandable segment
};

/// Where the blocks of a Program's buffers are.
class Places {
 public:
  explicit Places(const Program& program) {
    x_first.reserve(program.frames.size());
    std::size_t buffers = 0;
    for (const Frame& frame : program.frames) {
      x_first.push_back(buffers);
      buffers += program.layouts[frame.layout.index()].buffers.size();
    }
    x_block.assign(buffers, kNoBlock);
  }

  std::int32_t& of(FrameId frame, std::size_t buffer) {
    return x_block[x_first[frame.index()] + buffer];
  }

 private:
  std::vector<std::size_t> x_first;
  std::vector<std::int32_t> x_block;
};

void allocate_persistent(const Program& program, Places& places, Allocator& allocator) {
  for (std::size_t f = 0; f < program.frames.size(); ++f) {
    if (program.frames[f].alias_of.valid()) continue;
    const FrameId frame{static_cast<std::int32_t>(f)};
    const auto& buffers = program.layouts[program.frames[f].layout.index()].buffers;
    for (std::size_t b = 0; b < buffers.size(); ++b) {
      if (!buffers[b].persistent || buffers[b].memory != Memory::kDevice) continue;
      places.of(frame, b) = allocator.allocate(buffers[b].bytes(), buffers[b].pool);
      if (!allocator.use().fits) return;
    }
  }
}

/// What of other streams' work the host knows to be over, call by call.
class Hearing {
 public:
  explicit Hearing(const Program& program) : x_program(program) {}

  /// Before call `c`: the host waits for what a gather waits for.
  void enter(std::size_t c, Allocator& allocator) const {
    const Call& call = x_program.calls[c];
    if (call.waits.empty() || !gathers(call)) return;
    std::int32_t last = -1;
    for (const StreamWait& wait : call.waits) {
      const auto found = x_recorded.find({wait.frame, wait.event});
      if (found != x_recorded.end()) last = std::max(last, found->second);
    }
    allocator.heard(last);
  }

  void leave(std::size_t c, Allocator& allocator) {
    const Call& call = x_program.calls[c];
    const auto number = static_cast<std::int32_t>(c);
    for (const Op& op : x_program.segments[call.segment.index()].ops) {
      const bool waits = std::holds_alternative<HostSync>(x_program.works[op.work.index()]);
      if (waits) allocator.heard(number);
      if (!op.records.valid()) continue;
      const FrameId frame = call.frames[static_cast<std::size_t>(op.records.frame)];
      x_recorded[{frame, op.records.event}] = number;
    }
  }

 private:
  bool gathers(const Call& call) const {
    for (const Op& op : x_program.segments[call.segment.index()].ops) {
      for (const BufferRef& ref : op.allocates) {
        const FrameId frame = call.frames[static_cast<std::size_t>(ref.frame)];
        const FrameLayout& layout =
            x_program.layouts[x_program.frames[frame.index()].layout.index()];
        const Buffer& buffer = layout.buffers[static_cast<std::size_t>(ref.buffer)];
        if (buffer.pool == Buffer::kGatherPool) return true;
      }
    }
    return false;
  }

  const Program& x_program;
  std::map<std::pair<FrameId, std::int16_t>, std::int32_t> x_recorded;  ///< by which call
};

/// What the ops of a segment do to buffers of the device, in order.
struct BufferStep {
  bool takes = false;  ///< else gives back
  std::int8_t pool = 0;
  BufferRef ref;
  Bytes bytes = 0;
};

std::vector<BufferStep> buffer_steps(const Program& program, const Segment& segment) {
  std::vector<BufferStep> out;
  const auto add = [&](const BufferRef& ref, bool takes) {
    const LayoutId layout = segment.frames[static_cast<std::size_t>(ref.frame)];
    const Buffer& buffer =
        program.layouts[layout.index()].buffers[static_cast<std::size_t>(ref.buffer)];
    if (buffer.memory != Memory::kDevice) return;
    out.push_back({takes, buffer.pool, ref, buffer.bytes()});
  };
  for (const Op& op : segment.ops) {
    for (const BufferRef& ref : op.allocates) add(ref, true);
    for (const BufferRef& ref : op.frees) add(ref, false);
  }
  return out;
}

/// The blocks of one step, call by call.
class Walk {
 public:
  Walk(const Program& program, bool records_streams, Places& places, Allocator& allocator)
      : x_program(program),
        x_records_streams(records_streams),
        x_places(places),
        x_allocator(allocator) {
    x_steps.reserve(program.segments.size());
    for (const Segment& segment : program.segments) {
      x_steps.push_back(buffer_steps(program, segment));
    }
  }

  void run() {
    Hearing hearing(x_program);
    for (std::size_t c = 0; c < x_program.calls.size(); ++c) {
      const Call& call = x_program.calls[c];
      x_allocator.enter(c);
      if (x_records_streams) hearing.enter(c, x_allocator);
      for (const BufferStep& step : x_steps[call.segment.index()]) {
        const FrameId frame = call.frames[static_cast<std::size_t>(step.ref.frame)];
        std::int32_t& block = x_places.of(frame, static_cast<std::size_t>(step.ref.buffer));
        if (step.takes) {
          block = x_allocator.allocate(step.bytes, step.pool);
          if (!x_allocator.use().fits) return;
        } else {
          give_back(block, step.pool);
        }
      }
      if (x_records_streams) hearing.leave(c, x_allocator);
    }
  }

 private:
  void give_back(std::int32_t& block, std::int8_t pool) {
    if (block == kNoBlock) return;
    if (x_records_streams && pool != 0) {
      x_allocator.hold(block);
    } else {
      x_allocator.release(block);
    }
    block = kNoBlock;
  }

  const Program& x_program;
  bool x_records_streams;
  Places& x_places;
  Allocator& x_allocator;
  std::vector<std::vector<BufferStep>> x_steps;  ///< by segment
};

}  // namespace

AllocatorUse caching_allocator(const Program& program, const AllocatorRules& rules, Bytes limit) {
  Places places(program);
  Allocator allocator(rules, limit);
  Walk step(program, rules.records_streams, places, allocator);
  allocate_persistent(program, places, allocator);
  if (allocator.use().fits) step.run();
  allocator.next_step();
  if (allocator.use().fits) step.run();
  return allocator.use();
}

}  // namespace foretrain
