// Notes of a run, for whoever reads its report, and what its system has not.
#pragma once

#include "tools/run_file.h"

namespace foretrain {

/// Of what the system has not, what "KEY=VALUE" sets; "" if nothing.
std::string lacked_by(const Run& run, const std::string& set);

/// Appends to `run.notes` what was ignored, is not modelled, or is none of its system's.
void note_limits(Run& run);

}  // namespace foretrain
