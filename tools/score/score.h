// Scoring: predicts published runs and compares.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/result.h"
#include "sim/timeline/breakdown.h"
#include "tools/score/runs_like.h"

namespace foretrain {

/// One published run (configs/published/README.md).
struct Row {
  std::string id, group, source, trust;
  bool bulk = false;
  Json run;
  double step_time_s = 0;      ///< 0: not measured
  double peak_memory_gib = 0;  ///< 0: not measured
  std::string memory_metric;   ///< allocated, reserved, device, logged, theoretical
};

/// Of the run that was predicted, for tables.
struct RowFacts {
  double price_deviation = 0;            ///< of the interval what the prices alone allow
  bool experts = false, narrow = false;  ///< of the model; arithmetic in 8 bits or fewer
  std::int64_t accelerators = 0;
  double tokens = 0;  ///< of a step
  RunTraits traits;
  std::string model;  ///< its name
  /// Seconds of the critical rank's step by `Part`.
  std::array<double, static_cast<std::size_t>(Part::kCount)> parts_s{};
};

struct RowResult {
  enum class State : std::uint8_t { kOk, kUnsupported, kError };
  State state = State::kOk;
  std::string reason;
  /// What was added to the RUN, as `--set` takes it: a run that was measured fitted (score.cpp).
  std::vector<std::string> assumed;
  double step_time_s = 0, peak_memory_gib = 0;
  double interval_s[2] = {0, 0};
  double time_error = 0, memory_error = 0;  ///< (predicted - measured) / measured
  RowFacts facts;
};

/// Reads rows from files, or from all .json files of folders (sorted by name).
Result<std::vector<Row>> read_rows(const std::vector<std::string>& paths);

/// Predicts one row.
RowResult score_row(const Row& row);

/// Median, mean and 90th percentile of absolute errors and the mean signed error, plain or with
/// each row weighted. Quantiles of weighted values: the smallest value at which the weights reach
/// the share.
struct ErrorStatistics {
  std::size_t count = 0;
  double median = 0, mean = 0, p90 = 0, bias = 0;
};
ErrorStatistics statistics(const std::vector<double>& errors, const std::vector<double>& weights);

/// The table that `score` prints.
std::string score_table(const std::vector<Row>& rows, const std::vector<RowResult>& results,
                        std::size_t worst);
Json score_json(const std::vector<Row>& rows, const std::vector<RowResult>& results);
std::string score_csv(const std::vector<Row>& rows, const std::vector<RowResult>& results);

}  // namespace foretrain
