// Element types of buffers and of tensor-core arithmetic.
#pragma once

#include <cstdint>
#include <string_view>

#include "sim/base/units.h"

namespace foretrain {

/// kTf32 is stored as fp32 and multiplied with 10 mantissa bits.
enum class DType : std::uint8_t {
  kFp32,
  kTf32,
  kBf16,
  kFp16,
  kFp8,
  kFp4,
  kInt8,
  kInt32,
  kInt64,
  kUint8
};

/// Bits of one stored element.
constexpr int bits_of(DType type) {
  switch (type) {
    case DType::kFp32:
    case DType::kTf32:
    case DType::kInt32:
      return 32;
    case DType::kBf16:
    case DType::kFp16:
      return 16;
    case DType::kFp8:
    case DType::kInt8:
    case DType::kUint8:
      return 8;
    case DType::kFp4:
      return 4;
    case DType::kInt64:
      return 64;
  }
  return 0;
}

/// Bytes of `count` elements, rounded up to whole bytes.
constexpr Bytes bytes_of(DType type, std::int64_t count) { return (count * bits_of(type) + 7) / 8; }

std::string_view name_of(DType type);

}  // namespace foretrain
