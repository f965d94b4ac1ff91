// Notes of a run, for whoever reads its report.
#pragma once

#include "tools/run_file.h"

namespace foretrain {

/// Appends to `run.notes` what was ignored, is not modelled, or is none of its system's.
void note_limits(Run& run);

}  // namespace foretrain
