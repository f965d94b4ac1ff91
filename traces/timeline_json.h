// Timelines saved and loaded without loss: "foretrain/timeline/1".
#pragma once

#include <string>

#include "sim/base/file.h"
#include "sim/base/json.h"
#include "sim/timeline/timeline_source.h"

namespace foretrain {

/// Appends the timeline to `file` and leaves `commit` to the caller. Times are integer picoseconds,
/// sizes bytes. Spans, flows and memory samples are rows of numbers under a list that names the
/// columns.
Status save_timeline(const TimelineSource& timeline, AtomicFile& file);
inline Status save_timeline(const Timeline& timeline, AtomicFile& file) {
  return save_timeline(HeldTimeline(timeline), file);
}

/// What `save_timeline` wrote, equal by ==. Errors name the file and the place: wrong schema,
/// unknown or missing keys, indices out of range, spans that end before they begin or overlap on a
/// stream.
Result<Timeline> read_timeline(const Json& json, const std::string& source);

/// Reads a file, gzip or not.
Result<Timeline> load_timeline(const std::string& path);

}  // namespace foretrain
