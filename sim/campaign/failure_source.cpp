#include "sim/campaign/failure_source.h"

#include <algorithm>
#include <cmath>

namespace foretrain {

PoissonSource::PoissonSource(std::vector<double> per_day, std::uint64_t seed, double wear_in_factor,
                             double wear_in_days)
    : x_sums(std::move(per_day)),
      x_wear_in_factor(wear_in_days > 0 ? std::max(1.0, wear_in_factor) : 1),
      x_wear_in_days(wear_in_days),
      x_rng(seed) {
  for (std::size_t i = 1; i < x_sums.size(); ++i) x_sums[i] += x_sums[i - 1];
}

Nanos PoissonSource::next(Nanos now) {
  const double total = x_sums.empty() ? 0 : x_sums.back();
  if (total <= 0) return kNoNanos;
  double days = seconds_of(now) / kSecondsPerDay;
  const double most = total * x_wear_in_factor;
  while (true) {
    days -= std::log1p(-x_rng.uniform()) / most;
    constexpr double kLongestDays = 1e5;
    if (days > kLongestDays) return kNoNanos;
    // Thinning (Lewis and Shedler 1979): of events at the highest rate those of the present one.
    if (x_wear_in_factor <= 1) break;
    const double now_factor = 1 + (x_wear_in_factor - 1) * std::exp(-days / x_wear_in_days);
    if (x_rng.uniform() * x_wear_in_factor < now_factor) break;
  }
  return std::max(now, nanos(days * kSecondsPerDay));
}

std::size_t PoissonSource::choose() {
  const double at = x_rng.uniform() * x_sums.back();
  const auto found = std::upper_bound(x_sums.begin(), x_sums.end(), at);
  return std::min(static_cast<std::size_t>(found - x_sums.begin()), x_sums.size() - 1);
}

}  // namespace foretrain
