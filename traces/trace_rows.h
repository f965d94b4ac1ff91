// The rows of a drawn timeline: the same order in every track, whatever streams it has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/timeline/timeline_source.h"

namespace foretrain {

inline constexpr std::size_t kScheduleRow = 0, kHostRow = 1;

struct TraceRows {
  std::vector<std::string> names;                    ///< "schedule", "host", then streams
  std::vector<std::vector<std::size_t>> of_streams;  ///< by track, by stream
};

/// Every name of a stream is a row. A name that only some tracks have stands behind the one that it
/// follows there, so the rows of a track are in the order of its streams where tracks agree on one.
TraceRows trace_rows(const std::vector<Track>& tracks);

/// Whether a span of the host with this info waits for the device.
bool waits_for_device(const SpanInfo& info);

/// The spans at which flows begin or end: their numbers, rising, each once.
std::vector<std::int32_t> ends_of_flows(const std::vector<Flow>& flows);
/// Where a span is among them; it is one of them.
std::size_t place_among(const std::vector<std::int32_t>& ends, std::int32_t span);

}  // namespace foretrain
