#include "sim/program/allocator.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/base/rng.h"

namespace foretrain {
namespace {

constexpr std::int32_t kNoBlock = -1;

/// Part of a segment.
struct Block {
  std::int32_t segment = 0;
  Bytes offset = 0;  ///< in the segment
  Bytes size = 0;
  Bytes unmapped = 0;  ///< of a free block that was given back in part
  std::int32_t before = kNoBlock, after = kNoBlock;  ///< neighbours in the segment
  bool free = false;
  std::uint8_t pool = 0;  ///< 2 x the buffers' pool + (0: small blocks, 1: large ones)
  bool small() const { return pool % 2 == 0; }
};

Bytes rounded_up(Bytes bytes, Bytes to) { return (bytes + to - 1) / to * to; }

/// The blocks of all segments: neighbours, and those that are free, by pool.
class Blocks {
 public:
  Block& operator[](std::int32_t block) { return x_all[at(block)]; }
  const Block& operator[](std::int32_t block) const { return x_all[at(block)]; }
  /// The end of a pool's expandable segment.
  std::int32_t& last(std::uint8_t pool) { return x_last[static_cast<std::size_t>(pool)]; }

  void list(std::int32_t block) {
    Block& b = x_all[at(block)];
    b.free = true;
    const Free free = free_of(block);
    std::vector<Free>& of = pool(b.pool);
    of.insert(std::lower_bound(of.begin(), of.end(), free), free);
  }

  void unlist(std::int32_t block) {
    Block& b = x_all[at(block)];
    b.free = false;
    std::vector<Free>& of = pool(b.pool);
    of.erase(std::lower_bound(of.begin(), of.end(), free_of(block)));
  }

  std::int32_t add(const Block& block) {
    if (x_unused.empty()) {
      x_all.push_back(block);
      return static_cast<std::int32_t>(x_all.size()) - 1;
    }
    const std::int32_t index = x_unused.back();
    x_unused.pop_back();
    x_all[at(index)] = block;
    return index;
  }

  std::int32_t take_free(std::uint8_t from, Bytes size) {
    std::vector<Free>& free = pool(from);
    const auto found = std::lower_bound(free.begin(), free.end(), Free{size, -1, 0, kNoBlock});
    if (found == free.end()) return kNoBlock;
    const std::int32_t block = found->block;
    free.erase(found);
    x_all[at(block)].free = false;
    return block;
  }

  /// Cuts `block` to `size`; the rest is free.
  void split(std::int32_t block, Bytes size) {
    Block rest = x_all[at(block)];
    rest.offset += size;
    rest.size -= size;
    rest.before = block;
    const std::int32_t index = add(rest);
    if (rest.after != kNoBlock) x_all[at(rest.after)].before = index;
    x_all[at(block)].size = size;
    x_all[at(block)].unmapped = 0;
    x_all[at(block)].after = index;
    std::int32_t& last = x_last[static_cast<std::size_t>(rest.pool)];
    if (last == block) last = index;
    list(index);
  }

  /// `second` becomes part of `first`, its neighbour before.
  std::int32_t joined(std::int32_t first, std::int32_t second) {
    Block& to = x_all[at(first)];
    const Block& from = x_all[at(second)];
    to.size += from.size;
    to.unmapped += from.unmapped;
    to.after = from.after;
    if (from.after != kNoBlock) x_all[at(from.after)].before = first;
    std::int32_t& last = x_last[static_cast<std::size_t>(to.pool)];
    if (last == second) last = first;
    x_unused.push_back(second);
    return first;
  }

  /// Forgets the free blocks for which `drop` says so.
  template <typename Drop>
  void drop_free_if(const Drop& drop) {
    for (std::vector<Free>& of_pool : x_free) {
      std::erase_if(of_pool, [&](const Free& free) {
        const bool drops = drop(x_all[at(free.block)]);
        if (drops) x_unused.push_back(free.block);
        return drops;
      });
    }
  }

  /// Where a block is, as one number.
  std::uint64_t address(std::int32_t block) const {
    if (block == kNoBlock) return 0;
    const Block& b = x_all[at(block)];
    return mix_u64(static_cast<std::uint64_t>(b.segment) + 1, static_cast<std::uint64_t>(b.offset));
  }
  /// Of the blocks that are free: a sum, since where they are listed does not matter.
  std::uint64_t state() const {
    std::uint64_t sum = 0;
    for (const std::vector<Free>& of_pool : x_free) {
      for (const Free& free : of_pool) {
        const auto unmapped = static_cast<std::uint64_t>(x_all[at(free.block)].unmapped);
        sum +=
            mix_u64(mix_u64(address(free.block), static_cast<std::uint64_t>(free.size)), unmapped);
      }
    }
    return sum;
  }

