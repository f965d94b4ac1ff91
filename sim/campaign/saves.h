// Which checkpoints a campaign could go on from, by what a failure takes away.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/campaign/campaign.h"

namespace foretrain {

class Saves {
 public:
  /// A copy that is under way: it will survive `loss` at `at`, if nothing stops it before.
  struct Copy {
    Loss loss = Loss::kProcesses;
    Nanos at = 0;
  };
  using Copies = std::array<Copy, kLosses>;

  explicit Saves(const SavingPlan& plan) : x_plan(plan) {}

  /// A checkpoint of `position` is taken. Gives the copies that begin; `count` of them.
  Copies take(Nanos position, Nanos now, std::size_t& count) {
    Copies out{};
    count = 0;
    for (std::size_t loss = 0; loss < kLosses; ++loss) {
      const double ready = x_plan.ready_s[loss];
      if (ready == 0) x_saved[loss] = position;
      if (ready == 0 || std::isinf(ready) || x_busy[loss] > now) continue;
      x_copied[loss] = position;
      x_busy[loss] = now + nanos(ready);
      out[count++] = {static_cast<Loss>(loss), x_busy[loss]};
    }
    return out;
  }
  void finish_copy(Loss loss) {
    const auto at = static_cast<std::size_t>(loss);
    x_saved[at] = std::max(x_saved[at], x_copied[at]);
  }
  /// Checkpoints up to `position` have been taken and copied.
  void settle(Nanos position) {
    for (std::size_t loss = 0; loss < kLosses; ++loss) {
      if (!std::isinf(x_plan.ready_s[loss])) x_saved[loss] = position;
    }
  }
  /// Where the job goes on after such a loss. Copies that are under way are lost.
  Nanos restore(Loss loss) {
    const Nanos position = x_saved[static_cast<std::size_t>(loss)];
    for (Nanos& saved : x_saved) saved = std::min(saved, position);
    x_busy = {};
    ++x_version;
    return position;
  }
  Nanos busy_until() const { return *std::max_element(x_busy.begin(), x_busy.end()); }
  std::uint32_t version() const { return x_version; }

 private:
  const SavingPlan& x_plan;
  std::array<Nanos, kLosses> x_saved{}, x_copied{}, x_busy{};
  std::uint32_t x_version = 0;  ///< of the copies; older ones are lost
};

}  // namespace foretrain
