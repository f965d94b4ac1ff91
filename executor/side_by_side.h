// Measures the operations of a run and its steps in turns, so that both see the same machine: the
// speed of a shared one drifts by more within minutes than a prediction may be off.
#pragma once

#include "executor/calibrate.h"
#include "executor/execute.h"

namespace foretrain {

struct SideBySideOptions {
  CalibrateOptions calibrate;  ///< `seconds`: for one operation, of all rounds together
  ExecuteOptions execute;      ///< `steps`: of all rounds together, the first of which warms up
  std::int64_t rounds = 4;
};

/// One rank's part. Of each round: every operation that `profile` lacked is timed, then some steps
/// run. `micro` was made from `micro_ranks`, `transport` from the workload; all ranks call it, and
/// rank 0's profile and result are whole.
Result<Executed> measure_and_execute_rank(const std::vector<MicroOp>& ops, const Workload& workload,
                                          RankId rank, Transport& micro, Transport& transport,
                                          const SideBySideOptions& options, Profile& profile);

/// All ranks as threads of this process.
Result<Executed> measure_and_execute_threads(const std::vector<MicroOp>& ops,
                                             const Workload& workload,
                                             const SideBySideOptions& options, Profile& profile);

}  // namespace foretrain