 private:
  /// Free blocks of a pool by size, then by address.
  struct Free {
    Bytes size;
    std::int32_t segment;
    Bytes offset;
    std::int32_t block;
    bool operator<(const Free& other) const {
      return std::tie(size, segment, offset) < std::tie(other.size, other.segment, other.offset);
    }
  };
  Free free_of(std::int32_t block) const {
    const Block& b = x_all[at(block)];
    return {b.size, b.segment, b.offset, block};
  }

  static std::size_t at(std::int32_t block) { return static_cast<std::size_t>(block); }

  std::vector<Free>& pool(std::uint8_t index) { return x_free[static_cast<std::size_t>(index)]; }

  static constexpr std::size_t kPools = 2 * Buffer::kPools;
  std::vector<Block> x_all;
  std::vector<std::int32_t> x_unused;
  std::array<std::vector<Free>, kPools> x_free;  ///< sorted: few blocks are free at once
  std::vector<std::int32_t> x_last = std::vector<std::int32_t>(kPools, kNoBlock);
};

class Allocator {
 public:
  Allocator(const AllocatorRules& rules, Bytes limit) : x_rules(rules), x_limit(limit) {}

  /// The block's index; kNoBlock where there is no room.
  std::int32_t allocate(Bytes bytes, std::int8_t of_pool) {
    const Bytes size = rounded_up(std::max<Bytes>(bytes, 1), x_rules.round);
    const bool small = size <= x_rules.small_limit;
    const auto pool = static_cast<std::uint8_t>(2 * of_pool + (small ? 0 : 1));
    std::int32_t block = x_blocks.take_free(pool, size);
    if (block == kNoBlock && lacks_room(small, size)) heard(x_call);
    if (block == kNoBlock) block = take_segment(pool, size);
    if (block == kNoBlock || !map(block, size)) return kNoBlock;
    const Bytes rest = x_blocks[block].size - size;
    const bool splits =
        small || x_rules.expandable ? rest >= x_rules.round : rest > x_rules.small_limit;
    if (splits) x_blocks.split(block, size);
    x_allocated += x_blocks[block].size;
    x_use.allocated = std::max(x_use.allocated, x_allocated);
    return block;
  }

  void release(std::int32_t block) {
    Block& b = x_blocks[block];
    x_allocated -= b.size;
    if (b.before != kNoBlock && x_blocks[b.before].free) {
      x_blocks.unlist(b.before);
      block = x_blocks.joined(b.before, block);
    }
    const std::int32_t after = x_blocks[block].after;
    if (after != kNoBlock && x_blocks[after].free) {
      x_blocks.unlist(after);
      x_blocks.joined(block, after);
    }
    x_blocks.list(block);
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
  /// All that was so far was `calls` earlier.
  void move_back(std::int32_t calls) {
    for (Held& held : x_held) held.call -= calls;
  }
  /// Of all that decides what will be allocated where.
  std::uint64_t state() const {
    std::uint64_t hash = mix_u64(static_cast<std::uint64_t>(x_reserved), x_blocks.state());
    for (const std::int32_t segment : x_unused_segments) {
      hash = mix_u64(hash, static_cast<std::uint64_t>(segment));
    }
    for (const Held& held : x_held) {
      hash = mix_u64(mix_u64(hash, static_cast<std::uint64_t>(held.call)),
                     x_blocks.address(held.block));
    }
    return hash;
  }
  std::uint64_t address(std::int32_t block) const { return x_blocks.address(block); }
  /// Of what is not free yet the earliest call; else `now`.
  std::int32_t earliest_held(std::int32_t now) const {
    return x_held.empty() ? now : x_held.front().call;
  }
  /// What is allocated from now on is so by call `number`.
  void enter(std::size_t number) { x_call = static_cast<std::int32_t>(number); }
  AllocatorUse& use() { return x_use; }

 private:
  struct Held {
    std::int32_t call, block;
  };
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
    block.segment = x_segments;
    if (x_unused_segments.empty()) {
      ++x_segments;
    } else {
      block.segment = x_unused_segments.back();
      x_unused_segments.pop_back();
    }
    block.size = segment;
    block.pool = of;
    add_reserved(segment);
    return x_blocks.add(block);
  }

  /// Whether memory would have to be given back for a block of `size`, which waits for the device.
  bool lacks_room(bool small, Bytes size) const {
    const Bytes more =
        x_rules.expandable ? rounded_up(size, page_of(small)) : segment_size(small, size);
    return x_limit > 0 && x_reserved + more > x_limit;
  }

