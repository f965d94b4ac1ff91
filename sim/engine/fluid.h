// Progress of work whose rate changes, in integers.
//
// Work of `alone` ps is alone * 2^16 units. At slowdown s >= 1 it advances floor(2^16 / s) units a
// ps: exact at s = 1, at most 1.5e-5 slow otherwise, and never dependent on how often it is looked
// at.
#pragma once

#include <cstdint>

#include "sim/base/int128.h"
#include "sim/base/units.h"

namespace foretrain {

class Progress {
 public:
  Progress() = default;
  explicit Progress(Time alone) : x_left(static_cast<Int128>(alone.ps) << 16) {}

  /// When the rest ends if it goes on from `now` at `rate` units a ps (1 .. 65536).
  Time end_at(Time now, std::int64_t rate) const {
    return now + Time{quotient(x_left + rate - 1, rate)};
  }
  void advance(Time span, std::int64_t rate) {
    x_left -= static_cast<Int128>(span.ps) * rate;
    if (x_left < 0) x_left = 0;
  }

 private:
  Int128 x_left = 0;
};

inline constexpr std::int64_t kOneRate = 1 << 16;

/// Units a ps for work that takes `slowed` instead of `alone` (slowed >= alone > 0).
inline std::int64_t rate_of(Time alone, Time slowed) {
  const std::int64_t rate = quotient(static_cast<Int128>(alone.ps) << 16, slowed.ps);
  return rate < 1 ? 1 : rate;
}

/// Units a ps for a transfer on a port of which `wanted`/65536 are asked for in all.
inline std::int64_t rate_on_port(std::int64_t wanted) {
  if (wanted <= kOneRate) return kOneRate;
  const std::int64_t rate = kOneRate * kOneRate / wanted;
  return rate < 1 ? 1 : rate;
}

}  // namespace foretrain
