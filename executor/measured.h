// What an execution measured, as a Timeline like the simulator's.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "executor/host_rank.h"
#include "sim/timeline/timeline.h"

namespace foretrain {

/// By stream, in issue order: the ops of one rank in one step.
using RankRecords = std::vector<std::vector<OpRecord>>;

/// The Timeline of one step of all ranks. A collective and a message start when the last of their
/// partners has begun, by clocks that were set to zero at a barrier.
Timeline measured_timeline(const Workload& workload, const std::vector<RankRecords>& ranks,
                           const std::function<std::string(RankId)>& name_of);

}  // namespace foretrain
