// The same step several times.
#pragma once

#include "sim/program/program.h"

namespace foretrain {

/// What every rank does in `times` steps one after the other: the calls of a step again, on frames
/// of its own. A stream goes on to the next step when it has done this one's ops, whatever other
/// ranks do. For times: of what lives from step to step every step has its own here.
Workload repeated(const Workload& step, std::int32_t times);

}  // namespace foretrain
