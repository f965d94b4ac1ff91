// Runs a Workload on host ranks and measures it.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/host_rank.h"
#include "executor/state/saved_state.h"
#include "executor/watch/life.h"
#include "sim/timeline/timeline.h"

namespace foretrain {

struct ExecuteOptions {
  HostOptions host;
  MakeRank make_rank;      ///< none: on the host
  std::int64_t steps = 5;  ///< the first warms up and is not counted when there are more
  std::function<std::string(RankId)> name_of;
  /// Where states are written; `host.training.first_step` > 0: where that state is read.
  std::optional<StateFolder> states;
  double silence = 0;  ///< of threads: see make_thread_transport
};

struct StepMeasure {
  double seconds = 0;  ///< from the barrier to the end of the last op of any rank
  bool marks = true;   ///< its ops were marked: on a device it takes longer for it
  double loss = 0;
  double clean = 1;  ///< CPU time over wall time of the kernels, of the rank where it is lowest
  /// On devices: `queued_seconds` of the rank where it is longest; NaN where that is not known.
  double queued = std::numeric_limits<double>::quiet_NaN();
};

struct Executed {
  std::vector<StepMeasure> steps;         ///< empty on ranks other than 0
  std::size_t median = 0;                 ///< the step that `timeline` shows: of those with marks
  double median_seconds = 0, spread = 0;  ///< of the counted steps; (p90 - p10) / median
  Timeline timeline;
  std::vector<StateMeasure> saves;  ///< of rank 0
  std::optional<StateMeasure> load;
};

/// Those whose time counts, if there are any: not the first, which warms up, where there are more;
/// of the rest those without marks, where there are any.
std::vector<std::size_t> counted_steps(const std::vector<StepMeasure>& steps);

/// A run in several goes, with other work between. All ranks make one and call the same.
class Execution {
 public:
  /// The workload, transport and options must outlive it.
  static Result<std::unique_ptr<Execution>> create(const Workload& workload, RankId rank,
                                                   Transport& transport,
                                                   const ExecuteOptions& options);
  ~Execution();
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;
  Execution(Execution&&) = delete;
  Execution& operator=(Execution&&) = delete;

  /// Devices do not mark ops but in the last step, and in those that tell what was queued.
  Status run(std::int64_t steps);
  /// Of all steps so far; whole on rank 0.
  Executed result() const;

 private:
  struct Step;
  Execution(const Workload& workload, RankId rank, Transport& transport,
            const ExecuteOptions& options);
  Status save_after_step();
  const Workload& x_workload;
  RankId x_rank;
  Transport& x_transport;
  const ExecuteOptions& x_options;
  std::unique_ptr<RankRunner> x_runner;
  std::vector<Step> x_steps;
  std::int64_t x_done = 0;
  bool x_shown = false;  ///< a step after the first had marks
  std::vector<StateMeasure> x_saves;
  std::optional<StateMeasure> x_load;
};

/// This process' part. All ranks call it.
Result<Executed> execute_rank(const Workload& workload, RankId rank, Transport& transport,
                              const ExecuteOptions& options);

/// All ranks as threads of this process.
Result<Executed> execute_threads(const Workload& workload, const ExecuteOptions& options);

/// Whether the ranks that run on this machine fit into its free memory.
Status check_memory(const Workload& workload, std::int64_t ranks_here);

/// Ranks that a launcher (mpirun, srun, torchrun) started this process among; 0 when none did.
std::int64_t launched_ranks();

/// One process of a job, by MPI or by TCP.
struct MpiWorld {
  RankId rank;
  std::int64_t size = 0;
  std::unique_ptr<Transport> transport;
  std::function<void()> finish;
};
/// Joins the job that the launcher's variables describe (executor/job_variables.h): by TCP, else by
/// MPI. May be called again for another Workload of as many ranks, while the first world lives;
/// `finish` once, last. `silence`: of ranks that say nothing; negative seconds: the usual time.
Result<MpiWorld> join_job(const Workload& workload, Silence silence = {});
/// By MPI: loads its module, which lies beside the program or in ../lib/foretrain.
Result<MpiWorld> join_mpi(const Workload& workload, Silence silence = {});

/// Whether `join_mpi` would find its module and `mpirun` is on the path.
Status check_mpi();

/// Starts this program again under mpirun with the same arguments, waits for it, and returns its
/// exit code (128 + the signal that ended it). SIGINT, SIGTERM and SIGHUP go to the job first, then
/// to this process.
Result<int> run_under_mpirun(std::int64_t ranks, const std::vector<std::string>& arguments);

}  // namespace foretrain
