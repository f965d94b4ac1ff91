// Measures operations one by one with the very kernels and transports that execute Programs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "executor/micro.h"
#include "executor/rank_runner.h"
#include "executor/transport.h"

namespace foretrain {

/// How one operation is timed. Operands are random and turn through several sets that together are
/// larger than a core's own cache; the first step (every set once or more) warms up. Steps repeat
/// until the distance between the quartiles is below `spread` of the median, or `seconds` are over.
/// Kernels in which others used the core (CPU time over wall time below 0.98) count only when there
/// are too few others, and then with their CPU time; the sample says so (`clean`). A collective's
/// or message's time is that of the rank that waits least; a disturbed one cannot be told.
struct CalibrateOptions {
  double seconds = 0.3;  ///< for one operation
  double spread = 0.03;
  Bytes rotation = 4 << 20;                  ///< of a rank
  bool again = false;                        ///< measure what the profile has already
  MakeRank make_rank;                        ///< what measures; none: host ranks
  std::string library;                       ///< that multiplies; "": the host's own
  double gemm_rate = 5e10, byte_rate = 4e9;  ///< FLOP/s and B/s, roughly: how often to repeat
  std::int64_t most_sets = 64;               ///< of operands
  std::function<bool()> interrupted;
  /// Operations done, in all, and the next one's shape; on rank 0.
  std::function<void(std::size_t, std::size_t, const std::string&)> progress;
  std::function<Status()> save;  ///< on rank 0, about every second and at the end
};

/// Times of one operation in us: of the repeats that nobody disturbed, and of all (CPU time where
/// disturbed).
struct OpTimings {
  std::vector<double> clean, all;
};

/// Measures a list of operations, dispatch and event costs first, in one round or in several with
/// other work between: each round times every op again, and samples are of all rounds together. So
/// a machine whose speed drifts is the same for what is measured and for what runs between.
class Calibration {
 public:
  /// All ranks make one with the same ops; `transport` was made from `micro_ranks(ranks)`. Both
  /// must outlive it.
  Calibration(const std::vector<MicroOp>& ops, std::int64_t ranks, RankId self,
              Transport& transport, CalibrateOptions options);

  /// Adds samples to rank 0's `profile`; what it had at the first round is not measured (unless
  /// `again`). All ranks call it. False when interrupted.
  Result<bool> round(Profile& profile);

 private:
  void find_known(const Profile& profile);
  SampleKey key_of(std::size_t i) const;
  Result<bool> agree(bool value);
  Result<Sample> measure(std::size_t i);
  Result<std::unique_ptr<RankRunner>> make_rank(const Workload& workload, bool records);
  Status repeat(RankRunner& rank, std::size_t i, std::int64_t members, Sample& out);

  const std::vector<MicroOp>& x_ops;
  std::int64_t x_ranks;
  RankId x_self;
  Transport& x_transport;
  CalibrateOptions x_options;
  GroupId x_everyone;
  std::vector<OpTimings> x_timings;  ///< dispatch, event, ops
  std::vector<bool> x_known;         ///< likewise; empty before the first round
};

/// Adds samples of `ops` to rank 0's `profile`, dispatch and event costs first. All ranks call it
/// with the same ops; `transport` was made from `micro_ranks(ranks)`. False when interrupted.
Result<bool> calibrate_rank(const std::vector<MicroOp>& ops, std::int64_t ranks, RankId self,
                            Transport& transport, const CalibrateOptions& options,
                            Profile& profile);

/// All ranks as threads of this process.
Result<bool> calibrate_threads(const std::vector<MicroOp>& ops, std::int64_t ranks,
                               const CalibrateOptions& options, Profile& profile);

/// Bytes of a core's own (second level) cache; 1 MiB where the system does not say.
Bytes private_cache_bytes();

/// What this machine is and what measures on it: `Profile::machine`, without the command.
Json machine_identity();

/// Whether two identities are of one machine: processor, cores, libraries.
bool same_machine(const Json& a, const Json& b);

}  // namespace foretrain
