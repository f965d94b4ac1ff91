// What kernels share whether they run on a device or, for tests, in a loop on the host: element
// types in memory, and how a functor is marked. Arithmetic is in fp32.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "sim/base/check.h"
#include "sim/program/dtype.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define FT_DEVICE __host__ __device__
#else
#define FT_DEVICE
#endif

namespace foretrain {

struct Bf16 {
  std::uint16_t bits = 0;
};
struct Fp16 {
  std::uint16_t bits = 0;
};

FT_DEVICE inline float to_float(float v) { return v; }
FT_DEVICE inline float to_float(Bf16 v) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(v.bits) << 16);
}
FT_DEVICE inline float to_float(Fp16 v) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(v.bits));
#else
  const std::uint32_t sign = static_cast<std::uint32_t>(v.bits & 0x8000U) << 16;
  const std::uint32_t exponent = (v.bits >> 10) & 31U;
  const std::uint32_t mantissa = v.bits & 0x3ffU;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | mantissa << 13);
  if (exponent == 0) {
    const float size = static_cast<float>(mantissa) * 0x1.0p-24F;
    return sign != 0 ? -size : size;
  }
  return std::bit_cast<float>(sign | (exponent + 112U) << 23 | mantissa << 13);
#endif
}

/// To the nearest, ties to even; too large becomes infinity.
FT_DEVICE inline Bf16 to_bf16(float v) {
  const auto bits = std::bit_cast<std::uint32_t>(v);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return {static_cast<std::uint16_t>(bits >> 16 | 0x40U)};
  return {static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}
FT_DEVICE inline Fp16 to_fp16(float v) {
#ifdef __CUDA_ARCH__
  return {__half_as_ushort(__float2half_rn(v))};
#else
  const auto bits = std::bit_cast<std::uint32_t>(v);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  std::uint32_t size = bits & 0x7fffffffU;
  if (size > 0x7f800000U) return {static_cast<std::uint16_t>(sign | 0x7e00U)};
  if (size >= 0x477ff000U) return {static_cast<std::uint16_t>(sign | 0x7c00U)};
  if (size < 0x38800000U) {  // a multiple of 2^-24: what 0.5 ends in
    const float shifted = std::bit_cast<float>(size) + 0.5F;
    return {
        static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U))};
  }
  size += 0xfffU + ((size >> 13) & 1U);
  return {static_cast<std::uint16_t>(sign | ((size - 0x38000000U) >> 13))};
#endif
}

template <typename T>
FT_DEVICE inline T stored(float v) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return to_bf16(v);
  } else if constexpr (std::is_same_v<T, Fp16>) {
    return to_fp16(v);
  } else {
    return v;
  }
}

template <typename T>
struct TypeTag {
  using Type = T;
};

constexpr bool is_real(DType type) {
  return type == DType::kFp32 || type == DType::kTf32 || type == DType::kBf16 ||
         type == DType::kFp16;
}

/// Calls `use` with the tag of the type that stores `type`.
template <typename Use>
void with_type(DType type, const Use& use) {
  switch (type) {
    case DType::kFp32:
    case DType::kTf32:
      return use(TypeTag<float>{});
    case DType::kBf16:
      return use(TypeTag<Bf16>{});
    case DType::kFp16:
      return use(TypeTag<Fp16>{});
    default:
      FT_CHECK(false, "an element type that no kernel has; it must be refused before");
  }
}

/// Of a work type and that of gradients: the same, or gradients in fp32.
template <typename Use>
void with_types(DType work, DType gradients, const Use& use) {
  with_type(work, [&](auto tag) {
    if (bits_of(gradients) == 32) {
      use(tag, TypeTag<float>{});
    } else {
      use(tag, tag);
    }
  });
}

}  // namespace foretrain
