#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "sim/base/file.h"
#include "sim/base/printable.h"
#include "tools/cli/verbs.h"
#include "tools/goodput/bill.h"
#include "tools/predict/fitting.h"
#include "tools/predict/idle_keys.h"
#include "tools/predict/predict.h"
#include "tools/report/pages.h"
#include "tools/report/report.h"
#include "tools/score/runs_like.h"
#include "traces/timeline_json.h"
#include "traces/trace_page.h"

namespace foretrain {

Status print(bool quiet, const std::string& text) {
  if (quiet) return ok_status();
  if (isatty(STDOUT_FILENO) == 0) return write_output("-", printable(text));
  const char* const plain = std::getenv("NO_COLOR");  // no-color.org
  const bool colours = plain == nullptr || *plain == '\0';
  winsize window = {};
  constexpr std::size_t kLeast = 40;  // tables that are broken more often cannot be read
  std::string out = printable(text);
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) {
    out = folded(out, std::max<std::size_t>(kLeast, window.ws_col));
  }
  return write_output("-", colours ? coloured(std::move(out)) : out);
}

void warn_of_idle_keys(bool quiet, const Run& run, Caller* caller) {
  if (quiet && caller == nullptr) return;
  for (const std::string& line : idle_keys(run)) {
    const std::string text = run.source + ": " + line;
    if (caller != nullptr) {
      caller->warnings.push_back(text);
    } else {
      warn("warning: " + text);
    }
  }
}

namespace {

/// What the user asked to hold of a run, once its results are written.
Status check_conditions(const Conditions& asked, const Run& run, const Prediction& prediction) {
  const double likely = odds_of(run, prediction.memory).fits;
  if (asked.fit > 0 && likely < asked.fit) {
    return Error{run.source + ": the run is " + fixed(100 * likely, 2) +
                     " % likely to fit, less than the " + fixed(100 * asked.fit, 2) +
                     " % that --require-fit asks for",
                 ErrorKind::kCondition};
  }
  const double seconds = prediction.iteration_time_s;
  if (asked.max_step_s > 0 && seconds > asked.max_step_s) {
    return Error{run.source + ": a step takes " + seconds_text(seconds) +
                     ", more than --max-step-s " + seconds_text(asked.max_step_s),
                 ErrorKind::kCondition};
  }
  return ok_status();
}

/// Without a bound of memory, what the machine has to give.
SimulationBounds bounds_of(const SimulateArgs& args) {
  SimulationBounds out = args.bounds;
  out.of_machine = out.gib <= 0;
  if (out.of_machine) out.gib = available_memory_gib();
  return out;
}

std::string trace_text(const std::string& path) {
  if (path.empty()) return "";
  return "Trace: " + path +
         (asks_for_page(path) ? " (open it in a browser)\n"
                              : " (open it at https://ui.perfetto.dev or chrome://tracing)\n");
}

}  // namespace

Status simulate(const SimulateArgs& args) {
  const std::vector<Output> outputs = {{"--json", args.files.json},
                                       {"--trace", args.files.trace},
                                       {"--timeline", args.files.timeline},
                                       {"--report", args.files.report}};
  FT_TRY(check_outputs(outputs, read_with(outputs, args.run, args.sets)));
  if (!args.trace_ranks.empty() && args.files.trace.empty() && args.files.timeline.empty()) {
    return input_error("--trace-ranks chooses what --trace and --timeline write; give one of them");
  }
  ChoosePrices prices;
  if (!args.profile.empty()) {
    prices = [&args](Run& run) { return use_profile(run, args.profile, "--profile"); };
  }
  FT_ASSIGN(const Run run, load_run(args.run, args.sets, prices));
  FT_TRY(check_outputs(outputs, {profile_path(run.profile_source)}));
  warn_of_idle_keys(args.quiet, run, args.caller);
  FT_TRY(simple_bill(run, 0));  // what is wrong with its section is told before anything runs
  PredictOptions options;
  options.full = args.full;
  options.verify = args.verify;
  options.sensitivity = !args.no_advice;
  options.timeline =
      !args.files.trace.empty() || !args.files.timeline.empty() || !args.files.report.empty();
  options.trace_ranks = args.trace_ranks;
  options.bounds = bounds_of(args);
  const bool progress = !args.quiet && isatty(STDERR_FILENO) != 0;
  if (progress) {
    options.progress = [](std::int64_t done, std::int64_t all) {
      std::fprintf(stderr, "\r%3d %% of %lld million operations",
                   static_cast<int>(100 * done / all), static_cast<long long>(all / 1'000'000));
    };
  }
  FT_ASSIGN(Prediction prediction, predict(run, options));
  const bool reported =
      !args.no_advice && (!args.quiet || !args.files.json.empty() || args.caller != nullptr);
  if (reported) {
    prediction.fitting = prediction.memory.fits ? find_faster(run, prediction, options.bounds)
                                                : find_fitting(run, prediction, options.bounds);
  }
  if (progress) std::fprintf(stderr, "\r%*s\r", 40, "");
  if (!args.files.trace.empty()) {
    FT_TRY(write_trace(args.files.trace, *prediction.timeline, run.name));
  }
  if (!args.files.timeline.empty()) {
    FT_ASSIGN(AtomicFile file, AtomicFile::create(args.files.timeline));
    FT_TRY(save_timeline(*prediction.timeline, file));
    FT_TRY(file.commit());
  }
  FT_ASSIGN(const std::optional<Bill> bill, simple_bill(run, prediction.iteration_time_s));
  const auto result = [&] {
    Json json = json_report(run, prediction);
    if (bill) json.set("bill", json_of(*bill));
    json.set("runs_like_yours", runs_like_json(runs_like(traits_of(run))));
    return json;
  };
  FT_TRY(give_json(args.files.json, args.caller, result));
  if (!args.files.report.empty()) {
    const TimelineSource* shown = prediction.timeline ? &*prediction.timeline : nullptr;
    FT_TRY(write_output(args.files.report, simulation_page(result(), run.resolved, shown)));
  }
  const bool stdout_taken = args.files.report == "-" || args.files.json == "-" ||
                            args.files.trace == "-" || args.files.timeline == "-";
  if (!args.quiet && !stdout_taken) {
    constexpr std::size_t kRunsShown = 3;
    FT_TRY(print(false, text_report(run, prediction) + (bill ? text_of(*bill) : "") +
                            runs_like_text(runs_like(traits_of(run), kRunsShown)) +
                            trace_text(args.files.trace)));
  }
  return check_conditions(args.conditions, run, prediction);
}

}  // namespace foretrain
