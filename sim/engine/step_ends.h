// How long a step takes where ranks begin the next one without waiting for all others: several are
// replayed one after the other (sim/program/repeat.h), and the last one is looked at.
#pragma once

#include <vector>

#include "sim/engine/replay.h"

namespace foretrain {

/// Notes when each rank ends each of `steps` steps (`repeated`), and hands every op on.
class StepEnds : public SpanSink {
 public:
  /// `next` may be null.
  StepEnds(const Workload& workload, const Prepared& prepared, std::int32_t steps, SpanSink* next);
  void span(const OpTimes& times) override;

  /// When the last step of an actor begins: it has ended the one before.
  Time begin(std::size_t actor) const;
  /// From the end of the last step but one to that of the last, of the rank that takes longest.
  Time longest() const;

 private:
  std::int32_t x_steps;
  std::vector<std::int32_t> x_calls;  ///< by actor: of a step
  std::vector<Time> x_ends;           ///< by actor and step
  SpanSink* x_next;
};

/// Of a prepared workload that holds `steps` steps: the last one, or with 1 the whole replay.
Result<Time> step_time(const Workload& workload, const Prepared& prepared, std::int32_t steps);

}  // namespace foretrain
