// Kernels that fill buffers with random numbers.
#pragma once

#include "executor/cuda/device_view.h"
#include "executor/cuda/fp8.h"
#include "executor/fill.h"

namespace foretrain::device {

template <typename T, typename Of>
struct FillReal {
  Of fill;
  T* to;
  FT_DEVICE void operator()(std::int64_t i) const { to[i] = stored<T>(fill.real(i)); }
};
template <typename Of>
struct FillFp8 {
  Of fill;
  std::uint8_t* to;
  FT_DEVICE void operator()(std::int64_t i) const { to[i] = to_e4m3(fill.real(i)); }
};
struct FillWhole {
  Fill fill;
  std::int64_t* to;
  FT_DEVICE void operator()(std::int64_t i) const { to[i] = fill.whole(i); }
};
struct FillFlags {
  Fill fill;
  std::uint8_t* to;
  FT_DEVICE void operator()(std::int64_t i) const { to[i] = fill.flag(i); }
};

template <typename L, typename Of>
void fill_reals(L& launcher, std::byte* to, DType type, std::int64_t count, const Of& fill) {
  if (type == DType::kFp8) {
    return launcher.elements(count, FillFp8<Of>{fill, reinterpret_cast<std::uint8_t*>(to)});
  }
  with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    launcher.elements(count, FillReal<T, Of>{fill, reinterpret_cast<T*>(to)});
  });
}

/// `count` elements from `to` on, of a type that buffers of Programs have.
template <typename L>
void fill_random(L& launcher, std::byte* to, DType type, std::int64_t count,
                 const Content& content) {
  if (const auto* draw = std::get_if<ParameterDraw>(&content)) {
    return fill_reals(launcher, to, type, count, *draw);
  }
  const auto& fill = std::get<Fill>(content);
  if (type == DType::kInt64) {
    return launcher.elements(count, FillWhole{fill, reinterpret_cast<std::int64_t*>(to)});
  }
  if (type == DType::kUint8) {
    return launcher.elements(count, FillFlags{fill, reinterpret_cast<std::uint8_t*>(to)});
  }
  fill_reals(launcher, to, type, count, fill);
}

}  // namespace foretrain::device
