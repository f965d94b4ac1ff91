// Real checkpoints of host ranks: every rank writes its weights and optimizer states into a file of
// its own.
//
// FOLDER/step-N/rank-R.state is written beside its place and renamed, and rank-R.json, which says
// which elements of the model's tensors it has; FOLDER/step-N/state.json is written last, by rank
// 0, with a checksum of every file: a folder without it is none. Killed at any moment, the states
// before stay whole.
//
// The plan that wrote a state reads the files back as they are. Another plan of the same model and
// batch reads ranges of tensors (state_map.h), whatever ranks have them.
// Left out: devices; every copy is written; no fsync, so a power failure may lose the newest.
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
  std::string model;              ///< tells models apart whose tensors are alike
  bool of_other_plan = false;     ///< the state that is read
  std::uint64_t fingerprint = 0;  ///< of the Workload; 0: it is made with every state
};

/// Of what was written or read, until all ranks were done.
struct StateMeasure {
  double seconds = 0;
  Bytes bytes = 0;      ///< of this rank
  Bytes all_bytes = 0;  ///< of all ranks; on rank 0 alone
};

/// A state that a run can go on from.
struct SavedPoint {
  std::int64_t steps = 0;  ///< 0: there is none
  bool of_other_plan = false;
};

/// Tells plans apart: a hash of all Programs and of what ranks they are bound to.
std::uint64_t fingerprint_of(const Workload& workload);

/// Writes the state after so many steps, and removes those that are more than `keep`. All ranks
/// call it.
Result<StateMeasure> save_state(const StateFolder& folder, const Workload& workload,
                                RankRunner& runner, RankId rank, Transport& transport,
                                std::int64_t steps);

/// The newest whole state, before any rank runs: damaged ones are left out, with a note for each.
/// One of another model or batch is an error.
Result<SavedPoint> newest_state(const StateFolder& folder, const Workload& workload,
                                std::vector<std::string>& notes);

/// Reads the state after so many steps into a rank that is set up. All ranks call it.
Result<StateMeasure> load_state(const StateFolder& folder, RankRunner& runner, RankId rank,
                                Transport& transport, std::int64_t steps);

}  // namespace foretrain
