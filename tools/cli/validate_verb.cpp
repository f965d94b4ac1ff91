#include "tools/calibrate/validation.h"

#include "executor/kernels.h"
#include "tools/cli/verbs.h"
#include "tools/report/report.h"

namespace foretrain {

Status validate(const ValidateArgs& args) {
  const ExecuteArgs& e = args.execute;
  const std::vector<Output> outputs = {{"--json", e.json}};
  FT_TRY(check_outputs(outputs, read_with(outputs, e.run, e.sets)));
  FT_TRY(choose_blas(e.blas));
  FT_ASSIGN(CudaModule cuda, open_device(e.device));
  FT_ASSIGN(HostRun host, prepare_host_run(e.run, e.sets, e.ranks, std::move(cuda)));
  ValidateOptions options;
  options.steps = e.steps;
  options.seconds_per_op = args.seconds_per_op;
  options.quiet = e.quiet;
  if (!args.profile.empty()) FT_TRY(use_profile(host.run, args.profile, "--profile"));
  if (!args.prices_from.empty()) {
    Run other = host.run;
    FT_TRY(use_profile(other, args.prices_from, "--prices-from"));
    if (other.profile->samples.empty()) {
      return input_error("--prices-from " + args.prices_from +
                         ": no samples of the makers that this run needs; what is priced by the "
                         "model alone `simulate` says");
    }
    options.prices_from = other.profile;
    options.prices_source = args.prices_from;
  }
  FT_TRY(check_outputs(outputs,
                       {profile_path(host.run.profile_source), profile_path(args.prices_from)}));
  FT_ASSIGN(Job job, start_job(host, e.threads, e.command_line));
  if (job.kind == Job::Kind::kRelaunched) return relaunched_status(job);
  if (job.speaks()) warn_of_idle_keys(e.quiet, host.run);
  FT_ASSIGN(const Validation result, validate_here(host, job, options));
  Status status = ok_status();
  if (job.speaks()) {
    if (!e.json.empty()) {
      status = write_output(e.json, dump_json(validation_json(host, result)) + "\n");
    }
    if (status.ok() && e.json != "-") {
      status = print(e.quiet, validation_table(host, job, result));
    }
    const double percent = 100 * std::abs(result.step_error());
    if (status.ok() && args.max_error >= 0 && percent > args.max_error) {
      status = Error{"the step is predicted " + fixed(percent, 1) +
                         " % off, more than --max-error " + fixed(args.max_error, 1),
                     ErrorKind::kCondition};
    }
  }
  if (job.world.finish) job.world.finish();
  return status;
}

}  // namespace foretrain
