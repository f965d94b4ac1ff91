// A kernel that acts on others as communication does: its blocks fill SMs, so that no other block
// fits beside them, and copy memory until they are told to stop.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "executor/cuda/storage.h"

namespace foretrain::device {

/// What the blocks copy: a part of 16-byte words each, over and over, a chunk at a time; without
/// words they wait only.
struct HoldCopy {
  struct alignas(16) Word {
    std::uint64_t low = 0, high = 0;
  };
  const Word* from = nullptr;
  Word* to = nullptr;
  std::int64_t words = 0;  ///< of all blocks
  std::int64_t chunk = 0;  ///< words a block copies between two looks at the flag

  /// The first word of what a block copies in a round, and how many they are: no more than what is
  /// left of its part; the round after the last begins anew.
  FT_DEVICE std::int64_t chunk_begin(std::int64_t block, std::int64_t blocks, std::int64_t round,
                                     std::int64_t& count) const {
    const std::int64_t begin = words * block / blocks;
    const std::int64_t part = words * (block + 1) / blocks - begin;
    count = 0;
    if (part <= 0 || chunk <= 0) return begin;
    const std::int64_t rounds = (part + chunk - 1) / chunk;
    const std::int64_t at = round % rounds * chunk;
    count = part - at < chunk ? part - at : chunk;
    return begin + at;
  }
};

inline constexpr int kMostHeldSms = 256;

/// Seen by host and device, in mapped memory; only loads and stores, which are whole everywhere.
struct HoldFlags {
  int stop = 0;                             ///< the host's
  int late = 0;                             ///< a block ended by itself, its time over
  std::array<int, kMostHeldSms> running{};  ///< by block, 1 once it runs
  // By block, written at its end: bytes that it read and wrote, and how long it ran.
  std::array<std::uint64_t, kMostHeldSms> moved{};
  std::array<std::uint64_t, kMostHeldSms> ran_ns{};

  /// What so many blocks moved while they ran.
  double gb_per_s(int blocks) const {
    double out = 0;
    for (std::size_t b = 0; b < static_cast<std::size_t>(blocks); ++b) {
      if (ran_ns.at(b) > 0)
        out += static_cast<double>(moved.at(b)) / static_cast<double>(ran_ns[b]);
    }
    return out;
  }
};

}  // namespace foretrain::device
