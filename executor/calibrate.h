// Measures operations one by one with the very kernels and transports that execute Programs.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/machine_state.h"
#include "executor/micro.h"
#include "executor/op_timings.h"
#include "executor/rank_runner.h"
#include "executor/transport.h"

namespace foretrain {

/// How one operation is timed. Operands are random and turn through several sets that together are
/// larger than a core's own cache; the first step (every set once or more) warms up. Steps repeat
/// until the distance between the quartiles is below `spread` of the median, or `seconds` are over.
/// Kernels in which others used the core (CPU time over wall time below 0.98) count only when there
/// are too few others, and then with their CPU time; the sample says so (`clean`). A collective's
/// or message's time is that of the rank that waits least; a disturbed one cannot be told.
///
/// The key of an op says in which state of the machine it is taken. Burst: a pause before every
/// step, in which every set is used once. Sustained: steps of about `long_step` follow each other
/// until, from one `window` to the next, neither the op's time nor the clock differs by more than
/// `drift`; at least `settle`, the first time `heat`, at most `most_settle`, and where that was not
/// enough the sample's `stopped` is "drifting". Else neither pause nor wait.
///
/// Beside held SMs: a step with them follows a step without, and the sample has both times. What
/// cannot be measured so (no such device, no room) is left out and `Profile::machine` says why
/// (`skipped`), as it does of an op that the only rank does not support.
struct CalibrateOptions {
  double seconds = 0.3;  ///< for one operation
  double spread = 0.03;
  Bytes rotation = 4 << 20;                  ///< of a rank
  bool again = false;                        ///< measure what the profile has already
  MakeRank make_rank;                        ///< what measures; none: host ranks
  std::string library;                       ///< that multiplies; "": the host's own
  double gemm_rate = 5e10, byte_rate = 4e9;  ///< FLOP/s and B/s, roughly: how often to repeat
  std::int64_t most_sets = 64;               ///< of operands
  double pause = 0.02, long_step = 0.1, window = 0.25, drift = 0.01;  ///< s, but for the last
  double settle = 0.5, heat = 3, most_settle = 6;                     ///< s
  /// What rank 0's machine runs at: read while a device works on a step, else after it, at most
  /// every 20 ms; or why it cannot be read at all.
  std::shared_ptr<StateReader> state;
  std::string no_state;
  std::function<bool()> interrupted;
  /// Nothing is begun after it; an operation that was timed too rarely by then is left out.
  std::optional<std::chrono::steady_clock::time_point> deadline;
  std::function<void(double)> rest;  ///< a pause of so many s; none: sleeps
  /// Operations done, in all, and the next one's shape; on rank 0.
  std::function<void(std::size_t, std::size_t, const std::string&)> progress;
  std::function<Status()> save;  ///< on rank 0, about every second and at the end
};

/// Whether the library of matrix products works in it.
bool multiplies(const Work& work);

/// Measures a list of operations, dispatch and event costs first (of devices those of launches and
/// of CUDA graphs too), in one round or in several with
/// other work between: each round times every op again, and samples are of all rounds together. So
/// a machine whose speed drifts is the same for what is measured and for what runs between.
class Calibration {
 public:
  /// All ranks make one with the same ops; `transport` was made from `micro_ranks(ranks)`. Both
  /// must outlive it.
  Calibration(const std::vector<MicroOp>& ops, std::int64_t ranks, RankId self,
              Transport& transport, CalibrateOptions options);

  /// Adds samples to rank 0's `profile`; what it had at the first round is not measured (unless
  /// `again`). All ranks call it. False when interrupted, or out of time.
  Result<bool> round(Profile& profile);

 private:
  using Clock = std::chrono::steady_clock;
  /// How an op is repeated: sets of operands, ops of a step, ranks that do one together.
  struct Turns {
    std::int64_t sets = 2, repeats = 2, members = 1;
  };
  void find_known(const Profile& profile);
  SampleKey key_of(std::size_t i) const;
  const MicroOp& op_of(std::size_t i) const;
  Result<bool> agree(bool value);
  Result<Sample> measure(std::size_t i, const Profile& profile);
  Status measure_overhead(std::size_t i, Sample& out);
  Status measure_op(std::size_t i, Sample& out);
  Status measure_sustained(std::size_t i, const Sample* burst, Sample& out);
  Status measure_beside(std::size_t i, Sample& out);
  Turns turns_of(const MicroOp& micro) const;
  Result<std::unique_ptr<RankRunner>> make_rank(const Workload& workload, bool records,
                                                bool graphs);
  Result<std::unique_ptr<RankRunner>> make_op_rank(const Workload& workload, const MicroOp& micro,
                                                   const Turns& turns);
  /// One step; its times go to rank 0's `timings`, if there are any.
  Status step(RankRunner& rank, std::size_t i, std::int64_t members, OpTimings* timings);
  Status repeat(RankRunner& rank, std::size_t i, std::int64_t members, Sample& out);
  Result<bool> settle(RankRunner& rank, std::size_t i, std::int64_t members);
  Result<double> guess_seconds(std::size_t i, const Sample* burst);
  void look(bool surely);
  void describe_machine(Profile& profile) const;
  bool stop_asked() const {
    return (x_options.interrupted && x_options.interrupted()) ||
           (x_options.deadline && Clock::now() >= *x_options.deadline);
  }

  const std::vector<MicroOp>& x_ops;
  std::int64_t x_ranks;
  RankId x_self;
  Transport& x_transport;
  CalibrateOptions x_options;
  GroupId x_everyone;
  std::vector<OpTimings> x_timings;      ///< samples that are no works, ops
  std::vector<bool> x_known;             ///< likewise; empty before the first round
  std::vector<MachineState> x_readings;  ///< since the last step's times were taken
  Clock::time_point x_looked;
  bool x_heated = false;               ///< something sustained was measured
  std::vector<std::string> x_skipped;  ///< ops, and why
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
