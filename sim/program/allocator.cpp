#include "sim/program/allocator.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace foretrain {
namespace {

constexpr std::int32_t kNone = -1;

/// Part of a segment.
struct Block {
  Bytes size = 0;
  std::int32_t before = kNone, after = kNone;  ///< neighbours in the segment
  bool small = false, free = false;
};

Bytes rounded_up(Bytes bytes, Bytes to) { return (bytes + to - 1) / to * to; }

class Allocator {
 public:
  Allocator(const AllocatorRules& rules, Bytes limit) : x_rules(rules), x_limit(limit) {}

  /// The block's index; kNone where there is no room.
  std::int32_t allocate(Bytes bytes) {
    const Bytes size = rounded_up(std::max<Bytes>(bytes, 1), x_rules.round);
    const bool small = size <= x_rules.small_limit;
    std::int32_t block = take_free(small, size);
    if (block == kNone) block = take_segment(small, size);
    if (block == kNone) return kNone;
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
    if (b.before != kNone && x_blocks[at(b.before)].free) {
      unlist(b.before);
      block = joined(b.before, block);
    }
    const std::int32_t after = x_blocks[at(block)].after;
    if (after != kNone && x_blocks[at(after)].free) {
      unlist(after);
      joined(block, after);
    }
    list(block);
  }

  void count_retries_from_now() { x_use.retries = 0; }
  const AllocatorUse& use() const { return x_use; }

 private:
  /// Free blocks of a pool by size, then in the order in which they came.
  struct Free {
    Bytes size;
    std::int32_t block;
    bool operator<(const Free& other) const {
      return size != other.size ? size < other.size : block < other.block;
    }
  };

  static std::size_t at(std::int32_t block) { return static_cast<std::size_t>(block); }

  std::vector<Free>& pool(bool small) { return x_free[small ? 0 : 1]; }

  void list(std::int32_t block) {
    Block& b = x_blocks[at(block)];
    b.free = true;
    std::vector<Free>& free = pool(b.small);
    const Free entry{b.size, block};
    free.insert(std::lower_bound(free.begin(), free.end(), entry), entry);
  }