  /// The pool's one segment becomes longer, its last block large enough.
  std::int32_t grow(std::uint8_t of, Bytes size) {
    std::int32_t& last = x_blocks.last(of);
    const bool joins = last != kNoBlock && x_blocks[last].free;
    const Bytes has = joins ? x_blocks[last].size : 0;
    const Bytes more = rounded_up(size - has, page_of(of % 2 == 0));
    if (!has_room(more)) return kNoBlock;
    add_reserved(more);
    if (joins) {
      x_blocks.unlist(last);
      x_blocks[last].size += more;
      return last;
    }
    Block block;
    block.segment = of;
    block.size = more;
    block.pool = of;
    block.before = last;
    if (last != kNoBlock) block.offset = x_blocks[last].offset + x_blocks[last].size;
    const std::int32_t index = x_blocks.add(block);
    if (last != kNoBlock) x_blocks[last].after = index;
    last = index;
    return index;
  }

  /// Maps again what of the taken block's first `size` bytes had been given back.
  bool map(std::int32_t block, Bytes size) {
    const Bytes lacking = size - (x_blocks[block].size - x_blocks[block].unmapped);
    if (lacking <= 0) return true;
    const Bytes page = page_of(x_blocks[block].small());
    const Bytes more = std::min(rounded_up(lacking, page), x_blocks[block].unmapped);
    if (!has_room(more)) {
      x_blocks.list(block);
      return false;
    }
    add_reserved(more);
    x_blocks[block].unmapped -= more;
    return true;
  }

  Bytes page_of(bool small) const { return small ? x_rules.small_segment : x_rules.middle_segment; }

  /// Whether so much can be had, at worst after what is free is given back: whole segments, or
  /// whole pages of those that can grow.
  bool has_room(Bytes bytes) {
    if (x_limit == 0 || x_reserved + bytes <= x_limit) return true;
    const Bytes before = x_reserved;
    x_blocks.drop_free_if([this](Block& b) {
      const bool whole = b.before == kNoBlock && b.after == kNoBlock && !x_rules.expandable;
      if (x_rules.expandable) give_back_pages(b);
      if (whole) x_reserved -= b.size;
      if (whole) x_unused_segments.push_back(b.segment);
      return whole;
    });
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

  AllocatorRules x_rules;
  Bytes x_limit, x_reserved = 0, x_allocated = 0;
  std::int32_t x_call = 0, x_segments = 0;
  std::vector<std::int32_t> x_unused_segments;  ///< given back: their addresses are had again
  AllocatorUse x_use;
  Blocks x_blocks;
  std::deque<Held> x_held;  ///< in the order of their calls
};

/// Frames of a round, each with the one that stands for it in the next.
using FramePairs = std::vector<std::pair<FrameId, FrameId>>;

FramePairs pairs_of(const std::vector<FrameId>& next) {
  FramePairs out;
  for (std::size_t f = 0; f < next.size(); ++f) {
    if (next[f].valid()) out.emplace_back(FrameId(f), next[f]);
  }
  return out;
}

/// Where the blocks of a Program's buffers are.
class Places {
 public:
  explicit Places(const Program& program) {
    x_first.reserve(program.frames.size() + 1);
    std::size_t buffers = 0;
    for (const Frame& frame : program.frames) {
      x_first.push_back(buffers);
      for (const Buffer& buffer : program.layouts[frame.layout.index()].buffers) {
        if (!buffer.persistent) x_passing.push_back(buffers);
        ++buffers;
      }
    }
    x_first.push_back(buffers);
    x_block.assign(buffers, kNoBlock);
  }

  std::int32_t& of(FrameId frame, std::size_t buffer) {
    return x_block[x_first[frame.index()] + buffer];
  }

  /// The blocks of frames that others follow are now those of the others, which have none.
  void follow(const FramePairs& followed) {
    x_moved.clear();
    for (const auto& [frame, next] : followed) {
      x_moved.insert(x_moved.end(), begin_of(next), begin_of(FrameId(next.index() + 1)));
    }
    for (const auto& [frame, next] : followed) {
      std::fill(begin_of(next), begin_of(FrameId(next.index() + 1)), kNoBlock);
    }
    auto moved = x_moved.begin();
    for (const auto& [frame, next] : followed) {
      const auto end = moved + (begin_of(FrameId(frame.index() + 1)) - begin_of(frame));
      std::copy(moved, end, begin_of(frame));
      moved = end;
    }
  }

  /// Where everything is that is not persistent.
  std::uint64_t state(const Allocator& allocator) const {
    std::uint64_t hash = allocator.state();
    for (const std::size_t i : x_passing) {
      if (x_block[i] == kNoBlock) continue;
      hash += mix_u64(mix_u64(i, 1), allocator.address(x_block[i]));
    }
    return hash;
  }

