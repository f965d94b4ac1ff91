#include "sim/campaign/interval.h"

#include <cmath>

namespace foretrain {

double young_interval(double stall_s, double mttf_s) { return std::sqrt(2 * stall_s * mttf_s); }

double daly_interval(double stall_s, double mttf_s) {
  if (stall_s >= 2 * mttf_s) return mttf_s;
  const double x = stall_s / (2 * mttf_s);
  return young_interval(stall_s, mttf_s) * (1 + std::sqrt(x) / 3 + x / 9) - stall_s;
}

double expected_ettr(double failures_per_s, double start_s, double interval_s, double stall_s) {
  return (1 - failures_per_s * (start_s + interval_s / 2)) / (1 + stall_s / interval_s);
}

double expected_wall(double failures_per_s, double start_s, double interval_s, double stall_s) {
  if (failures_per_s <= 0) return 1 + stall_s / interval_s;
  // A start is got through after (exp(r u) - 1) / r.
  const double start = std::expm1(failures_per_s * start_s) / failures_per_s;
  return std::expm1(failures_per_s * (interval_s + stall_s)) * (1 / failures_per_s + start) /
         interval_s;
}

}  // namespace foretrain
