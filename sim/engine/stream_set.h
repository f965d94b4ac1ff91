// A set of streams of one rank: one bit each, so that the replay visits those that it has to and no
// others.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace foretrain {

class StreamSet {
 public:
  /// Streams that a rank can have.
  static constexpr std::int32_t kMost = 64;

  void add(std::int32_t stream) { x_bits |= bit(stream); }
  void remove(std::int32_t stream) { x_bits &= ~bit(stream); }
  bool contains(std::int32_t stream) const { return (x_bits & bit(stream)) != 0; }
  bool empty() const { return x_bits == 0; }
  void clear() { x_bits = 0; }

  /// The first member from `stream` on; kMost where there is none.
  std::int32_t next(std::int32_t stream) const {
    if (stream >= kMost) return kMost;
    return std::countr_zero(x_bits & (~std::uint64_t{0} << stream));
  }

  StreamSet operator&(StreamSet other) const { return StreamSet(x_bits & other.x_bits); }
  StreamSet operator|(StreamSet other) const { return StreamSet(x_bits | other.x_bits); }
  StreamSet without(StreamSet other) const { return StreamSet(x_bits & ~other.x_bits); }

  StreamSet() = default;

 private:
  explicit StreamSet(std::uint64_t bits) : x_bits(bits) {}
  static std::uint64_t bit(std::int32_t stream) { return std::uint64_t{1} << stream; }
  std::uint64_t x_bits = 0;
};

}  // namespace foretrain
