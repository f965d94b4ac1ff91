// One verb a job; CLI11 is used here only.
#include "tools/cli/command_line.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <new>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "sim/base/json.h"
#include "sim/base/printable.h"
#include "sim/base/temporaries.h"
#include "sim/base/threads.h"
#include "sim/campaign/request.h"
#include "tools/calibrate/calibration.h"
#include "tools/cli/verbs.h"
#include "tools/version.h"

namespace {

using foretrain::Status;

struct Verb {
  CLI::App* app = nullptr;
  std::function<Status()> run;
};

/// Without memory.
void tell_plainly(const char* message) {
  char line[256];
  const int size = std::snprintf(line, sizeof line, "foretrain: %s\n", message);
  const auto whole = std::min(static_cast<std::size_t>(std::max(size, 0)), sizeof line - 1);
  [[maybe_unused]] const auto written = write(STDERR_FILENO, line, whole);
}

/// What an exception ends that nobody can catch: memory that runs out in a destructor, or while an
/// error is told. Anything else is a fault of the program.
void end_for_want() {
  const char* message = nullptr;
  try {
    if (std::current_exception() != nullptr) std::rethrow_exception(std::current_exception());
  } catch (const std::bad_alloc&) {
    message = foretrain::kNoMemory;
  } catch (const std::system_error&) {
    message = "the system gives no more threads or files";
  } catch (...) {
    message = nullptr;
  }
  if (message == nullptr) std::abort();
  static std::atomic_flag told = ATOMIC_FLAG_INIT;
  while (told.test_and_set()) pause();  // another thread ends the process
  foretrain::remove_temporaries();
  tell_plainly(message);
  _exit(1);
}

/// Tells of an error on stderr, a line for each fault. Texts of files may be in it.
void tell(const foretrain::Error& error) {
  foretrain::warn(error.message);
  for (const foretrain::Error& one : error.more) foretrain::warn(one.message);
}

/// The exit code of an error.
int code_of(const foretrain::Error& error) {
  return error.kind == foretrain::ErrorKind::kCondition ? 3 : 1;
}

/// An option that names a file to write.
void add_output(CLI::App* app, const char* name, std::string& path, const char* help) {
  app->add_option(name, path, help)->type_name("FILE")->check([](const std::string& text) {
    return text.empty() ? "found nothing, expected a path" : "";
  });
}

void add_json(CLI::App* app, std::string& path) {
  add_output(app, "--json", path, "Write the machine-readable result to FILE (- for stdout)");
}

/// Ranges let "nan" through, with which no condition would ever fail.
std::string is_number(const std::string& text) {
  const bool has_digit = text.find_first_of("0123456789") != std::string::npos;
  return has_digit ? "" : "found " + text + ", expected a number";
}

void add_report(CLI::App* app, std::string& path) {
  add_output(app, "--report", path, "Write a page to look at to FILE.html: one file, no network");
}

void add_sets(CLI::App* verb, std::vector<std::string>& sets, const char* help) {
  verb->add_option("--set", sets, help)
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false)
      ->check([](const std::string& text) {
        const std::size_t equals = text.find('=');
        const bool is_set = equals != std::string::npos && equals > 0;
        return is_set ? "" : "found " + text + ", expected KEY=VALUE, e.g. parallel.tensor=4";
      });
}

