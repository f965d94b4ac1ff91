// Numbers in 8 bits: what operands of fp8 products are filled with and, for tests on the host, what
// is in them. e4m3 has 4 bits of exponent (bias 7) and 3 of mantissa, no infinity, and ends at
// 448; e5m2 has 5 (bias 15) and 2 and is the upper half of an fp16.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "executor/cuda/storage.h"

namespace foretrain {

/// To the nearest, ties to even; what is larger becomes 448.
FT_DEVICE inline std::uint8_t to_e4m3(float v) {
  constexpr std::uint32_t kInfinity = 0x7f800000U;
  constexpr std::uint32_t kLargest = 0x43e00000U;      // 448
  constexpr std::uint32_t kLeastNormal = 0x3c800000U;  // 2^-6
  const auto bits = std::bit_cast<std::uint32_t>(v);
  const std::uint32_t sign = bits >> 24 & 0x80U;
  std::uint32_t size = bits & 0x7fffffffU;
  if (size > kInfinity) return static_cast<std::uint8_t>(sign | 0x7fU);
  if (size >= kLargest) return static_cast<std::uint8_t>(sign | 0x7eU);
  if (size < kLeastNormal) {  // a multiple of 2^-9: what 2^14 ends in
    constexpr float kShift = 16384;
    const float shifted = std::bit_cast<float>(size) + kShift;
    return static_cast<std::uint8_t>(
        sign | (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(kShift)));
  }
  size += 0x7ffffU + (size >> 20 & 1U);
  return static_cast<std::uint8_t>(sign | ((size >> 20) - 0x3c0U));
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
