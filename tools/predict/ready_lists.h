// What a coordinator of gradients finds ready in each of its cycles, from the times of a replay.
#pragma once

#include <vector>

#include "tools/predict/run_file.h"

namespace foretrain {

/// `ready`: when each part of a backward pass is, in order. The coordinator looks every `cycle`;
/// where it stands when the first is ready nobody knows: in the middle of a cycle, the mean.
std::vector<ReadyList> lists_at_cycles(const std::vector<Time>& ready, Time cycle);

/// Fills in the lists of `gradients.cycle_us`, once, where a run is read: replays the run with a
/// list for every part, and takes the parts' times. Of one chunk without experts, whose gradients
/// are reduced beside the backward pass; other plans keep a list for every part. Left out: that
/// passes are slowed otherwise by what is fused.
Status list_ready(Run& run);

}  // namespace foretrain
