// Turns a replay into a Timeline: names, flows and memory for the actors that are to be shown.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/engine/replay.h"
#include "sim/timeline/timeline.h"

namespace foretrain {

/// Collects the spans of chosen actors.
class Recorder : public SpanSink {
 public:
  /// `wanted`: by actor, whether to keep its spans.
  explicit Recorder(std::vector<std::uint8_t> wanted) : x_wanted(std::move(wanted)) {}

  void span(const OpTimes& times) override {
    if (x_wanted[static_cast<std::size_t>(times.actor)] != 0) x_ops.push_back(times);
  }

  /// The Timeline of what was kept. `name_of` names a rank's track. Empties the recorder.
  Timeline take(const Workload& workload, const Prepared& prepared, const Replay& replay,
                const std::function<std::string(RankId)>& name_of);

 private:
  std::vector<std::uint8_t> x_wanted;
  std::vector<OpTimes> x_ops;
};

}  // namespace foretrain