 private:
  std::vector<std::int32_t>::iterator begin_of(FrameId frame) {
    return x_block.begin() + static_cast<std::ptrdiff_t>(x_first[frame.index()]);
  }

  std::vector<std::size_t> x_first;    ///< by frame: its first buffer
  std::vector<std::int32_t> x_block;   ///< by buffer
  std::vector<std::size_t> x_passing;  ///< buffers that are not persistent
  std::vector<std::int32_t> x_moved;
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
  explicit Hearing(const Program& program) : x_of(&program) {}

  /// Before call `c`: the host waits for what a gather waits for.
  void enter(std::size_t c, Allocator& allocator) const {
    const Call& call = x_of->calls[c];
    if (call.waits.empty() || !gathers(call)) return;
    std::int32_t last = -1;
    for (const StreamWait& wait : call.waits) {
      const auto found = x_recorded.find({wait.frame, wait.event});
      if (found != x_recorded.end()) last = std::max(last, found->second);
    }
    allocator.heard(last);
  }

  void leave(std::size_t c, Allocator& allocator) {
    const Call& call = x_of->calls[c];
    const auto number = static_cast<std::int32_t>(c);
    for (const Op& op : x_of->segments[call.segment.index()].ops) {
      const bool waits = std::holds_alternative<HostSync>(x_of->works[op.work.index()]);
      if (waits) allocator.heard(number);
      if (!op.records.valid()) continue;
      const FrameId frame = call.frames[static_cast<std::size_t>(op.records.frame)];
      x_recorded[{frame, op.records.event}] = number;
    }
  }

  /// What was before call `earliest` is over, whenever it was.
  std::uint64_t state(std::uint64_t hash, std::int32_t earliest) const {
    for (const auto& [key, call] : x_recorded) {
      if (call < earliest) continue;
      hash = mix_u64(hash, static_cast<std::uint64_t>(key.first.value));
      hash = mix_u64(
          hash, (static_cast<std::uint64_t>(call) << 16) | static_cast<std::uint64_t>(key.second));
    }
    return hash;
  }

  /// All that was so far was `calls` earlier, and by frames that others follow what it was by
  /// those.
  void move_back(const FramePairs& pairs, std::int32_t calls) {
    std::map<std::pair<FrameId, std::int16_t>, std::int32_t> before;
    std::swap(before, x_recorded);
    std::vector<std::vector<FrameId>> followed(x_of->frames.size());
    std::vector<bool> follows(x_of->frames.size());
    for (const auto& [frame, next] : pairs) {
      followed[next.index()].push_back(frame);
      follows[frame.index()] = true;
    }
    for (const auto& [key, call] : before) {
      const auto& [frame, event] = key;
      for (const FrameId earlier : followed[frame.index()]) {
        x_recorded[{earlier, event}] = call - calls;
      }
      if (followed[frame.index()].empty() && !follows[frame.index()]) {
        x_recorded[key] = call - calls;
      }
    }
  }

 private:
  bool gathers(const Call& call) const {
    for (const Op& op : x_of->segments[call.segment.index()].ops) {
      for (const BufferRef& ref : op.allocates) {
        const FrameId frame = call.frames[static_cast<std::size_t>(ref.frame)];
        const FrameLayout& layout = x_of->layouts[x_of->frames[frame.index()].layout.index()];
        const Buffer& buffer = layout.buffers[static_cast<std::size_t>(ref.buffer)];
        if (buffer.pool == Buffer::kGatherPool) return true;
      }
    }
    return false;
  }

  const Program* x_of;
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
  Walk(const Program& program, bool records_streams, const MoreRounds& more, Places& places,
       Allocator& allocator)
      : x_program(program),
        x_records_streams(records_streams),
        x_more(more),
        x_places(places),
        x_allocator(allocator) {
    if (more.times > 0) x_followed = pairs_of(next_frames(program, more.rounds));
    x_steps.reserve(program.segments.size());
    for (const Segment& segment : program.segments) {
      x_steps.push_back(buffer_steps(program, segment));
    }
  }

  /// Whether the rounds have repeated, or all were walked.
  bool known() const { return x_known; }

  void run() {
    Hearing hearing(x_program);
    const auto calls = static_cast<std::int32_t>(x_program.calls.size());
    const std::int32_t end = x_more.times > 0 ? x_more.rounds.end() : calls;
    if (!run_calls(0, end, hearing)) return;
    if (x_more.times > 0 && !run_more(hearing)) {
      x_known = !x_allocator.use().fits;
      return;
    }
    run_calls(end, calls, hearing);
  }

