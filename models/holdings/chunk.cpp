#include "models/holdings/chunk.h"

#include <algorithm>

namespace foretrain {

std::int32_t unit_of_layer(const Chunk& chunk, std::int64_t layer) {
  // Units of layers stand first, in order; the ends' units have no layers.
  const auto end = std::partition_point(chunk.units.begin(), chunk.units.end(),
                                        [](const Unit& unit) { return unit.first < unit.last; });
  const auto found =
      std::upper_bound(chunk.units.begin(), end, layer,
                       [](std::int64_t wanted, const Unit& unit) { return wanted < unit.last; });
  if (found == end || layer < found->first) return -1;
  return static_cast<std::int32_t>(found - chunk.units.begin());
}

}  // namespace foretrain
