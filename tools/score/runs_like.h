// "Runs like yours": published runs that are near a RUN, and how far predictions were off for them
// (configs/published_errors.json, which `foretrain score --errors` writes). Tells what to expect
// and changes no prediction.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "tools/predict/run_file.h"

namespace foretrain {

/// What runs have in common or not.
struct RunTraits {
  std::string system, device, architecture;
  std::string precision;  ///< as a RUN names it
  std::string family;     ///< dense, experts, hybrid, network
  std::int64_t parameters = 0, accelerators = 0;
  bool operator==(const RunTraits&) const = default;
};
RunTraits traits_of(const Run& run);

/// A published run and what was predicted for it.
struct PublishedRun {
  std::string id, group, source, model;
  RunTraits traits;
  double step_time_s = 0;  ///< measured
  double error = 0;        ///< of the step: (predicted - measured) / measured
  bool inside = false;     ///< measured within the predicted interval
  double distance = 0;     ///< from the run that was asked about
};

/// How far two runs lie apart; negative where they cannot be compared, being of different families
/// or of devices of different architectures. The sum of
/// - 1 where the devices differ, 1 where the systems do;
/// - |log2| of the ratio of the bits of their arithmetic;
/// - |log2| of the ratio of parameters, over 2: a factor of 4 counts 1;
/// - |log2| of the ratio of accelerators, over 3: a factor of 8 counts 1.
double distance_between(const RunTraits& a, const RunTraits& b);

/// Runs farther than this are not near.
inline constexpr double kNearRun = 3;

/// The nearest published runs, at most `most` and at most two of one group, the nearest first;
/// none where none is near.
std::vector<PublishedRun> runs_like(const RunTraits& traits, std::size_t most = 5);
/// The same among some runs.
std::vector<PublishedRun> nearest_runs(const std::vector<PublishedRun>& published,
                                       const RunTraits& traits, std::size_t most);

/// The shipped runs, read once.
const std::vector<PublishedRun>& published_runs();

/// A few lines of a report.
std::string runs_like_text(const std::vector<PublishedRun>& runs);
/// A list of {`name`, `source`, `system`, ...}, as results have it.
Json runs_like_json(const std::vector<PublishedRun>& runs);

}  // namespace foretrain
