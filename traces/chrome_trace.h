// Timelines as Chrome trace-event JSON, for chrome://tracing, Perfetto and everything that reads
// theirs.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/base/file.h"
#include "sim/timeline/timeline_source.h"

namespace foretrain {

struct TraceOptions {
  bool flows = true;   ///< arrows from sends to receives
  bool memory = true;  ///< counters of live memory, GiB = 2^30 bytes
  /// Shown with the trace's metadata: what was run, by which version.
  std::vector<std::pair<std::string, std::string>> about;
};

/// Appends the whole timeline to `file` and leaves `commit` to the caller. Errors are those of the
/// file.
///
/// One process per track. Its threads are rows in one order (`trace_rows.h`), numbered from 1
/// (viewers take thread 0 for the process itself): the passes of the schedule (`F3`, `B3`, `W3`;
/// sim/timeline/passes.h), what the host does, and the streams. A span becomes one complete event
/// over [start, end], behind one called "wait: NAME" over [begin, start] where partners were late;
/// one that ends as it begins is an instant. Colours (`cname`) tell phases, grey is waiting. Times
/// are microseconds with six digits, that is picoseconds. Arguments: layer, microbatch, phase,
/// work, bytes, provenance, and `waited_us` (start - begin). Flows leave the sender when
/// its transfer starts and arrive just before the receiver's end. Durations are cut by less than 1
/// ns where a viewer that rounds to nanoseconds would see an overlap. Left out: arrows from or to
/// transfers below 4 ns, which viewers cannot bind; FLOPs and the identity (call, op) of spans.
/// `timeline_json.h` keeps everything.
///
/// The timeline must be consistent: indices in range, begin <= start <= end, as interpreters and
/// `load_timeline` give it. Takes time and output linear in it; beside it no memory but a text for
/// each info, the ends of flows, and one track's memory samples, host spans and schedule passes.
Status write_chrome_trace(const TimelineSource& timeline, const TraceOptions& options,
                          AtomicFile& file);
inline Status write_chrome_trace(const Timeline& timeline, const TraceOptions& options,
                                 AtomicFile& file) {
  return write_chrome_trace(HeldTimeline(timeline), options, file);
}

}  // namespace foretrain
