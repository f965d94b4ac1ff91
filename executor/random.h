// Random numbers as functions of what they are for, so that every plan draws the same ones: a key
// (seed, purpose, layer, step) and a global index give one value.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "executor/cuda/storage.h"
#include "sim/base/rng.h"

namespace foretrain {

constexpr std::uint64_t mix(std::uint64_t key, std::uint64_t value) {
  return hash_u64(key ^ (value + 0x9e3779b97f4a7c15ULL + (key << 6) + (key >> 2)));
}

inline std::uint64_t mix(std::uint64_t key, std::string_view text) {
  for (const char c : text) key = mix(key, static_cast<unsigned char>(c));
  return key;
}

/// The same draw as `uniform_at`, as an integer below 2^53.
constexpr std::uint64_t bits_at(std::uint64_t key, std::int64_t index) {
  return mix(key, static_cast<std::uint64_t>(index)) >> 11;
}

/// `uniform_at(key, i) >= rate` exactly where `bits_at(key, i) >= threshold_of(rate)`.
inline std::uint64_t threshold_of(double rate) {
  return static_cast<std::uint64_t>(std::ceil(rate * 0x1.0p53));
}

/// Uniform on [0, 1), element `index` of the sequence named `key`.
FT_DEVICE inline double uniform_at(std::uint64_t key, std::int64_t index) {
  return static_cast<double>(bits_at(key, index)) * 0x1.0p-53;
}

/// Standard normal (Box and Muller 1958).
FT_DEVICE inline double normal_at(std::uint64_t key, std::int64_t index) {
  const double u = 1.0 - uniform_at(key, 2 * index);  // never 0
  const double v = uniform_at(key, 2 * index + 1);
  constexpr double kTwoPi = 6.283185307179586;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(kTwoPi * v);
}

}  // namespace foretrain
