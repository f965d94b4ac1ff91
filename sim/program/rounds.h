// What a step does again and again for one microbatch after another: a list of calls, or of passes,
// is a prologue, rounds that differ in their microbatches alone, and an epilogue.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/program/program.h"

namespace foretrain {

/// Of a list: `count` rounds of `length` items, the first of which begins at `begin`.
struct Rounds {
  std::int32_t begin = 0, length = 0, count = 0;
  std::int32_t end() const { return begin + length * count; }
  /// Where round `k` begins.
  std::int32_t at(std::int32_t k) const { return begin + length * k; }
  bool operator==(const Rounds&) const = default;
};

/// The most rounds of `length` items that stand one after another in a list of `items`, where
/// `same(i, i + length)` says that item i is that of the round before; a part of a round goes to
/// the prologue.
template <typename Same>
Rounds longest_rounds(std::int32_t items, std::int32_t length, const Same& same) {
  Rounds best;
  std::int32_t begin = 0;
  for (std::int32_t i = 0; i + length <= items; ++i) {
    if (i + length < items && same(i, i + length)) continue;
    const std::int32_t all = i + length - begin;
    if (all / length > std::max(best.count, 1)) best = {begin + all % length, length, all / length};
    begin = i + 1;
  }
  return best;
}

/// The rounds of a Program's calls, each of which works on `microbatches` more. Calls are the same
/// if they run one segment for one layer on frames that were last used equally long ago. No count
/// where there are none, or too few to follow a microbatch from its first pass to its last.
Rounds find_rounds(const Program& program, std::int32_t microbatches);

/// A Program stands for one whose last round is there `times` more times.
struct MoreRounds {
  Rounds rounds;
  std::int64_t times = 0;
};

/// By frame: the one that stands in the next round where this one stands; none in the last round,
/// and where it is the same one.
std::vector<FrameId> next_frames(const Program& program, const Rounds& rounds);

}  // namespace foretrain