Verb add_simulate(CLI::App& app, foretrain::SimulateArgs& args) {
  CLI::App* verb = app.add_subcommand("simulate", "Predict one run: time, memory, where both go");
  verb->footer(
      "Example:\n  foretrain simulate llama-3.1-405b-16384-h100 --set parallel.tensor=4 --trace "
      "out.json.gz");
  verb->add_option("RUN", args.run, "A RUN: a file, a shipped one's name, or its JSON")->required();
  add_sets(verb, args.sets, "Override a field, e.g. parallel.tensor=4 (repeatable)");
  add_output(verb, "--trace", args.files.trace,
             "Write a Chrome trace (.json or .json.gz), or a page that draws it (.html)");
  add_output(verb, "--timeline", args.files.timeline,
             "Write the lossless timeline (.json or .json.gz)");
  verb->add_option("--trace-ranks", args.trace_ranks,
                   "Ranks to trace (default: one of each class of equal ranks)")
      ->delimiter(',')
      ->type_name("RANK,...");
  verb->add_option("--profile", args.profile, "Prices that `foretrain calibrate` measured")
      ->type_name("FILE");
  verb->add_flag("--full", args.full, "Simulate every rank instead of one of each class");
  verb->add_flag("--verify", args.verify,
                 "Check the programs for races, leaks and mismatched communication first");
  verb->add_flag("--no-advice", args.no_advice,
                 "Leave out what would make it fit and what a step gains: faster, for sweeps");
  verb->add_option("--require-fit", args.conditions.fit,
                   "Exit 3 where the run is less likely to fit than this; 0.5 if left out")
      ->type_name("P")
      ->check(CLI::Range(1e-6, 1.0))
      ->check(is_number);
  verb->add_option("--max-step-s", args.conditions.max_step_s, "Exit 3 where a step takes longer")
      ->type_name("SECONDS")
      ->check(CLI::PositiveNumber)
      ->check(is_number);
  verb->add_option("--budget", args.bounds.seconds,
                   "Refuse what would simulate longer, by an estimate; leave advice out first")
      ->type_name("SECONDS")
      ->check(CLI::PositiveNumber)
      ->check(is_number);
  verb->add_option("--max-memory", args.bounds.gib,
                   "Refuse a step whose data would take more memory here, by an estimate (default: "
                   "what is free)")
      ->type_name("GIB")
      ->check(CLI::PositiveNumber)
      ->check(is_number);
  verb->add_flag("--quiet", args.quiet, "No report, no progress");
  add_report(verb, args.files.report);
  add_json(verb, args.files.json);
  return {verb, [&args] { return foretrain::simulate(args); }};
}

Verb add_goodput(CLI::App& app, foretrain::GoodputArgs& args) {
  CLI::App* verb = app.add_subcommand(
      "goodput", "Weeks of a run with failures, checkpoints, recovery, and the bill");
  verb->footer(
      "The RUN's section `campaign` says what there is to do and what goes wrong.\n"
      "Example:\n  foretrain goodput llama-3.1-405b-16384-h100 --set campaign.tokens=2e12 "
      "--set campaign.reliability=llama-3-405b");
  verb->add_option("RUN", args.run, "A RUN: a file, a shipped one's name, or its JSON")->required();
  add_sets(verb, args.sets, "Override a field, e.g. campaign.spares=8 (repeatable)");
  verb->add_option("--clusters", args.beside.clusters,
                   "Compare as many accelerators of each of these clusters")
      ->delimiter(',')
      ->type_name("NAME,...");
  verb->add_option("--policies", args.beside.policies,
                   "Compare what these policies make of it, or all of them")
      ->delimiter(',')
      ->check(CLI::IsMember([] {
        std::vector<std::string> names = foretrain::policy_names();
        names.emplace_back("all");
        return names;
      }()))
      ->type_name("NAME,...");
  verb->add_option("--campaigns", args.campaigns, "Campaigns to simulate (default: the RUN's)")
      ->type_name("N")
      ->check(CLI::Range(1, 10'000'000));
  verb->add_option("--seed", args.seed, "Of the random numbers (default: the RUN's)")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{9'000'000'000'000'000}));
  verb->add_option("--threads", args.threads,
                   "Campaigns simulated at once (default: all cores); the result is the same")
      ->check(CLI::Range(1, 1024));
  add_output(verb, "--trace", args.trace, "Write one campaign as a Chrome trace");
  verb->add_flag("--no-advice", args.no_advice,
                 "Leave out the best interval and what helps: faster, for sweeps");
  verb->add_flag("--quiet", args.quiet, "No report");
  add_report(verb, args.report);
  add_json(verb, args.json);
  return {verb, [&args] { return foretrain::goodput(args); }};
}

void add_device(CLI::App* verb, std::string& device) {
  verb->add_option("--device", device, "host or cuda")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->capture_default_str();
}

void add_blas(CLI::App* verb, std::string& blas) {
  verb->add_option("--blas", blas,
                   "What multiplies on the host: openblas (default where it is installed), onednn, "
                   "onednn-bf16 or plain")
      ->check(CLI::IsMember({"openblas", "onednn", "onednn-bf16", "plain"}));
}

void add_execution(CLI::App* verb, foretrain::ExecuteArgs& args) {
  verb->add_option("RUN", args.run, "A RUN: a file, a shipped one's name, or its JSON")->required();
  add_device(verb, args.device);
  add_blas(verb, args.blas);
  add_sets(verb, args.sets, "Override a field, e.g. parallel.tensor=2 (repeatable)");
  verb->add_option("--steps", args.steps, "Training steps; the first one warms up")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  verb->add_option("--ranks", args.ranks, "Ranks to run (default: the RUN's accelerators)")
      ->check(CLI::Range(1, 4096));
  verb->add_flag("--threads", args.threads, "Ranks as threads of one process, without MPI");
  verb->add_flag("--quiet", args.quiet, "No report, no progress");
  add_json(verb, args.json);
}

Verb add_execute(CLI::App& app, foretrain::ExecuteArgs& args) {
  CLI::App* verb = app.add_subcommand("execute", "Really run the Program that simulate replays");
  verb->footer(
      "More than one rank: joins the job it is started in (mpirun, srun, torchrun), else starts "
      "itself\n"
      "under mpirun, or without MPI as processes that TCP connects.\n"
      "Example:\n  foretrain execute gpt-small-host --ranks 2 --set parallel.tensor=2 "
      "--trace out.json.gz");
  add_execution(verb, args);
  add_output(verb, "--trace", args.trace,
             "Write a Chrome trace of the median step, or a page that draws it (.html)");
  add_output(verb, "--timeline", args.timeline, "Write the lossless timeline of that step");
  CLI::Option* states = verb->add_option("--checkpoint", args.only.states.path,
                                         "Write the state of all ranks into FOLDER, host only")
                            ->type_name("FOLDER");
  verb->add_option("--every", args.only.states.every, "Steps between two of them")
      ->check(CLI::Range(1, 100000))
      ->needs(states)
      ->capture_default_str();
  verb->add_option("--keep", args.only.states.keep, "How many are kept")
      ->check(CLI::Range(1, 1000))
      ->needs(states)
      ->capture_default_str();
  verb->add_flag("--resume", args.only.resume,
                 "Go on from the newest whole one; --steps counts those before it too")
      ->needs(states);
  verb->add_option_function<double>(
          "--silence", [&args](const double& seconds) { args.only.silence = seconds; },
          "Seconds without a sign of life of a rank after which the run ends; 0: never (default 4 "
          "on one machine, 30 on several)")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 1e6));
  verb->add_flag("--records", args.only.records,
                 "CUDA: tell from CUPTI's records what of the ops' time is queueing");
  return {verb, [&args] { return foretrain::execute(args); }};
}