  void unlist(std::int32_t block) {
    Block& b = x_blocks[at(block)];
    b.free = false;
    std::vector<Free>& free = pool(b.small);
    free.erase(std::lower_bound(free.begin(), free.end(), Free{b.size, block}));
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

  std::int32_t take_free(bool small, Bytes size) {
    const std::vector<Free>& free = pool(small);
    const auto found = std::lower_bound(free.begin(), free.end(), Free{size, kNone});
    if (found == free.end()) return kNone;
    const std::int32_t block = found->block;
    unlist(block);
    return block;
  }

  Bytes segment_size(bool small, Bytes size) const {
    if (small) return x_rules.small_segment;
    if (size < x_rules.middle_limit) return x_rules.middle_segment;
    return rounded_up(size, x_rules.large_round);
  }

  std::int32_t take_segment(bool small, Bytes size) {
    if (x_rules.expandable) return grow(small, size);
    const Bytes segment = segment_size(small, size);
    if (!has_room(segment)) return kNone;
    Block block;
    block.size = segment;
    block.small = small;
    add_reserved(segment);
    return new_block(block);
  }

  /// The pool's one segment becomes longer, its last block large enough.
  std::int32_t grow(bool small, Bytes size) {
    std::int32_t& last = x_last[small ? 0 : 1];
    const bool joins = last != kNone && x_blocks[at(last)].free;
    const Bytes has = joins ? x_blocks[at(last)].size : 0;
    const Bytes page = small ? x_rules.small_segment : x_rules.middle_segment;
    const Bytes more = rounded_up(size - has, page);
    if (!has_room(more)) return kNone;
    add_reserved(more);
    if (joins) {
      unlist(last);
      x_blocks[at(last)].size += more;
      return last;
    }
    Block block;
    block.size = more;
    block.small = small;
    block.before = last;
    const std::int32_t index = new_block(block);
    if (last != kNone) x_blocks[at(last)].after = index;
    last = index;
    return index;
  }

  /// Whether so much can be had, at worst after whole segments that are free are given back.
  bool has_room(Bytes bytes) {
    if (x_limit == 0 || x_reserved + bytes <= x_limit) return true;
    ++x_use.retries;
    for (std::vector<Free>& free : x_free) {
      const auto whole = [this](const Free& f) {
        const Block& b = x_blocks[at(f.block)];
        if (b.before != kNone || b.after != kNone) return false;
        x_reserved -= b.size;
        x_unused.push_back(f.block);
        return true;
      };
      if (!x_rules.expandable)
        free.erase(std::remove_if(free.begin(), free.end(), whole), free.end());
    }
    x_use.fits = x_use.fits && x_reserved + bytes <= x_limit;
    return x_reserved + bytes <= x_limit;
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
    if (rest.after != kNone) x_blocks[at(rest.after)].before = index;
    x_blocks[at(block)].size = size;
    x_blocks[at(block)].after = index;
    if (x_last[rest.small ? 0 : 1] == block) x_last[rest.small ? 0 : 1] = index;
    list(index);
  }

  /// `second` becomes part of `first`, its neighbour before.
  std::int32_t joined(std::int32_t first, std::int32_t second) {
    Block& to = x_blocks[at(first)];
    const Block& from = x_blocks[at(second)];
    to.size += from.size;
    to.after = from.after;
    if (from.after != kNone) x_blocks[at(from.after)].before = first;
    if (x_last[to.small ? 0 : 1] == second) x_last[to.small ? 0 : 1] = first;
    x_unused.push_back(second);
    return first;
  }

  AllocatorRules x_rules;
  Bytes x_limit, x_reserved = 0, x_allocated = 0;
  AllocatorUse x_use;
  std::vector<Block> x_blocks;
  std::vector<std::int32_t> x_unused;
  std::array<std::vector<Free>, 2> x_free;
  std::array<std::int32_t, 2> x_last{kNone, kNone};  ///< end of a pool's expandable segment
};

/// Where the blocks of a Program's buffers are.
class Places {
 public:
  explicit Places(const Program& program) : x_program(program) {
    x_first.reserve(program.frames.size());
    std::size_t buffers = 0;
    for (const Frame& frame : program.frames) {
      x_first.push_back(buffers);
      buffers += program.layouts[frame.layout.index()].buffers.size();
    }
    x_block.assign(buffers, kNone);
  }

  std::int32_t& of(FrameId frame, std::size_t buffer) {
    return x_block[x_first[frame.index()] + buffer];
  }
  const Buffer& buffer(FrameId frame, std::size_t buffer) const {
    return x_program.layouts[x_program.frames[frame.index()].layout.index()].buffers[buffer];
  }

 private:
  const Program& x_program;
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
      places.of(frame, b) = allocator.allocate(buffers[b].bytes());
    }
  }
}

void run_step(const Program& program, Places& places, Allocator& allocator) {
  for (const Call& call : program.calls) {
    for (const Op& op : program.segments[call.segment.index()].ops) {
      for (const BufferRef& ref : op.allocates) {
        const FrameId frame = call.frames[static_cast<std::size_t>(ref.frame)];
        const auto b = static_cast<std::size_t>(ref.buffer);
        const Buffer& buffer = places.buffer(frame, b);
        if (buffer.memory == Memory::kDevice)
          places.of(frame, b) = allocator.allocate(buffer.bytes());
      }
      for (const BufferRef& ref : op.frees) {
        const FrameId frame = call.frames[static_cast<std::size_t>(ref.frame)];
        std::int32_t& block = places.of(frame, static_cast<std::size_t>(ref.buffer));
        if (block != kNone) allocator.release(block);
        block = kNone;
      }
    }
  }
}

}  // namespace

AllocatorUse caching_allocator(const Program& program, const AllocatorRules& rules, Bytes limit) {
  Places places(program);
  Allocator allocator(rules, limit);
  allocate_persistent(program, places, allocator);
  run_step(program, places, allocator);
  allocator.count_retries_from_now();
  run_step(program, places, allocator);
  return allocator.use();
}

}  // namespace foretrain
