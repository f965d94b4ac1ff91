// 3f1b: see models/schedule/schedule.h.
#include "models/schedule/schedule.h"

namespace foretrain {

std::vector<Pass> recycling_passes(const Plan& plan, std::int64_t stage) {
  const std::int64_t all = plan.microbatches();
  // Turns from one forward pass of a microbatch to its next: until then p others have gone through
  // the first stage, and the last one's output is back.
  const std::int64_t apart = plan.pipeline > 1 ? plan.pipeline : 0;
  const std::int64_t to_last = (plan.forwards - 1) * apart;
  const std::int64_t to_backward = to_last + plan.pipeline - 1 - stage;
  std::vector<Pass> out;
  const auto add = [&](std::int64_t microbatch, PassKind kind, std::int64_t round) {
    if (microbatch < 0 || microbatch >= all) return;
    out.push_back(Pass{0, static_cast<std::int32_t>(microbatch), kind, false,
                       static_cast<std::int32_t>(round)});
  };
  for (std::int64_t turn = 0; turn < all + to_backward; ++turn) {
    for (std::int64_t round = 0; round < plan.forwards; ++round) {
      const bool last = round + 1 == plan.forwards;
      add(turn - round * apart, last ? PassKind::kForward : PassKind::kForwardOnly, round);
    }
    add(turn - to_backward, PassKind::kBackward, 0);
  }
  return out;
}

}  // namespace foretrain