Verb add_validate(CLI::App& app, foretrain::ValidateArgs& args) {
  CLI::App* verb = app.add_subcommand(
      "validate", "Measure the RUN's operations, predict it, execute it, compare");
  verb->footer("Example:\n  foretrain validate gpt-small-host --steps 10 --max-error 15");
  add_execution(verb, args.execute);
  verb->add_option("--profile", args.profile,
                   "Start from these prices and measure only what they lack")
      ->type_name("FILE");
  verb->add_option("--prices-from", args.prices_from,
                   "Predict also from this profile as if it had never seen the run's shapes: how "
                   "far its prices transfer")
      ->type_name("FILE");
  verb->add_option("--seconds-per-op", args.seconds_per_op, "Time to measure one operation")
      ->check(CLI::Range(0.001, 60.0))
      ->capture_default_str();
  verb->add_option("--max-error", args.max_error,
                   "Exit 3 if the step is predicted worse than this, in percent")
      ->type_name("PERCENT")
      ->check(CLI::Range(0.0, 1e6));
  return {verb, [&args] { return foretrain::validate(args); }};
}

Verb add_calibrate(CLI::App& app, foretrain::CalibrateArgs& args) {
  CLI::App* verb = app.add_subcommand("calibrate", "Measure this machine into a profile");
  verb->footer(
      "Interrupt it at any time: it keeps every sample so far, and --resume goes on.\n"
      "Examples:\n  foretrain calibrate --quick --out here.json\n"
      "  foretrain simulate gpt-small-host --profile here.json\n"
      "  foretrain calibrate --device cuda --shapes-of llama-3-8b-8-h100 --budget 120");
  add_device(verb, args.device);
  add_blas(verb, args.blas);
  verb->add_option(
          "--out", args.out,
          "The profile (default, in the user's data folder: host.json, host-NAME.json with "
          "--blas NAME, or that of the device, e.g. h100-sxm-80gb.json)")
      ->type_name("FILE");
  verb->add_option("--name", args.name,
                   "With --device cuda: the device preset that the profile is of, e.g. "
                   "h100-sxm-80gb (default: the preset that the driver's name belongs to)");
  verb->add_option("--shapes-of", args.shapes_of,
                   "Measure the operations of these RUNs, the most costly first, in place of the "
                   "usual ones; on a device of runs of any size, on the host of one or two ranks")
      ->type_name("RUN");
  verb->add_option("--budget", args.budget, "Stop after so many seconds with what is measured")
      ->type_name("SECONDS")
      ->check(CLI::Range(1.0, 1e6));
  verb->add_flag("--quick", args.quick,
                 "Fewer shapes, less time for each; on a device sustained only, no bursts");
  verb->add_flag("--resume", args.resume, "Keep what the profile has, measure what it lacks");
  verb->add_flag("--force", args.force, "Resume the profile of another machine all the same");
  verb->add_flag("--threads", args.threads, "Ranks as threads of one process, without MPI");
  verb->add_flag("--quiet", args.quiet, "No report, no progress");
  verb->add_option("--worker-ranks", args.worker_ranks, "")->group("");
  add_json(verb, args.json);
  return {verb, [&args] { return foretrain::calibrate(args); }};
}

