// Predicted against executed: the same Program, prices measured op by op on the same machine.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/host_run.h"
#include "tools/predict.h"

namespace foretrain {

struct ValidateOptions {
  std::int64_t steps = 6;
  double seconds_per_op = 0.3;
  bool quiet = false;
};

/// Seconds of all ranks in one step.
struct FamilyTimes {
  double predicted_s = 0, executed_s = 0;
};

struct Validation {
  double predicted_s = 0;
  CountedSteps executed;
  std::map<Part, FamilyTimes> families;
  std::map<std::string, FamilyTimes> operations;  ///< by the text of their work
  std::array<double, 3> provenance{};
  std::int64_t measured_now = 0;  ///< operations that the profile lacked
  std::int64_t measured_clean = 0;
  std::vector<double> losses, losses_of_one_rank;
  double step_error() const { return predicted_s / executed.median_s - 1; }
  /// Largest relative difference of the losses.
  double loss_difference() const;
};

/// Measures the operations that the run's profile lacks, executes, predicts; and trains the same on
/// one rank. All ranks of the job call it; rank 0's result is whole.
Result<Validation> validate_here(HostRun& host, Job& job, const ValidateOptions& options);

std::string validation_table(const HostRun& host, const Job& job, const Validation& result);
Json validation_json(const HostRun& host, const Validation& result);

}  // namespace foretrain
