// The same plan with fewer microbatches.
#pragma once

#include <optional>

#include "models/plan/plan.h"

namespace foretrain {

/// A plan whose steps are those of another but for some rounds of `per_round` microbatches.
struct FewerMicrobatches {
  Plan plan;
  std::int32_t per_round = 1;
  std::int64_t rounds = 0;  ///< that the other has more
};

/// Of those that leave at least `microbatches`, the one with the fewest. None where the schedule is
/// no prologue, equal rounds and epilogue, where what a step costs is more than the sum of its
/// rounds, or where no round could be left out.
std::optional<FewerMicrobatches> with_fewer_microbatches(const Plan& plan,
                                                         std::int64_t microbatches);

}  // namespace foretrain
