// The simulator: replays prepared Programs and tells when every op begins and ends.
//
// Rules. An op begins when its stream is free, its events are recorded and the host has issued it.
// A collective starts when its last member has begun and ends everywhere at once; a message starts
// when both ends have begun. Kernels are stretched by the SMs and memory bandwidth that
// communication of other streams holds (`duration_beside`); transfers that meet on a port share it
// in proportion to what they ask for. All of this is in integers, so results do not depend on the
// order of processing.
//
// Method. What nobody shares needs no event queue: an actor runs ahead alone, its times are
// max-plus sums, until it waits for a partner. Only two things go through the global queue, in time
// order: transfers on ports that several want, and kernels beside communication whose end is not
// known yet and not sure to be later than theirs (lookahead.h). When the queue's earliest entry is
// taken every other actor waits for something that cannot happen before it, so whatever is decided
// then is final.
//
// Left out: communication slowed by kernels; redistribution of port bandwidth that a transfer
// leaves because another port limits it (max-min); two kernels of one rank on two streams.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/engine/prepared.h"

namespace foretrain {

/// One op as it ran. Times as in `Span` (sim/timeline/timeline.h).
struct OpTimes {
  std::int32_t actor = 0;
  std::int32_t call = 0, op = 0;
  std::int32_t stream = 0;
  Time begin, start, end;
};

/// Receives every op, for each actor and stream in order; actors interleave.
class SpanSink {
 public:
  virtual ~SpanSink() = default;
  virtual void span(const OpTimes& times) = 0;
};

struct Replay {
  Time end;  ///< when the last op of any actor ended (and the host had issued all)
  std::vector<Time> actor_end;  ///< by actor
  std::vector<Time> host_end;   ///< by actor: when the host had issued its last op
  std::int64_t operations = 0;  ///< ops replayed, over actors
  std::int64_t events = 0;      ///< entries taken from the global queue
};

/// Replays; `sink` may be null. Fails with a deadlock report: which ranks stand at which op and
/// what each waits for.
Result<Replay> replay(const Workload& workload, const Prepared& prepared, SpanSink* sink);

}  // namespace foretrain
