// Time, bytes and rates. Everything that is compared or ordered is an integer.
#pragma once

#include <cmath>
#include <compare>
#include <cstdint>
#include <limits>

namespace foretrain {

/// A point in time or a span of it, in integer picoseconds (int64 holds 106 days).
/// Comparisons are exact; `from_seconds` is the one place where a real number becomes a Time.
struct Time {
  std::int64_t ps = 0;

  /// Rounds to the nearest picosecond; halves away from zero. Saturates at `kNever`.
  static Time from_seconds(double seconds) {
    const double ps = std::round(seconds * 1e12);
    constexpr double kLimit = 9.2e18;
    if (ps >= kLimit) return Time{std::numeric_limits<std::int64_t>::max()};
    if (ps <= -kLimit) return Time{std::numeric_limits<std::int64_t>::min()};
    return Time{static_cast<std::int64_t>(ps)};
  }
  static Time from_us(double us) { return from_seconds(us * 1e-6); }

  double seconds() const { return static_cast<double>(ps) * 1e-12; }
  double us() const { return static_cast<double>(ps) * 1e-6; }

  bool operator==(const Time&) const = default;
  std::strong_ordering operator<=>(const Time&) const = default;
  Time& operator+=(Time other) {
    ps += other.ps;
    return *this;
  }
  Time& operator-=(Time other) {
    ps -= other.ps;
    return *this;
  }
  friend Time operator+(Time a, Time b) { return Time{a.ps + b.ps}; }
  friend Time operator-(Time a, Time b) { return Time{a.ps - b.ps}; }
};

/// Later than everything that happens; also "not known yet".
inline constexpr Time kNever{std::numeric_limits<std::int64_t>::max()};

inline Time max(Time a, Time b) { return a < b ? b : a; }
inline Time min(Time a, Time b) { return b < a ? b : a; }

using Bytes = std::int64_t;

/// The first multiple of `unit` from `value` on.
constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

inline constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
inline constexpr double kMiB = 1024.0 * 1024.0;

}  // namespace foretrain
