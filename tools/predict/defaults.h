// What a RUN leaves out: values laid over one another, each with its origin.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/predict/run_file.h"

namespace foretrain {

inline constexpr const char* kPrecisionPointer = "/precision";

/// Lays `over` onto `base`: objects member by member, everything else whole. Notes where values
/// come from, by JSON pointer.
void overlay(Json& base, const Json& over, const std::string& origin, const std::string& pointer,
             std::map<std::string, std::string>& origins);

/// Lays what a system's `file` supplies onto `run.resolved`: its defaults, then those of the
/// device's architecture.
Status lay_system(Run& run, const Json& file);

/// Lays the defaults of a release of the run's system over the system's own. `software` is a
/// release ("nemo-25.09") or a date ("2025", "2025-09"): the release that was current then. A date
/// before the first release, or of a system without releases, changes nothing and is noted. A name
/// that no file has, or a release of another system, is an error at `source`: /software.
Status lay_software(Run& run, const Json& software, const std::string& source);

/// The release that `software` of the run names or means; "" if there is none.
std::string release_in(const Run& run);

/// What the run's release cannot do otherwise and the RUN says otherwise, as `--set` takes what the
/// release does.
std::vector<std::string> unlike_release(const Run& run);

/// What `score` takes for a row whose RUN names no software, from what its source called it
/// ("~nemo-25.09+vboost"; ~: inferred): the release of that name, else the last of its family
/// ("nemo-") that is not younger, else the date in it, else "".
std::string software_called(const std::string& text, const std::string& system);

}  // namespace foretrain
