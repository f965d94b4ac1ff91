// To whom each instant of a step belongs.
#pragma once

#include <cstdint>
#include <vector>

#include "traces/kernel_families.h"

namespace foretrain {

/// Something that the GPU does over [begin, end), in any unit; its time is added to `group`.
struct Busy {
  std::int64_t begin = 0, end = 0;
  std::uint32_t group = 0;
  FamilyClass of = FamilyClass::kCompute;
};

struct Window {
  std::int64_t begin = 0, end = 0;
};

/// Sums over the windows. Those of `exposed` and `idle` are the windows' length exactly.
struct Attribution {
  std::vector<double> busy;           ///< by group: all its time, whatever runs beside it
  std::vector<std::int64_t> exposed;  ///< by group: instants that are its own
  std::int64_t length = 0, idle = 0;
  std::int64_t short_idle = 0;  ///< of `idle`, what lies in gaps shorter than the limit
};

/// An instant belongs to the computation that runs, else to the communication, else to the copy;
/// among several of a class to the one that began first, of those that began together to the first
/// in `busy`, which is sorted by begin. What runs over a window's border counts within it. Time: n
/// log n, and n for each window that something runs into from before.
Attribution attribute(const std::vector<Busy>& busy, const std::vector<Window>& windows,
                      std::size_t groups, std::int64_t short_gap);

}  // namespace foretrain
