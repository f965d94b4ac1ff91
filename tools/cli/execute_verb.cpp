#include <cmath>
#include <cstdio>

#include "executor/calibrate.h"
#include "executor/kernels.h"
#include "sim/base/printable.h"
#include "tools/calibrate/host_run.h"
#include "tools/cli/verbs.h"
#include "tools/report/report.h"
#include "traces/timeline_json.h"

namespace foretrain {
namespace {

Json to_json(const HostRun& host, const Job& job, const Executed& executed) {
  const CountedSteps counted = count_steps(executed);
  Json out{Json::Object{}};
  out.set("schema", "foretrain/execution/1");
  out.set("run", host.run.name);
  out.set("ranks", job.ranks);
  out.set("transport", job.transport());
  out.set("device", host.on_cuda() ? "cuda" : "host");
  out.set("step_time_s", counted.median_s);
  out.set("spread", counted.spread);
  out.set("clean_repeats", counted.clean);
  out.set("machine_busy", counted.busy);
  Json::Array steps;
  for (const StepMeasure& step : executed.steps) {
    Json one{Json::Object{}};
    one.set("step_time_s", step.seconds);
    one.set("loss", step.loss);
    if (!host.on_cuda()) one.set("clean", step.clean);
    if (!std::isnan(step.queued)) one.set("queued_s", step.queued);
    steps.push_back(std::move(one));
  }
  out.set("steps", std::move(steps));
  out.set("machine", machine_identity());
  if (host.on_cuda()) {
    Json::Array names;
    for (const std::string& name : host.cuda.device_names) names.emplace_back(name);
    out.set("cuda_devices", std::move(names));
    out.set("cuda_versions", host.cuda.versions);
  }
  out.set("revision", kRevision);
  return out;
}

/// Of rank 0, which waits for the others.
Json states_json(const Executed& executed, std::int64_t first) {
  Json out{Json::Object{}};
  out.set("resumed_after", first);
  out.set("load_s", executed.load ? Json(executed.load->seconds) : Json());
  Json::Array saves;
  for (const StateMeasure& save : executed.saves) saves.emplace_back(save.seconds);
  out.set("save_s", std::move(saves));
  const StateMeasure* one = executed.saves.empty() ? nullptr : &executed.saves.front();
  if (one == nullptr && executed.load) one = &*executed.load;
  out.set("rank_gib", one == nullptr ? Json() : Json(static_cast<double>(one->bytes) / kGiB));
  return out;
}

std::string states_text(const Executed& executed, const ExecuteArgs& args) {
  std::string out;
  const std::string& path = args.only.states.path;
  if (executed.load)
    out += "Read        the state in " + seconds_text(executed.load->seconds) + "\n";
  if (executed.saves.empty()) return out;
  double sum = 0;
  for (const StateMeasure& save : executed.saves) sum += save.seconds;
  const auto count = static_cast<double>(executed.saves.size());
  return out + "Wrote       " + std::to_string(executed.saves.size()) + " states to " + path +
         ", " + fixed(static_cast<double>(executed.saves.front().bytes) / kMiB, 1) +
         " MiB of rank 0 in " + seconds_text(sum / count) + " each\n";
}

/// Where the run goes on, and where its states go.
Status set_states(const ExecuteArgs& args, const HostRun& host, std::vector<std::string>& notes,
                  ExecuteOptions& options) {
  const ExecuteOnly& only = args.only;
  if (only.states.path.empty()) return ok_status();
  if (host.on_cuda()) {
    return unsupported("--checkpoint: states of devices are not saved yet; leave out --device");
  }
  options.states = only.states;
  if (!only.resume) return ok_status();
  FT_ASSIGN(const std::int64_t first, newest_state(only.states, host.workload, notes));
  if (first >= args.steps) {
    return input_error("--steps " + std::to_string(args.steps) + ": the state in " +
                       only.states.path + " has done " + std::to_string(first) +
                       " already; ask for more");
  }
  options.host.training.first_step = first;
  options.steps = args.steps - first;
  return ok_status();
}

std::string report(const HostRun& host, const Job& job, const Executed& executed,
                   std::int64_t first) {
  const CountedSteps counted = count_steps(executed);
  std::string out = host.run.name + " on this machine: " + std::to_string(job.ranks) +
                    (job.ranks == 1 ? " rank" : " ranks");
  if (job.ranks > 1) {
    out += job.kind == Job::Kind::kMpi   ? " (MPI processes)"
           : job.kind == Job::Kind::kTcp ? " (processes that TCP connects)"
                                         : " (threads of one process)";
  }
  const bool cuda = host.on_cuda();
  if (cuda && !host.cuda.device_names.empty()) out += " on " + host.cuda.device_names.front();
  out += "\n  step         loss        time";
  out += cuda ? "\n" : "   CPU/wall of kernels\n";
  for (std::size_t s = 0; s < executed.steps.size(); ++s) {
    const StepMeasure& step = executed.steps[s];
    char line[128];
    const int end = std::snprintf(line, sizeof line, "  %4zu %12.6f %11s",
                                  s + 1 + static_cast<std::size_t>(first), step.loss,
                                  seconds_text(step.seconds).c_str());
    FT_CHECK(end > 0 && end < 100, "a line of the report");
    if (!cuda) std::snprintf(line + end, sizeof line - 100, "   %.3f", step.clean);
    if (!std::isnan(step.queued)) {
      std::snprintf(line + end, sizeof line - 100, "   %s queued",
                    seconds_text(step.queued).c_str());
    }
    out += line;
    out += s == 0 && executed.steps.size() > 1 ? "  (warms up)\n" : "\n";
  }
  out += "Step        " + seconds_text(counted.median_s) + " (median of " +
         std::to_string(counted.counted) + (counted.busy || cuda ? "" : " clean") +
         " steps, spread " + fixed(100 * counted.spread, 1) + " %)\n";
  if (counted.busy) {
    out +=
        "Machine busy: others used the cores in every step (CPU time over wall time below "
        "0.98); this time is too long\n";
  }
  return out;
}

Status write_files(const ExecuteArgs& args, const HostRun& host, const Job& job,
                   const Executed& executed, std::int64_t first) {
  if (!args.trace.empty()) {
    FT_TRY(write_trace(args.trace, executed.timeline, host.run.name));
  }
  if (!args.timeline.empty()) {
    FT_ASSIGN(AtomicFile file, AtomicFile::create(args.timeline));
    FT_TRY(save_timeline(executed.timeline, file));
    FT_TRY(file.commit());
  }
  if (args.json.empty()) return ok_status();
  Json json = to_json(host, job, executed);
  if (!args.only.states.path.empty()) json.set("checkpoint", states_json(executed, first));
  return write_output(args.json, dump_json(json) + "\n");
}

}  // namespace

Status execute(const ExecuteArgs& args) {
  const std::vector<Output> outputs = {
      {"--json", args.json}, {"--trace", args.trace}, {"--timeline", args.timeline}};
  FT_TRY(check_outputs(outputs, read_with(outputs, args.run, args.sets)));
  FT_TRY(choose_blas(args.blas));
  FT_ASSIGN(CudaModule cuda, open_device(args.device));
  FT_ASSIGN(const HostRun host, prepare_host_run(args.run, args.sets, args.ranks, std::move(cuda)));
  FT_TRY(check_outputs(outputs, {profile_path(host.run.profile_source)}));
  if (args.only.records && !host.on_cuda()) {
    return input_error("--records: the host's times are those of the ops; needs --device cuda");
  }
  ExecuteOptions options = execute_options(host, args.steps);
  options.host.records = args.only.records;
  std::vector<std::string> notes;
  FT_TRY(set_states(args, host, notes, options));
  FT_ASSIGN(Job job, start_job(host, args.threads, args.command_line));
  if (job.kind == Job::Kind::kRelaunched) return relaunched_status(job);
  if (job.speaks()) warn_of_idle_keys(args.quiet, host.run);
  for (const std::string& note : notes) {
    if (job.speaks() && !args.quiet) {
      warn("--resume: " + note);
    }
  }
  if (args.only.records && job.speaks() && !host.cuda.no_records.empty() && !args.quiet) {
    warn("--records: " + host.cuda.no_records + "; times are of CUDA events alone");
  }
  const std::int64_t first = options.host.training.first_step;
  FT_ASSIGN(Executed executed, execute_job(host, job, options));
  executed.timeline.name = host.run.name;
  Status written = ok_status();
  if (job.speaks()) {
    written = write_files(args, host, job, executed, first);
    const bool taken = args.json == "-" || args.trace == "-" || args.timeline == "-";
    if (written.ok() && !args.quiet && !taken) {
      written = print(false, report(host, job, executed, first) + states_text(executed, args));
    }
  }
  if (job.world.finish) job.world.finish();
  return written;
}

}  // namespace foretrain
