#include "tools/calibrate/host_run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "executor/cuda/device.h"
#include "executor/device_seats.h"
#include "executor/launch.h"
#include "hardware/presets.h"
#include "models/lower.h"
#include "sim/base/printable.h"
#include "sim/program/verify.h"

namespace foretrain {

Result<CudaModule> open_device(const std::string& device) {
  if (device == "host") return CudaModule{};
  Result<CudaModule> cuda = open_cuda();
  if (cuda.ok()) return cuda;
  // What `doctor` says, where files tell why.
  const Status files = check_cuda_files();
  const Error& why = files.ok() ? cuda.error() : files.error();
  return input_error("--device cuda: " + why.message + "; or use --device host");
}

Result<HostRun> prepare_host_run(const std::string& name_or_path, std::vector<std::string> sets,
                                 std::int64_t ranks, CudaModule cuda) {
  if (ranks > 0) sets.push_back("cluster.accelerators=" + std::to_string(ranks));
  FT_ASSIGN(Run run, load_run(name_or_path, sets));
  if (cuda.devices > 0 && run.cluster.device.name == "host" && !cuda.device_names.empty()) {
    // The GPU at hand is what the host's cluster stands for.
    const NamedGpu gpu = gpu_called(cuda.device_names.front());
    if (!gpu.cluster.empty()) {
      sets.push_back("cluster={\"preset\": \"" + gpu.cluster +
                     "\", \"accelerators\": " + std::to_string(run.cluster.accelerators) + "}");
      FT_ASSIGN(run, load_run(name_or_path, sets));
    }
  }
  if (!run.cluster.pools.empty()) {
    return unsupported(run.source + ": /cluster/pools: ranks run on devices of one kind");
  }
  if (run.model.is_network()) {
    return unsupported(run.source + ": /model: " + run.model.name +
                       " is a network of layers, which is only simulated; expected a transformer");
  }
  if (run.model.is_encoder_decoder()) {
    return unsupported(run.source + ": /model: " + run.model.name +
                       " is an encoder-decoder, which is only simulated; expected a model of one "
                       "stack");
  }
  if (run.plan.recompute.operations) {
    return unsupported(run.source +
                       ": /recompute: operations is only simulated; expected none, full or other "
                       "modules (kernels.selective attention makes selective executable)");
  }
  // Executors multiply parts one after another and send them by NCCL or MPI.
  run.plan.overlap.tensor_streams = 1;
  run.plan.overlap.tensor_copy_engines = false;
  HostRun out{std::move(run), {}, std::move(cuda)};
  FT_TRY(lowerable(out.run.model, out.run.plan));
  out.workload = lower(out.run.model, out.run.plan);
  if (!out.on_cuda()) {
    FT_TRY(check_memory(out.workload, static_cast<std::int64_t>(out.workload.ranks.size())));
  }
  const Status possible =
      out.on_cuda() ? check_device_executable(out.workload) : check_executable(out.workload);
  if (out.on_cuda() && out.run.graphs_by_layer) {
    return unsupported(out.run.source +
                       ": /launch/cuda_graph: the CUDA backend captures whole "
                       "steps; set it to full or none");
  }
  if (out.on_cuda() && !out.cuda.cudnn && out.run.plan.attention == AttentionKernel::kCudnn) {
    return unsupported(out.run.source +
                       ": /kernels/attention: this build's CUDA backend has no cuDNN; set it to "
                       "flash or unfused");
  }
  if (!possible.ok()) return unsupported(out.run.source + ": " + possible.error().message);
  if (const Status status = verify(out.workload); !status.ok()) {
    return input_error(
        "the lowered program is not well-formed (a bug of foretrain, please report): " +
        status.error().message);
  }
  return out;
}

Result<Job> start_job(const HostRun& host, bool threads, const std::vector<std::string>& arguments,
                      double silence) {
  using By = RankStart::By;
  Job job;
  job.ranks = static_cast<std::int64_t>(host.workload.ranks.size());
  const RankStart start = rank_start(threads);
  if (start.by == By::kMpi || start.by == By::kTcp) {
    FT_ASSIGN(job.world, join_job(host.workload, {silence, !host.on_cuda()}));
    job.kind = start.by == By::kMpi ? Job::Kind::kMpi : Job::Kind::kTcp;
    if (host.on_cuda()) FT_TRY(take_seats(host.cuda, job.world.rank, *job.world.transport));
    return job;
  }
  if (job.ranks == 1) return job;
  if (start.by != By::kMpirun && host.on_cuda()) {
    FT_TRY(device_of(RankId(static_cast<std::size_t>(job.ranks - 1)), host.cuda.devices));
  }
  job.kind = start.by == By::kThreads ? Job::Kind::kThreads : Job::Kind::kRelaunched;
  if (start.by == By::kMpirun) {
    FT_ASSIGN(job.exit_code, run_under_mpirun(job.ranks, arguments));
  } else if (start.by == By::kProcesses) {
    if (std::find(arguments.begin(), arguments.end(), "--quiet") == arguments.end()) {
      warn(start.note + "; going on with processes that TCP connects");
    }
    FT_ASSIGN(job.exit_code, run_as_processes(job.ranks, arguments));
  }
  return job;
}

Status relaunched_status(const Job& job) {
  if (job.exit_code == 0) return ok_status();
  return input_error("the ranks ended with exit code " + std::to_string(job.exit_code) +
                     " (see above); no result was written");
}

ExecuteOptions execute_options(const HostRun& host, std::int64_t steps) {
  ExecuteOptions options;
  options.steps = steps;
  options.make_rank = host.cuda.make_rank;
  options.host.graphs = host.run.graphs;
  const Plan& plan = host.run.plan;
  options.name_of = [&plan](RankId rank) {
    return "rank " + std::to_string(rank.value) + ": " + name_of(coordinates_of(plan, rank));
  };
  return options;
}

Result<Executed> execute_job(const HostRun& host, Job& job, const ExecuteOptions& options) {
  if (!job.joined()) return execute_threads(host.workload, options);
  return execute_rank(host.workload, job.world.rank, *job.world.transport, options);
}

CountedSteps count_steps(const Executed& executed) {
  constexpr double kClean = 0.98;
  CountedSteps out;
  std::vector<double> clean;
  std::vector<double> all;
  std::vector<double> cpu;
  for (const std::size_t s : counted_steps(executed.steps)) {
    all.push_back(executed.steps[s].seconds);
    cpu.push_back(executed.steps[s].seconds * executed.steps[s].clean);
    if (executed.steps[s].clean >= kClean) clean.push_back(executed.steps[s].seconds);
  }
  out.clean = static_cast<std::int64_t>(clean.size());
  out.busy = clean.empty();
  std::vector<double>& counted = out.busy ? all : clean;
  out.counted = static_cast<std::int64_t>(counted.size());
  if (counted.empty()) return out;
  std::sort(counted.begin(), counted.end());
  std::sort(cpu.begin(), cpu.end());
  out.cpu_s = cpu[cpu.size() / 2];
  const auto at = [&counted](double share) {
    return counted[static_cast<std::size_t>(
        std::lround(share * static_cast<double>(counted.size() - 1)))];
  };
  out.median_s = at(0.5);
  out.spread = (at(0.9) - at(0.1)) / std::max(out.median_s, 1e-12);
  return out;
}

}  // namespace foretrain
