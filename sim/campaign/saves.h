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

  /// What a checkpoint holds: the work up to `position`, as the ranks of a plan shared it out.
  struct Point {
    Nanos position = 0;
    std::int64_t plan = 0;
  };

  explicit Saves(const SavingPlan& plan) : x_plan(plan) {}

  /// A checkpoint is taken. Gives the copies that begin; `count` of them.
  Copies take(Point point, Nanos now, std::size_t& count) {
    Copies out{};
    count = 0;
    for (std::size_t loss = 0; loss < kLosses; ++loss) {
      const double ready = x_plan.ready_s[loss];
      if (ready == 0) x_saved[loss] = point;
      if (ready == 0 || std::isinf(ready) || x_busy[loss] > now) continue;
      x_copied[loss] = point;
      x_busy[loss] = now + nanos(ready);
      out[count++] = {static_cast<Loss>(loss), x_busy[loss]};
    }
    return out;
  }
  void finish_copy(Loss loss) {
    const auto at = static_cast<std::size_t>(loss);
    if (x_copied[at].position >= x_saved[at].position) x_saved[at] = x_copied[at];
  }
  /// Checkpoints up to this one have been taken and copied.
  void settle(Point point) {
    for (std::size_t loss = 0; loss < kLosses; ++loss) {
      if (!std::isinf(x_plan.ready_s[loss])) x_saved[loss] = point;
    }
  }
  /// Where the job goes on after such a loss. Copies that are under way are lost.
  Point restore(Loss loss) {
    const Point point = x_saved[static_cast<std::size_t>(loss)];
    for (Point& saved : x_saved) {
      if (saved.position > point.position) saved = point;
    }
    x_busy = {};
    ++x_version;
    return point;
  }
  Nanos busy_until() const { return *std::max_element(x_busy.begin(), x_busy.end()); }
  std::uint32_t version() const { return x_version; }

 private:
  const SavingPlan& x_plan;
  std::array<Point, kLosses> x_saved{}, x_copied{};
  std::array<Nanos, kLosses> x_busy{};
  std::uint32_t x_version = 0;  ///< of the copies; older ones are lost
};

}  // namespace foretrain