Verb add_score(CLI::App& app, foretrain::ScoreArgs& args) {
  CLI::App* verb =
      app.add_subcommand("score", "Predict every published run of a rows file; print the errors");
  verb->footer("Example:\n  foretrain score configs/published --worst 10 --csv errors.csv");
  verb->add_option("ROWS", args.rows, "Rows files, or folders of them")->required();
  verb->add_option("--worst", args.worst, "Also list the N rows with the largest time error")
      ->type_name("N")
      ->check(CLI::Range(0, 1000000));
  add_output(verb, "--csv", args.csv, "Write a table of all rows");
  verb->add_flag("--explain", args.explain,
                 "Also split the errors of each group by family of time, as far as its plans tell");
  add_output(verb, "--fit-intervals", args.fit_intervals,
             "Write the widths of 90 % intervals that these rows give");
  add_output(verb, "--errors", args.errors,
             "Write what simulate tells of runs like yours: the error of every row");
  verb->add_option("--only", args.only, "Only rows whose id or group contains TEXT")
      ->type_name("TEXT");
  verb->add_option("--threads", args.threads, "Rows predicted at once (default: all cores)")
      ->check(CLI::Range(1, 1024));
  verb->add_flag("--quiet", args.quiet, "No table, no progress");
  add_report(verb, args.report);
  add_json(verb, args.json);
  return {verb, [&args] { return foretrain::score(args); }};
}

/// What of the space a user fixes, frees or bounds.
void add_space(CLI::App* verb, foretrain::SearchRequest& request) {
  const auto list = [verb](const char* name, std::vector<std::string>& out, const char* help) {
    return verb->add_option(name, out, help)->allow_extra_args(false);
  };
  list("--fix", request.fix, "Keep a key as the RUN or its system has it (repeatable)")
      ->type_name("KEY");
  list("--free", request.free, "Search a key although the RUN states it, or nobody asked")
      ->type_name("KEY");
  list("--range", request.range, "Search a key, or only values within bounds (repeatable)")
      ->type_name("KEY=A..B");
  list("--where", request.where, "Only plans of which this holds: \"memory.peak_gib <= 72\"")
      ->type_name("EXPR");
  list("--over", request.over, "Search these sections or keys alone, e.g. recompute,offload")
      ->delimiter(',')
      ->type_name("KEY,...");
  verb->add_flag("--allow-numerics", request.allow_numerics,
                 "Search precision and the type of gradients too: they change the training");
  list("--clusters", request.clusters, "Search on each of these in place of the RUN's cluster")
      ->delimiter(',')
      ->type_name("NAME,...");
  verb->add_option("--accelerators", request.accelerators, "Search with each of these numbers")
      ->delimiter(',')
      ->type_name("N,...")
      ->check(CLI::Range(1, 1 << 24));
}

