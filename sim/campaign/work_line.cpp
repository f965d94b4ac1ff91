#include "sim/campaign/work_line.h"

#include <algorithm>

#include "sim/base/check.h"

namespace foretrain {

WorkLine::WorkLine(const CampaignWork& work) {
  for (const WorkPhase& phase : work.phases) {
    if (phase.steps <= 0) continue;
    const Nanos step = std::max<Nanos>(1, nanos(phase.step_s));
    x_phases.push_back({x_steps, phase.steps, x_end, step});
    x_steps += phase.steps;
    x_end += step * phase.steps;
  }
  FT_CHECK(!x_phases.empty(), "a campaign without steps");
}

const WorkLine::Phase& WorkLine::phase_at(Nanos position) const {
  std::size_t at = x_phases.size() - 1;
  while (at > 0 && x_phases[at].begin > position) --at;
  return x_phases[at];
}

Nanos WorkLine::at_step(std::int64_t step) const {
  std::size_t at = x_phases.size() - 1;
  while (at > 0 && x_phases[at].first > step) --at;
  return x_phases[at].begin + (step - x_phases[at].first) * x_phases[at].step;
}

std::int64_t WorkLine::steps_before(Nanos position) const {
  const Phase& phase = phase_at(position);
  return phase.first + (position - phase.begin) / phase.step;
}

std::int64_t WorkLine::phase_end(Nanos position) const {
  const Phase& phase = phase_at(position);
  return phase.first + phase.steps;
}

Nanos work_of(const CampaignWork& work) { return WorkLine(work).end(); }

}  // namespace foretrain
