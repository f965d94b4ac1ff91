// Widths of prediction intervals from published runs, and how well widths from some sources cover
// the runs of another.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/predict/interval.h"
#include "tools/score/score.h"

namespace foretrain {

/// How many of some rows lie in their intervals.
struct Coverage {
  std::size_t rows = 0, inside = 0;
};

struct FittedIntervals {
  IntervalWidths widths;
  std::size_t dense = 0, experts = 0, memory = 0;  ///< rows that each is from
  std::size_t groups = 0;                          ///< of three rows or more: `widths.plans`
  /// Of times, of rows whose whole source is left out from what gives the widths: all, and by
  /// experts, bits of the arithmetic and number of accelerators.
  Coverage left_out;
  std::size_t sources = 0;
  std::map<std::string, Coverage> strata;
};

/// From the rows that were predicted: weighted 5th and 95th percentiles of log(measured /
/// predicted), a row of a group of n weighs 1 / sqrt(n). A source is what stands in a row's
/// `source` before the file: a repository. Memory counts the peaks that a
/// device, an allocator or a framework reported, not those that a paper works out. Of plans: the
/// median over groups of three rows or more of their standard deviation.
FittedIntervals fit_intervals(const std::vector<Row>& rows, const std::vector<RowResult>& results);

/// As configs/intervals.json has it; `month`: of today ("2026-11").
Json intervals_json(const FittedIntervals& fitted, const std::string& month);

/// Rows of which the time lies in the interval that was predicted.
Coverage coverage(const std::vector<Row>& rows, const std::vector<RowResult>& results);

}  // namespace foretrain
