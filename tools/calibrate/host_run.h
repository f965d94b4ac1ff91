// Running Workloads on this machine: as one process, as ranks of a job, or as threads.
#pragma once

#include <string>
#include <vector>

#include "executor/cuda_module.h"
#include "executor/execute.h"
#include "tools/predict/run_file.h"

namespace foretrain {

/// A RUN that is ready to run here.
struct HostRun {
  Run run;
  Workload workload;
  CudaModule cuda;  ///< of `--device cuda`
  bool on_cuda() const { return cuda.devices > 0; }
};

/// Reads, lowers and verifies; refuses what does not fit into memory or cannot be executed, before
/// anything starts. `ranks` > 0 overrides the accelerators of the cluster.
/// On a device `cuda` is open.
Result<HostRun> prepare_host_run(const std::string& name_or_path, std::vector<std::string> sets,
                                 std::int64_t ranks, CudaModule cuda = {});

/// What a verb runs on: nothing for "host", the CUDA module for "cuda", or what is missing.
Result<CudaModule> open_device(const std::string& device);
/// How the ranks of this invocation run.
struct Job {
  enum class Kind : std::uint8_t { kAlone, kThreads, kMpi, kTcp, kRelaunched };
  Kind kind = Kind::kAlone;
  std::int64_t ranks = 1;
  MpiWorld world;     ///< of kMpi and kTcp
  int exit_code = 0;  ///< of kRelaunched: what the ranks returned
  /// Whether this process is one rank of several.
  bool joined() const { return kind == Kind::kMpi || kind == Kind::kTcp; }
  bool speaks() const { return !joined() || world.rank.value == 0; }
  const char* transport() const {
    if (kind == Kind::kTcp) return "tcp";
    return kind == Kind::kMpi ? "mpi" : kind == Kind::kThreads ? "threads" : "none";
  }
};

/// One rank: alone. Several, as `rank_start` says: joins the job that this process is part of; else
/// starts `arguments` again, once a rank, and waits (kRelaunched); else threads. On devices every
/// rank of a job has one of its own, or it is refused.
/// `silence`: seconds, see `Silence`.
Result<Job> start_job(const HostRun& host, bool threads, const std::vector<std::string>& arguments,
                      double silence = -1);

/// The error of ranks that ended with a code other than 0.
Status relaunched_status(const Job& job);

/// How the run executes: on what, how often, and its ranks' names. `host` must outlive it.
ExecuteOptions execute_options(const HostRun& host, std::int64_t steps);

/// Executes as the job says; rank 0's result is whole.
Result<Executed> execute_job(const HostRun& host, Job& job, const ExecuteOptions& options);

/// Median and number of the steps that count: the clean ones (CPU over wall time >= 0.98), all when
/// there are none.
struct CountedSteps {
  double median_s = 0, spread = 0;
  std::int64_t clean = 0, counted = 0;
  bool busy = false;  ///< no step was clean
  /// Median of the CPU time of the steps: on one rank what a step would take if nobody else used
  /// its core (but for what others leave in caches).
  double cpu_s = 0;
};
CountedSteps count_steps(const Executed& executed);

}  // namespace foretrain
