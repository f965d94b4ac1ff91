// The rows of a drawn timeline: the same order in every track, whatever streams it has.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/timeline/timeline.h"

namespace foretrain {

inline constexpr std::size_t kScheduleRow = 0, kHostRow = 1;

struct TraceRows {
  std::vector<std::string> names;                    ///< "schedule", "host", then streams
  std::vector<std::vector<std::size_t>> of_streams;  ///< by track, by stream
};

/// Every name of a stream is a row. A name that only some tracks have stands behind the one that it
/// follows there, so the rows of a track are in the order of its streams where tracks agree on one.
TraceRows trace_rows(const Timeline& timeline);

/// Whether the host waits for the device.
bool waits_for_device(const Timeline& timeline, const IssueSpan& span);

}  // namespace foretrain