Verb add_search(CLI::App& app, foretrain::SearchArgs& args) {
  CLI::App* verb = app.add_subcommand("search", "Find the best plan that fits, with a proof");
  verb->footer(
      "What the RUN states stays; what it leaves out is searched.\n"
      "Examples:\n  foretrain search run.json --out best.json\n"
      "  foretrain search run.json --free parallel.tensor --where \"memory.peak_gib <= 72\"\n"
      "  foretrain search run.json --over recompute,offload --budget 20\n"
      "  mpirun -n 4 foretrain search run.json --budget 600   (ranks search together)");
  verb->add_option("RUN", args.run, "A RUN: a file, a shipped one's name, or its JSON")->required();
  add_sets(verb, args.sets, "Override a field, which is then stated (repeatable)");
  add_space(verb, args.request);
  verb->add_option("--objective", args.request.objective,
                   "Minimize time, cost, energy or days (default: time)")
      ->check(CLI::IsMember(foretrain::kObjectiveNames));
  verb->add_option("--price", args.request.price,
                   "An accelerator's hour, of any cluster or of one (repeatable)")
      ->type_name("PRICE|CLUSTER=PRICE")
      ->allow_extra_args(false);
  verb->add_option("--budget", args.request.budget, "Stop after so many seconds (default: 60)")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.001, 1e6));
  verb->add_option("--resume", args.request.resume,
                   "Keep what was simulated in a file, and go on from the file where it is there")
      ->type_name("FILE");
  verb->add_option("--explain", args.explain, "The best plan with that value: why it is not mine")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  verb->add_option("--profile", args.profile, "Prices that `foretrain calibrate` measured")
      ->type_name("FILE");
  verb->add_option("--threads", args.threads, "Plans looked at at once (default: all cores)")
      ->check(CLI::Range(1, 1024));
  add_output(verb, "--out", args.out, "Write the best plan as a RUN");
  add_output(verb, "--csv", args.csv, "Write a table of all plans that were simulated");
  verb->add_flag("--quiet", args.quiet, "No table, no progress");
  add_report(verb, args.report);
  add_json(verb, args.json);
  return {verb, [&args] { return foretrain::search(args); }};
}

Verb add_compare(CLI::App& app, foretrain::CompareArgs& args) {
  CLI::App* verb = app.add_subcommand(
      "compare", "Where the time of two steps goes, predicted or measured; or of one");
  verb->footer(
      "A and B are each a RUN, a result of simulate --json, a timeline, a trace of PyTorch's "
      "profiler\n"
      "(.json, .json.gz), an export of Nsight Systems (.sqlite), or a folder of the traces of "
      "several ranks.\n"
      "Examples:\n  foretrain compare run.json trace.json.gz\n"
      "  foretrain compare trace.json.gz --json -");
  verb->add_option("A", args.a, "What is compared")->required();
  verb->add_option("B", args.b, "With what; without it A alone is taken apart");
  add_sets(verb, args.sets, "Override a field of RUNs (repeatable)");
  verb->add_option("--steps", args.steps,
                   "How many steps a trace without annotations of them holds")
      ->type_name("N")
      ->check(CLI::Range(1, 1'000'000));
  verb->add_option("--step-name", args.step_name,
                   "Annotations of traces that begin so are steps (default: ProfilerStep#)")
      ->type_name("TEXT");
  verb->add_flag("--gpu-steps", args.gpu_steps,
                 "A step of a trace ends when the GPU has done what its annotation launched, not "
                 "when the annotation ends");
  add_output(
      verb, "--trace", args.trace,
      "Write both as one Chrome trace (.json or .json.gz), or a page that draws them (.html)");
  add_output(verb, "--profile", args.profile,
             "Write the products and attention of the trace as a profile that simulate takes");
  verb->add_flag("--quiet", args.quiet, "No table, no progress");
  add_report(verb, args.report);
  add_json(verb, args.json);
  return {verb, [&args] { return foretrain::compare(args); }};
}

