// What every executor refuses: what a Program prices but does not write down completely.
#pragma once

#include <string>

#include "sim/base/result.h"
#include "sim/program/program.h"

namespace foretrain {

/// By name, before anything starts: work given as bytes and FLOPs, parameters whose operations are
/// left out, sizes that are expectations. `backend` is who refuses: "host backend".
Status check_written_down(const Workload& workload, const std::string& backend);

}  // namespace foretrain
