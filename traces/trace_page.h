// A timeline as a page: one HTML file that draws it, without a network.
#pragma once

#include <string_view>

#include "sim/base/file.h"
#include "sim/timeline/timeline_source.h"

namespace foretrain {

/// Whether a path asks for a page: it ends in .html or .htm.
bool asks_for_page(std::string_view path);

/// Appends the page to `file` and leaves `commit` to the caller. Errors are those of the file.
///
/// Rows are those of `trace_rows.h`: the schedule's passes, the host, the streams. A block is a
/// span over [begin, end], pale until its partners are there. The wheel zooms, dragging moves, a
/// click shows a block's layer, microbatch, work, bytes and messages. A row of each rank has its
/// live bytes. Times are exact. Left out: kinds of memory, and what Chrome traces have for SQL.
Status write_trace_page(const TimelineSource& timeline, AtomicFile& file);
inline Status write_trace_page(const Timeline& timeline, AtomicFile& file) {
  return write_trace_page(HeldTimeline(timeline), file);
}

}  // namespace foretrain
