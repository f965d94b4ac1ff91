// From a device's records of what ran when to how long each op ran.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/base/units.h"

namespace foretrain {

/// A launch: its number, and the op that it belongs to.
struct Launched {
  std::uint64_t number = 0;
  std::size_t op = 0;
};

/// A kernel or copy, by the launch that started it.
struct Ran {
  std::uint64_t launch = 0;
  std::int64_t begin_ns = 0, end_ns = 0;
};

/// By op (of so many): the time in which anything of it ran, however many at once. Zero where
/// nothing is known of it.
std::vector<Time> busy_times(const std::vector<Launched>& launches, std::vector<Ran> ran,
                             std::size_t ops);

}  // namespace foretrain