Verb add_import(CLI::App& app, foretrain::ImportArgs& args) {
  CLI::App* verb = app.add_subcommand(
      "import", "Turn launch files of training frameworks into a RUN: scripts, YAML, TOML, JSON");
  verb->footer(
      "Scripts are expanded, never executed. The verb lists each setting that no key of a RUN "
      "holds.\n"
      "Example:\n  foretrain import train_gpt3.sh --cluster dgx-h100 --out run.json");
  verb->add_option("FILE", args.files, "Launch files, and a config.json (- for stdin)")->required();
  verb->add_option("--from", args.from, "The framework, where its files do not tell")
      ->type_name("SYSTEM");
  verb->add_option("--cluster", args.cluster, "The machine (default: a marked place in the RUN)")
      ->type_name("NAME");
  verb->add_option("--accelerators", args.accelerators, "How many (default: as the files say)")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  add_sets(verb, args.sets, "Override a field of the RUN (repeatable)");
  add_output(verb, "--out", args.out, "Write the RUN to FILE (default: stdout)");
  verb->add_flag("--strict", args.strict, "Exit 3 where anything is not modelled");
  verb->add_flag("--quiet", args.quiet, "No lists on stderr");
  add_json(verb, args.json);
  return {verb, [&args] { return foretrain::import_files(args); }};
}

Verb add_export(CLI::App& app, foretrain::ExportArgs& args) {
  CLI::App* verb = app.add_subcommand(
      "export", "Write the launch files that a training framework needs to run the plan");
  verb->footer(
      "The verb lists each key of the plan that the framework's files do not hold.\n"
      "Example:\n  foretrain export gpt3-175b-1024-a100 --to megatron-lm --out train.sh");
  verb->add_option("RUN", args.run, "A RUN: a file, a shipped one's name, or its JSON")->required();
  verb->add_option("--to", args.to, "megatron-lm, deepspeed, torchtitan, maxtext or composer")
      ->required()
      ->type_name("SYSTEM");
  add_sets(verb, args.sets, "Override a field, e.g. parallel.tensor=4 (repeatable)");
  add_output(verb, "--out", args.out,
             "Write the file there, or all files into that folder (default: the first to stdout)");
  verb->add_flag("--strict", args.strict, "Exit 3 where anything is not expressed");
  verb->add_flag("--quiet", args.quiet, "No list on stderr");
  add_json(verb, args.json);
  return {verb, [&args] { return foretrain::export_files(args); }};
}

Verb add_list(CLI::App& app, foretrain::ListArgs& args) {
  CLI::App* verb = app.add_subcommand(
      "list",
      "What ships: models, clusters, devices, fabrics, systems, software, reliability, runs");
  verb->footer("Examples:\n  foretrain list models\n  foretrain list clusters,devices h100");
  verb->add_option("KIND", args.kinds,
                   "models, clusters, devices, fabrics, systems, software, reliability, profiles, "
                   "runs, or several with commas; all: each of them");
  verb->add_option("WORD", args.filter,
                   "Only what has these words in its name, size or description");
  CLI::Option* page =
      verb->add_flag("--page", args.page, "Of models: print docs/reference/models.md instead");
  add_json(verb, args.json);
  verb->get_option("--json")->excludes(page);
  verb->add_flag("--quiet", args.quiet, "Print nothing; useful with --json");
  return {verb, [&args] { return foretrain::list(args); }};
}

Verb add_show(CLI::App& app, foretrain::ShowArgs& args) {
  CLI::App* verb = app.add_subcommand(
      "show", "Every resolved field of a preset or a RUN, and where it came from");
  verb->footer(
      "Examples:\n  foretrain show dgx-h100\n  foretrain show run.json --program 0\n"
      "  foretrain show run.json --why mlp.up\n"
      "  foretrain show run.json --set schedule=zb-v --schedule > order.json\n"
      "  foretrain show run.json --step --after \"reduce buckets\"");
  verb->add_option("NAME", args.name, "A preset's name, or a RUN file")->required();
  add_sets(verb, args.sets, "Override a field of a RUN (repeatable)");
  verb->add_flag("--changed", args.changed,
                 "Print only what the RUN does otherwise than its system would by itself");
  verb->add_option("--program", args.program_rank, "Print the Program of RANK")
      ->type_name("RANK")
      ->check(CLI::Range(0, 1 << 30));
  verb->add_option("--why", args.why, "Print how the operations of that name are priced")
      ->type_name("OP");
  verb->add_flag("--schedule", args.schedule,
                 "Print the order of every stage's passes, as a file that `schedule` takes")
      ->excludes("--changed")
      ->excludes("--why")
      ->excludes("--program");
  CLI::Option* step = verb->add_flag("--step", args.step,
                                     "Print the tasks of a stage's step, as lowering makes them")
                          ->excludes("--why")
                          ->excludes("--program")
                          ->excludes("--schedule");
  verb->add_option("--after", args.after, "With --step: the tasks after that pass of lowering")
      ->type_name("PASS")
      ->needs(step);
  verb->add_option("--stage", args.stage, "With --step: which stage of the pipeline (0)")
      ->type_name("N")
      ->check(CLI::Range(0, 1 << 30))
      ->needs(step);
  add_json(verb, args.json);
  // These are texts, of which there is no JSON.
  for (const char* text : {"--program", "--why", "--step"}) {
    verb->get_option("--json")->excludes(text);
    verb->get_option("--changed")->excludes(text);
  }
  verb->add_flag("--quiet", args.quiet, "Print nothing; useful with --json");
  return {verb, [&args] { return foretrain::show(args); }};
}

