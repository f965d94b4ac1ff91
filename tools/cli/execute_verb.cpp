#include <algorithm>
#include <cmath>
#include <cstdio>

#include "executor/calibrate.h"
#include "executor/kernels.h"
#include "sim/base/printable.h"
#include "tools/calibrate/host_run.h"
#include "tools/cli/verbs.h"
#include "tools/goodput/host_store.h"
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

/// What states took, beside what the model of a shared store says of as many bytes.
struct StatesMeasured {
  std::int64_t first = 0;  ///< steps that a state had done which was read
  bool of_other_plan = false;
  std::vector<StateMeasure> saves;
  std::optional<StateMeasure> load;
  StoreRates store;

  double save_s() const {
    std::vector<double> all;
    for (const StateMeasure& save : saves) all.push_back(save.seconds);
    std::sort(all.begin(), all.end());
    return all.empty() ? 0 : all[all.size() / 2];
  }
  double all_bytes() const {
    if (!saves.empty()) return static_cast<double>(saves.front().all_bytes);
    return load ? static_cast<double>(load->all_bytes) : 0;
  }
  double predicted_save_s() const { return transfer_s(all_bytes(), store.write_gb_per_s); }
  double predicted_load_s() const {
    return load ? transfer_s(static_cast<double>(load->all_bytes), store.read_gb_per_s) : 0;
  }
};

Result<std::optional<StatesMeasured>> measure_states(const ExecuteArgs& args, const HostRun& host,
                                                     const ExecuteOptions& options,
                                                     const Executed& executed) {
  if (!options.states) return std::optional<StatesMeasured>();
  StatesMeasured out;
  out.first = options.host.training.first_step;
  out.of_other_plan = options.states->of_other_plan;
  out.saves = executed.saves;
  out.load = executed.load;
  if (out.saves.empty() && !out.load) return std::optional<StatesMeasured>(std::move(out));
  const auto ranks = static_cast<std::int64_t>(host.workload.ranks.size());
  FT_ASSIGN(out.store, store_rates(host.run, args.only.states.path, ranks,
                                   out.all_bytes() / static_cast<double>(ranks)));
  return std::optional<StatesMeasured>(std::move(out));
}

Json states_json(const StatesMeasured& states) {
  const auto when = [](bool known, double value) { return known ? Json(value) : Json(); };
  const bool saved = !states.saves.empty();
  const bool loaded = states.load.has_value();
  const StateMeasure one = saved ? states.saves.front() : loaded ? *states.load : StateMeasure();
  Json out{Json::Object{}};
  out.set("resumed_after", states.first);
  out.set("of_other_plan", states.of_other_plan);
  out.set("load_s", when(loaded, loaded ? states.load->seconds : 0));
  out.set("predicted_load_s", when(loaded, states.predicted_load_s()));
  Json::Array saves;
  for (const StateMeasure& save : states.saves) saves.emplace_back(save.seconds);
  out.set("save_s", std::move(saves));
  out.set("predicted_save_s", when(saved, states.predicted_save_s()));
  const bool any = saved || loaded;
  out.set("bytes_gib", when(any, states.all_bytes() / kGiB));
  out.set("rank_gib", when(any, static_cast<double>(one.bytes) / kGiB));
  out.set("store_write_gb_per_s", when(any, states.store.write_gb_per_s));
  out.set("store_read_gb_per_s", when(any, states.store.read_gb_per_s));
  out.set("store_measured", states.store.measured);
  return out;
}

std::string states_text(const StatesMeasured& states, const std::string& path) {
  const auto mib = [](double bytes) { return fixed(bytes / kMiB, 1) + " MiB"; };
  std::string out;
  if (states.saves.empty() && !states.load) return out;
  if (states.load) {
    out += "Read        " + mib(static_cast<double>(states.load->all_bytes)) + " of " + path +
           (states.of_other_plan ? ", which another plan wrote," : "") + " in " +
           seconds_text(states.load->seconds) + ", predicted " +
           seconds_text(states.predicted_load_s()) + "\n";
  }
  if (!states.saves.empty()) {
    out += "Wrote       " + std::to_string(states.saves.size()) + " states to " + path + ", " +
           mib(states.all_bytes()) + " of all ranks in " + seconds_text(states.save_s()) +
           " (median), predicted " + seconds_text(states.predicted_save_s()) + "\n";
  }
  return out + "            predicted at " + fixed(states.store.write_gb_per_s * 1e9 / kGiB, 2) +
         " GiB/s to write and " + fixed(states.store.read_gb_per_s * 1e9 / kGiB, 2) + " to read, " +
         (states.store.measured ? "measured in that folder" : "as the RUN says") + "\n";
}

/// What tensors do not tell of a model.
std::string model_text(const Model& model) {
  return std::to_string(model.layers) + " layers of " + std::to_string(model.hidden) + ", " +
         std::to_string(model.heads) + " heads of " + std::to_string(model.head_dim) + ", " +
         std::to_string(model.kv_heads) + " of keys, " + std::to_string(model.vocabulary) +
         " tokens, " + std::to_string(model.experts.count) + " experts, " +
         std::to_string(model.experts.top_k) + " of a token";
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
  options.states->model = model_text(host.run.model);
  options.states->fingerprint = fingerprint_of(host.workload);
  if (!only.resume) return ok_status();
  FT_ASSIGN(const SavedPoint point, newest_state(*options.states, host.workload, notes));
  const std::int64_t first = point.steps;
  options.states->of_other_plan = point.of_other_plan;
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
                   const Executed& executed, const std::optional<StatesMeasured>& states) {
  if (!args.trace.empty()) {
    FT_TRY(write_trace(args.trace, HeldTimeline(executed.timeline), host.run.name));
  }
  if (!args.timeline.empty()) {
    FT_ASSIGN(AtomicFile file, AtomicFile::create(args.timeline));
    FT_TRY(save_timeline(executed.timeline, file));
    FT_TRY(file.commit());
  }
  if (args.json.empty()) return ok_status();
  Json json = to_json(host, job, executed);
  if (states) json.set("checkpoint", states_json(*states));
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
  options.silence = args.only.silence < 0 ? kSilenceHere : args.only.silence;
  if (host.on_cuda()) options.silence = 0;
  std::vector<std::string> notes;
  FT_TRY(set_states(args, host, notes, options));
  FT_ASSIGN(Job job, start_job(host, args.threads, args.command_line, args.only.silence));
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
    const auto states = measure_states(args, host, options, executed);
    written = states.ok() ? write_files(args, host, job, executed, states.value())
                          : Status(states.error());
    const bool taken = args.json == "-" || args.trace == "-" || args.timeline == "-";
    if (written.ok() && !args.quiet && !taken) {
      std::string text = report(host, job, executed, first);
      if (states.value()) text += states_text(*states.value(), args.only.states.path);
      written = print(false, text);
    }
  }
  if (job.world.finish) job.world.finish();
  return written;
}

}  // namespace foretrain
