// Where the members of a group lie on a torus.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>

#include "hardware/topology.h"

namespace foretrain {

/// The group's members along one axis: `count` of them, `stride` apart. The links in between are
/// shared with the other groups that interleave.
struct TorusAxis {
  std::int32_t count = 1, stride = 1;
  bool ring = false;  ///< the members close to a ring around the whole axis
  std::strong_ordering operator<=>(const TorusAxis&) const = default;
};
using TorusAxes = std::array<TorusAxis, kMaxAxes>;

/// The coordinate of the `index`th accelerator of a slice on axis `axis`; the last axis is fastest.
std::int32_t torus_coordinate(const Topology& topology, std::int32_t index, std::size_t axis);

/// Axes of a group within one slice, given as sorted indices within it. A group that is no box
/// (equal steps on every axis) is one open chain whose stride is the bounding box over its members.
TorusAxes torus_axes(const Topology& topology, std::span<const std::int32_t> members);

}  // namespace foretrain
