// Predicted against executed: the same Program, prices measured op by op on the same machine.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/calibrate/host_run.h"
#include "tools/predict/predict.h"

namespace foretrain {

struct ValidateOptions {
  std::int64_t steps = 6;
  double seconds_per_op = 0.3;
  /// Predict also from this profile without the samples of the run's own shapes.
  std::shared_ptr<const Profile> prices_from;
  std::string prices_source;
  bool quiet = false;
};

/// Seconds of all ranks in one step.
struct FamilyTimes {
  double predicted_s = 0, executed_s = 0;
};

/// What a profile says of shapes that it has not seen.
struct ProfileTransfer {
  std::string profile;
  double predicted_s = 0;
  std::int64_t held_out = 0;  ///< samples of the run's shapes, left out
  struct Operation {
    std::string work;
    double predicted_us = 0, measured_us = 0;
    double error() const { return predicted_us / measured_us - 1; }
  };
  std::vector<Operation> operations;  ///< each distinct one, by the size of its error
  /// The share of the operations' errors that is below, without sign; 0.5: the median.
  double error_at(double share) const;
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
  std::optional<ProfileTransfer> transfer;
  double step_error() const { return predicted_s / executed.median_s - 1; }
  /// Largest relative difference of the losses.
  double loss_difference() const;
};

/// Measures the operations that the run's profile lacks, executes, predicts; and trains the same on
/// one rank. With `prices_from` all operations are measured now: the prediction from them tests how
/// a step is composed, that from the other profile what its samples tell of other shapes. All ranks
/// of the job call it; rank 0's result is whole.
Result<Validation> validate_here(HostRun& host, Job& job, const ValidateOptions& options);

std::string validation_table(const HostRun& host, const Job& job, const Validation& result);
Json validation_json(const HostRun& host, const Validation& result);

}  // namespace foretrain
