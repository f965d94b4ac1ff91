// The operations that runs are made of, most costly first: what `calibrate --shapes-of` measures.
#pragma once

#include <string>
#include <vector>

#include "tools/calibrate/calibration.h"

namespace foretrain {

/// Each operation once, by its share of the runs' steps, as modelled for a mean rank: a run with a
/// short step counts as much as one with a long step. What cannot be measured is left out.
///
/// On a device, of whatever number of ranks the runs are: products and cuDNN's attention of their
/// shapes before all else, since these price frameworks; then kernels and copies of `execute`,
/// where they need no other rank. On the host, all of a run: an error where it has another number
/// of ranks than the scope.
Result<std::vector<MicroOp>> shapes_of_runs(const std::vector<std::string>& runs,
                                            const CalibrationScope& scope);

/// How many ranks a run has on the host, which `calibrate` measures one or two of.
Result<std::int64_t> ranks_of_run(const std::string& run);

}  // namespace foretrain
