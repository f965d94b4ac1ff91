// verify: the pair assertion between whoever writes a Workload and whoever interprets it.
#pragma once

#include "sim/base/result.h"
#include "sim/program/program.h"

namespace foretrain {

/// Checks one Program:
/// - every id is in range, views lie inside their buffers, aliases inside theirs;
/// - events are recorded once, and before (in issue order) anything waits for them;
/// - buffers are live when touched, not allocated twice, and gone at the end unless persistent;
/// - no race: any two ops that touch common bytes, one of them writing, are ordered by streams and
/// events;
///   an op that allocates or frees counts as a writer of the whole buffer;
/// - no read of bytes that nothing has written since they were allocated (persistent ones start
/// written);
/// - memory-bound kernels state the bytes of their operands.
Status verify(const Program& program);

/// Checks every Program, and across ranks:
/// - slots are bound where used, groups and channels name existing ranks, and name them back;
/// - every member of a group issues the same collectives in the same order, on one stream;
/// - sends match receives along each channel, in order and size.
Status verify(const Workload& workload);

}  // namespace foretrain
