// The work of a campaign as a line: a point on it is the time at which full speed reaches it.
#pragma once

#include <vector>

#include "sim/campaign/campaign.h"

namespace foretrain {

class WorkLine {
 public:
  explicit WorkLine(const CampaignWork& work);

  Nanos end() const { return x_end; }
  std::int64_t steps() const { return x_steps; }
  /// Where step `step` begins.
  Nanos at_step(std::int64_t step) const;
  /// Whole steps before a point.
  std::int64_t steps_before(Nanos position) const;
  Nanos step_at(Nanos position) const { return phase_at(position).step; }
  /// The first step of the phase that follows.
  std::int64_t phase_end(Nanos position) const;

 private:
  struct Phase {
    std::int64_t first = 0, steps = 0;
    Nanos begin = 0, step = 0;
  };
  const Phase& phase_at(Nanos position) const;

  std::vector<Phase> x_phases;
  std::int64_t x_steps = 0;
  Nanos x_end = 0;
};

}  // namespace foretrain
