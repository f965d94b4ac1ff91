// Notes of a run, for whoever reads its report, and what its system has not.
#pragma once

#include <string>
#include <vector>

#include "tools/predict/run_file.h"

namespace foretrain {

/// Of what the system has not, what "KEY=VALUE" sets; "" if nothing. What it has only together with
/// another key it has where `beside` or the run set that one.
std::string lacked_by(const Run& run, const std::string& set,
                      const std::vector<std::string>& beside = {});

/// `devices` of a system's file: makers whose devices it runs on.
Status read_devices(const Json* devices, const std::string& source, Run& run);

/// Appends to `run.notes` what was ignored, is not modelled, or is none of its system's.
void note_limits(Run& run);

}  // namespace foretrain
