// Numbers in 8 bits, on the host: what operands of fp8 products are filled with and, for tests,
// what is in them. e4m3 has 4 bits of exponent (bias 7) and 3 of mantissa, no infinity, and ends at
// 448; e5m2 has 5 (bias 15) and 2 and is the upper half of an fp16.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "executor/cuda/storage.h"

namespace foretrain {

/// To the nearest, ties to even; what is larger becomes 448.
inline std::uint8_t to_e4m3(float v) {
  constexpr int kLeast = -6;  // exponent of the smallest normal number
  constexpr float kLargest = 448;
  const auto sign = static_cast<std::uint8_t>(std::signbit(v) ? 0x80 : 0);
  if (std::isnan(v)) return sign | 0x7f;
  const float size = std::min(std::abs(v), kLargest);
  if (size == 0) return sign;
  int exponent = std::max(kLeast, std::ilogb(size));
  auto eighths = static_cast<int>(std::nearbyint(std::ldexp(size, 3 - exponent)));
  if (eighths == 16) {
    eighths = 8;
    ++exponent;
  }
  if (eighths < 8) return sign | static_cast<std::uint8_t>(eighths);  // below the normal numbers
  return sign | static_cast<std::uint8_t>((exponent + 7) << 3 | (eighths - 8));
}

inline float from_e4m3(std::uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const int eighths = bits & 7;
  const float sign = (bits & 0x80) != 0 ? -1.0F : 1.0F;
  if (exponent == 15 && eighths == 7) return std::nanf("");
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(eighths), -9);
  return sign * std::ldexp(static_cast<float>(8 + eighths), exponent - 10);
}

inline float from_e5m2(std::uint8_t bits) {
  return to_float(Fp16{static_cast<std::uint16_t>(bits << 8)});
}

}  // namespace foretrain
