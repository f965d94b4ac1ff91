#include "hardware/torus.h"

#include <algorithm>
#include <vector>

namespace foretrain {
namespace {

/// The members' distinct coordinates as an axis; `stride` 0 where the steps differ.
TorusAxis axis_of(std::vector<std::int32_t> values, std::int32_t extent, bool wraps) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  TorusAxis axis;
  axis.count = static_cast<std::int32_t>(values.size());
  if (axis.count == 1) return axis;
  axis.stride = values[1] - values[0];
  if (axis.count == 2 && wraps) axis.stride = std::min(axis.stride, extent - axis.stride);
  for (std::size_t i = 2; i < values.size(); ++i) {
    if (values[i] - values[i - 1] != axis.stride) axis.stride = 0;
  }
  axis.ring = wraps && axis.count * axis.stride == extent;
  return axis;
}

}  // namespace

std::int32_t torus_coordinate(const Topology& topology, std::int32_t index, std::size_t axis) {
  for (std::size_t i = topology.dims.size() - 1; i > axis; --i) index /= topology.dims[i];
  return index % topology.dims[axis];
}

TorusAxes torus_axes(const Topology& topology, std::span<const std::int32_t> members) {
  TorusAxes axes{};
  std::int64_t box = 1, extents = 1;
  bool even = true;
  for (std::size_t i = 0; i < topology.dims.size(); ++i) {
    std::vector<std::int32_t> values;
    values.reserve(members.size());
    for (const std::int32_t member : members) {
      values.push_back(torus_coordinate(topology, member, i));
    }
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    extents *= *high - *low + 1;
    axes.at(i) = axis_of(values, topology.dims[i], topology.wrap[i]);
    box *= axes.at(i).count;
    even = even && axes.at(i).stride > 0;
  }
  const auto count = static_cast<std::int64_t>(members.size());
  if (even && (box == count || count == 2)) return axes;
  axes = TorusAxes{};
  axes[0].count = static_cast<std::int32_t>(count);
  axes[0].stride = static_cast<std::int32_t>(std::max<std::int64_t>(1, extents / count));
  return axes;
}

}  // namespace foretrain
