#include "tools/predict/lowered_step.h"

#include <algorithm>

#include "models/emit/emit.h"
#include "models/fewer.h"
#include "models/lower.h"
#include "sim/engine/steady.h"
#include "sim/engine/step_ends.h"
#include "sim/program/memory.h"
#include "sim/program/repeat.h"

namespace foretrain {
namespace {

/// Steps that are replayed to know one. Where ranks begin one as they have ended the one before,
/// the first, which all begin together, is forgotten by the third.
std::int32_t steps_of(const Plan& plan) { return plan.validates_later() ? 3 : 1; }

/// Whether one more round of microbatches makes one more round of the stage's calls, and nothing
/// else: the rounds are not of a beginning that no further microbatch makes longer.
bool grows(const Model& model, Plan plan, std::size_t stage, const Program& program,
           const Rounds& rounds, std::int32_t per_round) {
  plan.global_batch += per_round * plan.micro_batch * plan.batch_ranks();
  const Program longer = write_stage(model, plan, static_cast<std::int64_t>(stage));
  Rounds expected = rounds;
  ++expected.count;
  return find_rounds(longer, per_round) == expected &&
         std::ssize(longer.calls) == std::ssize(program.calls) + rounds.length;
}

/// Microbatches with which it pays to look for rounds: the Programs are lowered twice for it.
std::int64_t most_of(const Plan& plan) { return plan.microbatches() / 2; }

}  // namespace

LoweredStep lower_step(const Model& model, const Plan& plan) {
  LoweredStep out;
  out.plan = plan;
  out.steps = steps_of(plan);
  out.workload = lower(model, plan);
  if (out.steps > 1) out.several = repeated(out.workload, out.steps);
  return out;
}

std::vector<std::int64_t> fewer_microbatches(const Plan& plan) {
  std::vector<std::int64_t> out;
  if (steps_of(plan) > 1) return out;
  // Pipelines take their time to fill, and more of it until all stages keep step.
  std::int64_t few = 6;
  if (plan.pipeline > 1)
    few = plan.virtual_pipeline > 1 ? 8 * plan.pipeline : 3 * plan.pipeline + 6;
  // Further tries must be worth more, since most that fail once fail again.
  for (; few <= most_of(plan) / (out.empty() ? 1 : 2); few *= 2) out.push_back(few);
  return out;
}

std::optional<LoweredStep> lower_fewer(const Model& model, const Plan& plan,
                                       std::int64_t microbatches) {
  std::optional<FewerMicrobatches> fewer = with_fewer_microbatches(plan, microbatches);
  if (!fewer || fewer->plan.microbatches() > most_of(plan)) return std::nullopt;
  LoweredStep out;
  out.plan = std::move(fewer->plan);
  out.more = fewer->rounds;
  out.workload = lower(model, out.plan);
  const auto left_out = static_cast<std::int32_t>(fewer->rounds) * fewer->per_round;
  for (std::size_t s = 0; s < out.workload.programs.size(); ++s) {
    Program& program = out.workload.programs[s];
    const Rounds& rounds = out.rounds.emplace_back(find_rounds(program, fewer->per_round));
    const bool alike = rounds.count >= 3 && keeps_level(program, rounds) &&
                       grows(model, out.plan, s, program, rounds, fewer->per_round);
    if (!alike) return std::nullopt;
    // What comes behind the rounds is of the last microbatches.
    for (auto c = static_cast<std::size_t>(rounds.end()); c < program.calls.size(); ++c) {
      if (program.calls[c].microbatch >= 0) program.calls[c].microbatch += left_out;
    }
  }
  return out;
}

std::int64_t count_ops(const LoweredStep& step, std::size_t program) {
  std::vector<std::int64_t> of_segment;
  for (const Segment& segment : step.workload.programs[program].segments) {
    of_segment.push_back(std::ssize(segment.ops));
  }
  return sum_over_calls(step, program, of_segment);
}

Result<std::optional<Time>> step_time(const LoweredStep& step, const Prepared& prepared) {
  if (step.more == 0) {
    FT_ASSIGN(const Time time, step_time(step.replayed(), prepared, step.steps));
    return std::optional<Time>(time);
  }
  RoundTimes times(step.workload, prepared);
  FT_ASSIGN(const Replay result, replay(step.workload, prepared, &times));
  const auto steady = times.steady(result, step.rounds, 0);
  if (!steady) return std::optional<Time>();
  return std::optional<Time>(result.end + Time{steady->round.ps * step.more});
}

}  // namespace foretrain
