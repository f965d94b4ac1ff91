// Real checkpoints of host ranks: every rank writes its persistent buffers into a file of its own.
//
// FOLDER/step-N/rank-R.state is written beside its place and renamed; FOLDER/step-N/state.json is
// written last, by rank 0, with a checksum of every file: a folder without it is none. Killed at
// any moment, the states before stay whole.
// Left out: devices; a state of another plan; no fsync, so a power failure may lose the newest.
#pragma once

#include <string>

#include "executor/rank_runner.h"
#include "executor/transport.h"
#include "sim/program/program.h"

namespace foretrain {

/// Where states lie, how often one is written, and how many are kept.
struct StateFolder {
  std::string path;
  std::int64_t every = 1, keep = 2;
};

/// Of what was written or read by this rank.
struct StateMeasure {
  double seconds = 0;
  Bytes bytes = 0;
};

/// Tells plans apart: a hash of all Programs and of what ranks they are bound to.
std::uint64_t fingerprint_of(const Workload& workload);

/// Writes the state after so many steps, and removes those that are more than `keep`. All ranks
/// call it.
Result<StateMeasure> save_state(const StateFolder& folder, const Workload& workload,
                                RankRunner& runner, RankId rank, Transport& transport,
                                std::int64_t steps);

/// Steps of the newest whole state of this Workload, before any rank runs: damaged ones are left
/// out, with a note for each. 0: there is none.
Result<std::int64_t> newest_state(const StateFolder& folder, const Workload& workload,
                                  std::vector<std::string>& notes);

/// Reads the state after so many steps into a rank that is set up.
Result<StateMeasure> load_state(const StateFolder& folder, const Workload& workload,
                                RankRunner& runner, RankId rank, std::int64_t steps);

}  // namespace foretrain