 private:
  /// False where there is no room.
  bool run_calls(std::int32_t begin, std::int32_t end, Hearing& hearing) {
    for (auto c = static_cast<std::size_t>(begin); c < static_cast<std::size_t>(end); ++c) {
      const Call& call = x_program.calls[c];
      x_allocator.enter(c);
      if (x_records_streams) hearing.enter(c, x_allocator);
      for (const BufferStep& step : x_steps[call.segment.index()]) {
        const FrameId frame = call.frames[static_cast<std::size_t>(step.ref.frame)];
        std::int32_t& block = x_places.of(frame, static_cast<std::size_t>(step.ref.buffer));
        if (step.takes) {
          block = x_allocator.allocate(step.bytes, step.pool);
          if (!x_allocator.use().fits) return false;
        } else {
          give_back(block, step.pool);
        }
      }
      if (x_records_streams) hearing.leave(c, x_allocator);
    }
    return true;
  }

  /// The last round again and again, until it leaves what it left before; the rest of the times
  /// that are no whole number of such cycles is run as well. In a later step, until it leaves what
  /// it left in an earlier one with as many to come: the rest is as it was then. False where there
  /// is no room, or no such cycle in many rounds.
  bool run_more(Hearing& hearing) {
    constexpr std::size_t kMostRounds = 256;
    const Rounds& rounds = x_more.rounds;
    std::unordered_map<std::uint64_t, std::int64_t> seen;
    const std::size_t retries = x_allocator.use().retries.size();
    bool cycles = false;
    std::int64_t left = x_more.times;
    while (left > 0) {
      x_places.follow(x_followed);
      x_allocator.move_back(rounds.length);
      if (x_records_streams) hearing.move_back(x_followed, rounds.length);
      if (!run_calls(rounds.end() - rounds.length, rounds.end(), hearing)) return false;
      --left;
      if (cycles) continue;
      std::uint64_t state = x_places.state(x_allocator);
      state = hearing.state(state, x_allocator.earliest_held(rounds.end()));
      const auto earlier = x_earlier.find(state);
      if (earlier != x_earlier.end() && earlier->second == left) {
        stand_as_then(hearing);
        return true;
      }
      const auto [found, fresh] = seen.try_emplace(state, left);
      if (fresh && seen.size() > kMostRounds) return false;
      if (fresh) continue;
      left %= found->second - left;
      cycles = true;
    }
    // Retries are those of the second step.
    if (x_end || x_allocator.use().retries.size() > retries) return true;
    x_earlier = std::move(seen);
    x_end.emplace(End{x_places, x_allocator, hearing});
    return true;
  }

  /// All is where the rounds of an earlier step left it; what was used so far stays.
  void stand_as_then(Hearing& hearing) {
    AllocatorUse use = std::move(x_allocator.use());
    x_allocator = x_end->allocator;
    use.reserved = std::max(use.reserved, x_allocator.use().reserved);
    use.allocated = std::max(use.allocated, x_allocator.use().allocated);
    x_allocator.use() = std::move(use);
    x_places = x_end->places;
    hearing = x_end->hearing;
  }

  void give_back(std::int32_t& block, std::int8_t pool) {
    if (block == kNoBlock) return;
    if (x_records_streams && pool != 0) {
      x_allocator.hold(block);
    } else {
      x_allocator.release(block);
    }
    block = kNoBlock;
  }

  /// What all rounds leave.
  struct End {
    Places places;
    Allocator allocator;
    Hearing hearing;
  };

  const Program& x_program;
  bool x_records_streams;
  MoreRounds x_more;
  Places& x_places;
  Allocator& x_allocator;
  std::vector<std::vector<BufferStep>> x_steps;  ///< by segment
  FramePairs x_followed;                         ///< of `next_frames`
  bool x_known = true;
  std::unordered_map<std::uint64_t, std::int64_t> x_earlier;  ///< by state: rounds to come
  std::optional<End> x_end;                                   ///< of an earlier step
};

}  // namespace

AllocatorUse caching_allocator(const Program& program, const AllocatorRules& rules, Bytes limit,
                               const MoreRounds& more) {
  Places places(program);
  Allocator allocator(rules, limit);
  Walk step(program, rules.records_streams, more, places, allocator);
  allocate_persistent(program, places, allocator);
  for (int steps = 0; steps < 2; ++steps) {
    if (steps > 0) allocator.next_step();
    if (allocator.use().fits && step.known()) step.run();
  }
  AllocatorUse out = allocator.use();
  out.known = step.known();
  return out;
}

}  // namespace foretrain
