// Replays that keep every op, for tests that compare times.
#pragma once

#include <algorithm>
#include <tuple>
#include <vector>

#include "sim/engine/replay.h"

namespace foretrain {

class RecordingSink : public SpanSink {
 public:
  void span(const OpTimes& times) override { spans.push_back(times); }

  /// Spans of one actor by (stream, call, op).
  std::vector<OpTimes> of(std::int32_t actor) const {
    std::vector<OpTimes> out;
    for (const OpTimes& t : spans) {
      if (t.actor == actor) out.push_back(t);
    }
    std::sort(out.begin(), out.end(), [](const OpTimes& a, const OpTimes& b) {
      return std::tie(a.call, a.op) < std::tie(b.call, b.op);
    });
    return out;
  }

  std::vector<OpTimes> spans;
};

struct Replayed {
  Prepared prepared;
  Replay replay;
  RecordingSink sink;
};

/// Prepares and replays.
inline Result<Replayed> replay_all(const Workload& workload, CostModel& model, bool full) {
  Replayed out;
  FT_ASSIGN(out.prepared, prepare(workload, model, full));
  FT_ASSIGN(out.replay, replay(workload, out.prepared, &out.sink));
  return out;
}

}  // namespace foretrain
