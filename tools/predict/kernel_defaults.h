// Kernels that a system uses by default where a device has none of them.
#pragma once

#include "tools/predict/run_file.h"

namespace foretrain {

/// Attention that no key of the user's names and that the device has no kernel of in the run's type
/// gives way to the newest tiled one, else to the unfused one, with a note. Whether `run.resolved`
/// has changed, of which `plan` is.
bool derive_attention(Run& run, const Plan& plan);

}  // namespace foretrain