Verb add_doctor(CLI::App& app, foretrain::DoctorArgs& args) {
  CLI::App* verb = app.add_subcommand(
      "doctor", "What this machine and build have, what each missing piece costs");
  verb->footer("Example:\n  foretrain doctor");
  add_json(verb, args.json);
  verb->add_flag("--quiet", args.quiet, "Print nothing; useful with --json");
  return {verb, [&args] { return foretrain::doctor(args); }};
}

Verb add_schema(CLI::App& app, foretrain::SchemaArgs& args) {
  CLI::App* verb = app.add_subcommand("schema", "The JSON Schema of a kind of file, for editors");
  verb->footer("Example:\n  foretrain schema run > run.schema.json");
  verb->add_option("KIND", args.kind,
                   "run, cluster, device, system, campaign, profile, timeline, result (of "
                   "simulate), search, goodput or reliability")
      ->required();
  CLI::Option* page = verb->add_flag("--page", args.page, "Print docs/reference/keys.md instead");
  add_json(verb, args.json);
  verb->get_option("--json")->excludes(page);
  verb->add_flag("--quiet", args.quiet, "Print nothing; useful with --json");
  return {verb, [&args] { return foretrain::schema(args); }};
}

/// What a shell offers behind a verb.
foretrain::OfferedVerb offered(const CLI::App& verb) {
  foretrain::OfferedVerb out;
  out.name = verb.get_name();
  out.help = verb.get_description();
  for (const CLI::Option* option : verb.get_options()) {
    if (!option->get_positional() && !option->get_lnames().empty() &&
        !option->get_group().empty()) {
      foretrain::OfferedOption one;
      one.name = "--" + option->get_lnames().front();
      one.help = option->get_description();
      one.takes_value = option->get_type_size() != 0;
      const std::string type = option->get_type_name();  // "TEXT:{time,cost}" of few values
      const std::size_t open = type.find('{');
      if (open != std::string::npos) {
        std::istringstream list(type.substr(open + 1, type.find('}') - open - 1));
        for (std::string value; std::getline(list, value, ',');) one.choices.push_back(value);
      }
      out.options.push_back(std::move(one));
    }
    const std::string first = option->get_positional() ? option->get_name() : "";
    if (first == "RUN" || first == "A" || first == "B") out.names = "runs";
    if (first == "NAME") out.names = "all";
    if (first == "KIND" && out.name == "list") out.names = "kinds";
  }
  return out;
}

Verb add_completion(CLI::App& app, foretrain::CompletionArgs& args) {
  CLI::App* verb = app.add_subcommand(
      "completion", "A script that completes verbs, options, names and keys of --set in a shell");
  verb->footer(
      "Examples:\n  source <(foretrain completion bash)\n  foretrain completion fish | source");
  verb->add_option("SHELL", args.shell, "bash, zsh or fish")->required();
  add_json(verb, args.json);
  verb->add_flag("--quiet", args.quiet, "Print nothing; useful with --json");
  for (const CLI::App* other : app.get_subcommands({})) args.verbs.push_back(offered(*other));
  return {verb, [&args] { return foretrain::completion(args); }};
}

