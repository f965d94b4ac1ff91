#include "sim/engine/step_ends.h"

#include <algorithm>

namespace foretrain {

StepEnds::StepEnds(const Workload& workload, const Prepared& prepared, std::int32_t steps,
                   SpanSink* next)
    : x_steps(steps), x_next(next) {
  for (const Actor& actor : prepared.quotient.actors) {
    const std::size_t calls = workload.programs[actor.program.index()].calls.size();
    x_calls.push_back(std::max(1, static_cast<std::int32_t>(calls) / steps));
  }
  x_ends.resize(x_calls.size() * static_cast<std::size_t>(steps));
}

void StepEnds::span(const OpTimes& times) {
  const auto actor = static_cast<std::size_t>(times.actor);
  const std::int32_t step = times.call / x_calls[actor];
  Time& end = x_ends[actor * static_cast<std::size_t>(x_steps) + static_cast<std::size_t>(step)];
  end = max(end, times.end);
  if (x_next != nullptr) x_next->span(times);
}

Time StepEnds::begin(std::size_t actor) const {
  if (x_steps == 1) return Time{};
  const auto steps = static_cast<std::size_t>(x_steps);
  return x_ends[actor * steps + steps - 2];
}

Time StepEnds::longest() const {
  Time out;
  const auto steps = static_cast<std::size_t>(x_steps);
  for (std::size_t actor = 0; actor < x_calls.size(); ++actor) {
    out = max(out, x_ends[actor * steps + steps - 1] - begin(actor));
  }
  return out;
}

Result<Time> step_time(const Workload& workload, const Prepared& prepared, std::int32_t steps) {
  StepEnds ends(workload, prepared, steps, nullptr);
  FT_ASSIGN(const Replay result, replay(workload, prepared, steps > 1 ? &ends : nullptr));
  return steps > 1 ? ends.longest() : result.end;
}

}  // namespace foretrain
