// The passes of a pipeline's schedule as a rank ran them: F3, B3, W3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/timeline/timeline_source.h"

namespace foretrain {

enum class PassDirection : std::uint8_t {
  kForward,
  kBackward,  ///< of inputs and weights, or of inputs alone; what is computed again is in it
  kWeights,   ///< gradients of weights alone
  kUpdate,    ///< of the parameters, once a step
  kCount
};
/// "F", "B", "W", "U".
std::string_view letter_of(PassDirection direction);

/// Kernels on a track's compute stream that work on one microbatch, in one direction, through
/// neighbouring layers: two chunks of neighbouring layers, one behind the other, are one pass.
/// Where a rank takes turns between two microbatches layer by layer (DualPipe), the pass is of
/// both.
struct SchedulePass {
  struct Of {
    PassDirection direction = PassDirection::kForward;
    std::int32_t microbatch = -1;  ///< -1: all
    bool operator==(const Of&) const = default;
  };
  std::int32_t track = 0;
  std::vector<Of> of;                              ///< one or two
  std::int32_t first_layer = -1, last_layer = -1;  ///< of `of.front()`, in order of time; -1: none
  Time begin, end;
};
/// "F3", "F4+B1", "U".
std::string label_of(const SchedulePass& pass);

/// All passes of a track, sorted by begin; they do not overlap. None where its spans say no
/// microbatch, as those of other programs' traces.
std::vector<SchedulePass> schedule_passes(const TimelineSource& source, std::size_t track);
/// Those of all tracks, one track behind the other.
std::vector<SchedulePass> schedule_passes(const Timeline& timeline);

}  // namespace foretrain