/// Says which verb `word` may have meant, if it is none.
/// Answers a first word that is no verb. Returns whether it is none.
bool suggest_verb(CLI::App& app, const std::string& word) {
  if (word.empty() || word.front() == '-') return false;
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (verb->get_name() == word) return false;
    verbs.push_back(verb->get_name());
  }
  const std::string near = foretrain::nearest_name(word, verbs);
  std::fprintf(stderr, "foretrain: no verb \"%s\"%s (foretrain --help lists the verbs)\n",
               foretrain::shortened(word, 100).c_str(),
               near.empty() ? "" : ("; did you mean \"" + near + "\"?").c_str());
  return true;
}

/// The arguments, the last first, as CLI11 takes them. What follows --require-fit may be the RUN:
/// it is the option's value where it is a number, else the value is a half.
std::vector<std::string> arguments_of(int argc, char** argv) {
  std::vector<std::string> out(argv + std::min(argc, 1), argv + argc);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (out[i] != "--require-fit") continue;
    const bool number = i + 1 < out.size() && !out[i + 1].empty() &&
                        out[i + 1].find_first_not_of("0123456789.eE") == std::string::npos;
    if (!number) out[i] += "=0.5";
  }
  std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace

namespace foretrain {

int run_command_line(int argc, char** argv) {
  CLI::App app("Predicts LLM pre-training runs before the money is spent.", "foretrain");
  app.set_version_flag("--version", std::string(kVersion) + " (" + kRevision + ")");
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done, 1 an input is at fault, 2 wrong usage, 3 a condition that was asked "
      "for\n"
      "does not hold (--require-fit, --max-step-s, --max-error, --strict, no plan that fits), 130 "
      "interrupted.\n\n"
      "Example:\n  foretrain simulate llama-3-8b-8-h100");
  SimulateArgs simulate_args;
  GoodputArgs goodput_args;
  ExecuteArgs execute_args;
  CalibrateArgs calibrate_args;
  ValidateArgs validate_args;
  execute_args.command_line.assign(argv + std::min(argc, 1), argv + argc);
  validate_args.execute.command_line = execute_args.command_line;
  ScoreArgs score_args;
  SearchArgs search_args;
  CompareArgs compare_args;
  ImportArgs import_args;
  ExportArgs export_args;
  ListArgs list_args;
  ShowArgs show_args;
  DoctorArgs doctor_args;
  SchemaArgs schema_args;
  CompletionArgs completion_args;
  const Verb verbs[] = {add_simulate(app, simulate_args),
                        add_search(app, search_args),
                        add_goodput(app, goodput_args),
                        add_import(app, import_args),
                        add_export(app, export_args),
                        add_calibrate(app, calibrate_args),
                        add_execute(app, execute_args),
                        add_validate(app, validate_args),
                        add_score(app, score_args),
                        add_compare(app, compare_args),
                        add_list(app, list_args),
                        add_show(app, show_args),
                        add_doctor(app, doctor_args),
                        add_schema(app, schema_args),
                        add_completion(app, completion_args)};
  app.failure_message([](const CLI::App* of, const CLI::Error& error) {
    return "foretrain: " + CLI::FailureMessage::simple(of, error);
  });
  try {
    app.parse(arguments_of(argc, argv));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0 && argc > 1 && suggest_verb(app, argv[1])) return 2;
    std::ostringstream out;
    std::ostringstream err;
    const int code = app.exit(error, out, err);
    std::fputs(printable(err.str()).c_str(), stderr);
    const Status printed = print(code != 0, out.str());
    if (!printed.ok()) tell(printed.error());
    return code != 0 ? 2 : printed.ok() ? 0 : 1;
  }
  for (const Verb& verb : verbs) {
    if (!verb.app->parsed()) continue;
    const Status status = verb.run();
    if (verb.app->get_name() == "search" && foretrain::interrupted()) return 130;
    if (status.ok()) return 0;
    tell(status.error());
    return code_of(status.error());
  }
  return 2;
}

int run_guarded(int argc, char** argv) {
  std::set_terminate(end_for_want);
  try {
    return run_command_line(argc, argv);
  } catch (const std::bad_alloc&) {
    tell_plainly(kNoMemory);
  } catch (const std::length_error&) {
    tell_plainly(kNoMemory);
  } catch (const std::system_error& error) {
    tell_plainly(error.what());
  }
  return 1;
}

}  // namespace foretrain
