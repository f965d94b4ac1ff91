// Timelines drawn at random, for tests and benchmarks of what reads and writes them.
#pragma once

#include <cstdint>

#include "sim/timeline/timeline.h"

namespace foretrain {

/// `tracks` ranks of three streams with `spans_per_stream` spans each, packed end to end as often
/// as not, of picosecond lengths (a few are empty); messages between neighbouring ranks; memory
/// samples. The same arguments give the same timeline.
Timeline sample_timeline(std::uint64_t seed, std::int32_t tracks, std::int32_t spans_per_stream);

}  // namespace foretrain
