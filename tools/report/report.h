// What `simulate` prints and what it writes as JSON.
#pragma once

#include <string>

#include "tools/predict/predict.h"

namespace foretrain {

/// One line: degrees, schedule, sharding, microbatches, kernels, as they were resolved.
std::string plan_text(const Run& run);
/// The report for a terminal: a few lines of verdict, where the time goes, memory, what would help.
std::string text_report(const Run& run, const Prediction& prediction);

/// The result JSON (keys are listed in docs/reference/files.md). All but simulation.wall_s is the
/// same on every run of one version.
Json json_report(const Run& run, const Prediction& prediction);

/// A report with its verdict and notes in colour, as a terminal takes it.
std::string coloured(std::string text);
/// "12.3 ms", "4.56 s", "18.7 us".
std::string seconds_text(double seconds);
/// A number with thousands separated by commas.
std::string count_text(std::int64_t count);
/// Fixed decimals.
std::string fixed(double value, int decimals);
/// Changes of a RUN, as `--set` takes them.
std::string sets_text(const std::vector<std::string>& sets);
Json sets_json(const std::vector<std::string>& sets);

}  // namespace foretrain
