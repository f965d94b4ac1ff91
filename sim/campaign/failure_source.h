// When failures and slow-downs begin: Poisson processes, by a generator of their own.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "sim/base/rng.h"
#include "sim/campaign/campaign.h"

namespace foretrain {

inline constexpr Nanos kNoNanos = std::numeric_limits<Nanos>::max();

/// Several Poisson processes as one whose events are shared out by their rates.
class PoissonSource {
 public:
  PoissonSource(std::vector<double> per_day, std::uint64_t seed, double wear_in_factor = 1,
                double wear_in_days = 0);

  /// The first event after `now`; `kNoNanos` where there is none.
  Nanos next(Nanos now);
  /// Whose the event is.
  std::size_t choose();
  /// Uniform on [0, bound).
  std::int64_t below(std::int64_t bound) { return x_rng.below(bound); }

 private:
  std::vector<double> x_sums;  ///< of rates a day, up to each
  double x_wear_in_factor, x_wear_in_days;
  Rng x_rng;
};

}  // namespace foretrain
