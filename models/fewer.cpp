#include "models/fewer.h"

#include <algorithm>
#include <limits>

#include "models/schedule/schedule.h"
#include "sim/program/rounds.h"

namespace foretrain {
namespace {

using PassList = std::vector<Pass>;

bool follows(const Pass& pass, const Pass& next, std::int32_t microbatches) {
  Pass moved = pass;
  moved.microbatch += microbatches;
  return moved == next;
}

Rounds rounds_of(const PassList& passes, std::int32_t per_round) {
  std::int32_t most = 0;
  for (const Pass& pass : passes) most = std::max(most, pass.microbatch);
  const auto anchor = std::find_if(passes.begin(), passes.end(), [most](const Pass& pass) {
    return pass.microbatch == most / 2;
  });
  if (anchor == passes.end()) return {};
  const auto next = std::find_if(anchor + 1, passes.end(), [&](const Pass& pass) {
    return follows(*anchor, pass, per_round);
  });
  if (next == passes.end()) return {};
  const auto same = [&](std::int32_t a, std::int32_t b) {
    return follows(passes[static_cast<std::size_t>(a)], passes[static_cast<std::size_t>(b)],
                   per_round);
  };
  return longest_rounds(static_cast<std::int32_t>(passes.size()),
                        static_cast<std::int32_t>(next - anchor), same);
}

/// Whether `all` are `few` with as many more rounds as make up for `microbatches`.
bool is_longer(const PassList& few, const PassList& all, std::int32_t per_round,
               std::int32_t microbatches) {
  const Rounds less = rounds_of(few, per_round);
  const Rounds more = rounds_of(all, per_round);
  const bool alike = less.count > 0 && less.begin == more.begin && less.length == more.length &&
                     (more.count - less.count) * per_round == microbatches;
  if (!alike) return false;
  const auto rest = [microbatches](const Pass& a, const Pass& b) {
    return follows(a, b, microbatches);
  };
  return std::equal(few.begin(), few.begin() + less.at(1), all.begin()) &&
         std::equal(few.begin() + less.end(), few.end(), all.begin() + more.end(), all.end(), rest);
}

}  // namespace

std::optional<FewerMicrobatches> with_fewer_microbatches(const Plan& plan,
                                                         std::int64_t microbatches) {
  // Workers load data for all microbatches at once; the lists of others are of a whole step.
  const bool sums = plan.loader_time.ps == 0 && plan.schedule != Schedule::kFile &&
                    !fits_durations(plan.schedule) && plan.directions() == 1;
  const std::int64_t all = plan.microbatches();
  if (!sums || all > std::numeric_limits<std::int32_t>::max()) return std::nullopt;
  for (const std::int64_t per_round : {std::int64_t{1}, plan.pipeline}) {
    const std::int64_t rounds = (all - microbatches) / per_round;
    if (rounds < 1) continue;
    FewerMicrobatches out{plan, static_cast<std::int32_t>(per_round), rounds};
    const std::int64_t left_out = rounds * per_round;
    out.plan.global_batch -= left_out * plan.micro_batch * plan.batch_ranks();
    bool alike = true;
    for (std::int64_t s = 0; s < plan.pipeline && alike; ++s) {
      alike = is_longer(passes_of(out.plan, s), passes_of(plan, s), out.per_round,
                        static_cast<std::int32_t>(left_out));
    }
    if (alike) return out;
  }
  return std::nullopt;
}

}  // namespace foretrain
