// Which tensor degrees the stages of a pipeline may have, where they are not one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace foretrain {

/// What the stages' degrees are made of.
struct DegreesAsked {
  std::vector<std::int64_t> degrees;  ///< that a stage may have
  std::int64_t ranks = 1;             ///< of a pipeline: the sum of its stages' degrees
  std::int64_t least_stages = 2, most_stages = 2;
  /// Of `ranks` those in each pool of equal nodes, in order; none where all are alike.
  std::vector<std::int64_t> pools;
};

/// At most `most` lists of degrees, by stage, that are not all one degree and in which each degree
/// is a multiple of its neighbour or the other way round. Where there are pools: first the lists
/// with one degree in every pool and stages within pools. Then those that only grow or only shrink
/// along the pipeline, fewer stages first. Other orders are left out: on equal nodes the ends of a
/// pipeline differ from its middle, and its first stages from its last.
std::vector<std::vector<std::int64_t>> stage_degrees(const DegreesAsked& asked, std::size_t most);

}  // namespace foretrain
