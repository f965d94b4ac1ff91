// The Programs that stand for a step: its own, or those of one with fewer microbatches.
#pragma once

#include <optional>
#include <vector>

#include "models/architecture/model.h"
#include "models/plan/plan.h"
#include "sim/engine/replay.h"
#include "sim/program/rounds.h"

namespace foretrain {

/// Where it stands for a step with more rounds (models/fewer.h), sums are those of that
/// step, and times are its times where the replay proves them (sim/engine/steady.h).
struct LoweredStep {
  Plan plan;  ///< of the Programs
  Workload workload;
  std::int32_t steps = 1;      ///< that are replayed; the last one counts (sim/engine/step_ends.h)
  Workload several;            ///< all of them, where there are more
  std::vector<Rounds> rounds;  ///< by Program, where there are more
  std::int64_t more = 0;       ///< rounds that are left out

  const Workload& replayed() const { return steps > 1 ? several : workload; }
  MoreRounds more_of(std::size_t program) const {
    return more == 0 ? MoreRounds{} : MoreRounds{rounds[program], more};
  }
};

/// All of it; `lowerable` (models/lower.h) is to be asked first.
LoweredStep lower_step(const Model& model, const Plan& plan);

/// The same with fewer microbatches, `microbatches` or a few more. None where they would not be far
/// fewer, or where the Programs are not of rounds.
std::optional<LoweredStep> lower_fewer(const Model& model, const Plan& plan,
                                       std::int64_t microbatches);

/// With how many microbatches rounds are to be expected, and then with how many more, as long as
/// they are far fewer than the plan has.
std::vector<std::int64_t> fewer_microbatches(const Plan& plan);

/// The sum over the calls of a step of what each segment of Program `p` has.
template <typename T>
T sum_over_calls(const LoweredStep& step, std::size_t p, const std::vector<T>& of_segment) {
  const Program& program = step.workload.programs[p];
  T sum{};
  for (const Call& call : program.calls) sum += of_segment[call.segment.index()];
  if (step.more == 0) return sum;
  const Rounds& rounds = step.rounds[p];
  T of_round{};
  for (std::int32_t c = rounds.at(rounds.count - 1); c < rounds.end(); ++c) {
    of_round += of_segment[program.calls[static_cast<std::size_t>(c)].segment.index()];
  }
  return sum + of_round * static_cast<T>(step.more);
}

std::int64_t count_ops(const LoweredStep& step, std::size_t program);

/// How long the step takes at these prices; none where it stands for a longer one and the replay
/// does not prove its time.
Result<std::optional<Time>> step_time(const LoweredStep& step, const Prepared& prepared);

}  // namespace foretrain
