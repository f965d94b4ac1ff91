// How sure a prediction is. A predicted value keeps its place; how wide the interval around the
// value is comes from published runs: natural logarithms of measured over predicted, at the 5th and
// the 95th percentile, of dense models and of experts (configs/intervals.json, which `foretrain
// score
// --fit-intervals` writes, and says how it is checked). Where prices alone deviate by more
// (docs/prices.md), their deviation is the side's width: conformal prediction with a floor (Vovk,
// Gammerman and Shafer 2005; by strata: Romano et al. 2020).
// Errors of plans of one model go together: their deviation among themselves, the median of the
// groups of published runs, is a width of its own.
#pragma once

#include "hardware/cluster.h"
#include "models/architecture/model.h"

namespace foretrain {

/// Natural logarithms of measured over predicted; low <= 0 <= high.
struct Deviation {
  double low = 0, high = 0;
};

/// Of configs/intervals.json, read once.
struct IntervalWidths {
  Deviation dense, experts;  ///< of a step's time
  Deviation memory;          ///< of a device's peak
  /// One deviation, as a logarithm, of step times of plans of one model among themselves.
  double plans = 0;
};
const IntervalWidths& interval_widths();

/// The widths of step times and of memory; none on a host, whose own measurements price it.
Deviation time_deviation(const Model& model, const Cluster& cluster);
Deviation memory_deviation(const Cluster& cluster);
/// `IntervalWidths::plans`; none on a host.
double plans_deviation(const Cluster& cluster);

/// The 90 % interval around `value`: on each side the wider of `prices`, a logarithm, and
/// `published`.
struct Interval {
  double low = 0, high = 0;
};
Interval interval_around(double value, double prices, const Deviation& published);

/// The probability that what is measured is at most `limit`, where `value` is predicted: normal on
/// each side of the value, in logarithms, so that 5 % lie outside either end of the interval. 0.5
/// where both are equal.
double probability_within(double value, double limit, const Deviation& published);

}  // namespace foretrain
