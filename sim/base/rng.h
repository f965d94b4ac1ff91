// Our own random numbers: the standard library's distributions differ between implementations.
#pragma once

#include <cstdint>

namespace foretrain {

/// SplitMix64 (Steele, Lea, Flood 2014): one 64-bit state, equidistributed, good enough for tests
/// and jitter. `hash_u64` is its finaliser, used for counter-based draws.
constexpr std::uint64_t hash_u64(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

/// A hash of both, in this order.
constexpr std::uint64_t mix_u64(std::uint64_t a, std::uint64_t b) {
  return hash_u64(a * 0x9e3779b97f4a7c15ULL + b + 0x632be59bd9b4e019ULL);
}

class Rng {
 public:
  explicit Rng(std::uint64_t seed) : x_state(seed) {}

  std::uint64_t next() { return hash_u64(x_state += 0x9e3779b97f4a7c15ULL); }

  /// Uniform on [0, bound); bound > 0. The bias of the modulo is below 2^-32 for bounds below 2^32.
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(bound));
  }

  /// Uniform on [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  std::uint64_t x_state;
};

}  // namespace foretrain
