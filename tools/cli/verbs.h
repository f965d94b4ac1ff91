// The verbs of the command line. Each returns the exit code: 0 done, 1 input or environment at
// fault.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "executor/state/saved_state.h"
#include "sim/base/result.h"
#include "sim/timeline/timeline_source.h"
#include "tools/cli/completion.h"
#include "tools/predict/bounds/bounds.h"
#include "tools/predict/run_file.h"
#include "tools/search/search_request.h"

namespace foretrain {

/// Who runs a verb in the same process, and takes what it says there.
struct Caller {
  Json result;                        ///< what --json writes; null: nothing is known
  std::vector<std::string> warnings;  ///< what stderr would tell, were the verb not quiet
};

/// What a user asks to hold of a run.
struct Conditions {
  double fit = 0;         ///< the least probability that the run fits; 0: any
  double max_step_s = 0;  ///< 0: any
};

/// What `simulate` writes: paths, "" = none, "-" = stdout.
struct SimulatedFiles {
  std::string json, trace, timeline, report;
};

struct SimulateArgs {
  std::string run;
  std::vector<std::string> sets;
  SimulatedFiles files;
  std::string profile;  ///< measured prices: a path or a name
  std::vector<std::int64_t> trace_ranks;
  bool full = false, quiet = false, verify = false;
  Conditions conditions;
  SimulationBounds bounds;  ///< without gib: what the machine has to give
  bool no_advice = false;   ///< of what would make it fit and what a step gains
  Caller* caller = nullptr;
};
Status simulate(const SimulateArgs& args);

/// Of `--clusters` and `--policies`: what stands beside each other in a table.
struct GoodputBeside {
  std::vector<std::string> clusters, policies;
  bool any() const { return !clusters.empty() || !policies.empty(); }
};

struct GoodputArgs {
  std::string report;  ///< the page, "": none
  std::string run;
  std::vector<std::string> sets;
  GoodputBeside beside;
  std::string json, trace;
  std::int64_t campaigns = 0, seed = -1;  ///< 0, < 0: as the RUN says
  int threads = 0;                        ///< 0: as many as there are cores
  bool no_advice = false;                 ///< neither the best interval nor what helps
  bool quiet = false;
  Caller* caller = nullptr;
};
Status goodput(const GoodputArgs& args);

/// What `execute` has and `validate` has not.
struct ExecuteOnly {
  StateFolder states;    ///< of `--checkpoint`; no path: none are written
  bool resume = false;   ///< from the newest of them
  bool records = false;  ///< of a device: what of its ops' time is queueing
  double silence = -1;   ///< s without a sign of life; 0: for ever; < 0: the usual time
};

struct ExecuteArgs {
  std::string run, device = "host", blas;
  std::vector<std::string> sets;
  std::string json, trace, timeline;
  std::int64_t steps = 6, ranks = 0;  ///< ranks 0: as many as the RUN has accelerators
  bool threads = false, quiet = false;
  ExecuteOnly only;
  std::vector<std::string> command_line;  ///< of this process, less its name; for mpirun
};
Status execute(const ExecuteArgs& args);

struct CalibrateArgs {
  std::string device = "host", blas, out, json;
  std::string name;                    ///< the device of clusters that a CUDA profile prices
  std::vector<std::string> shapes_of;  ///< RUNs whose operations are measured, not the usual ones
  double budget = 0;                   ///< s; 0: as long as it takes
  bool quick = false, resume = false, force = false, threads = false, quiet = false;
  std::int64_t worker_ranks = 0;  ///< > 0: one of so many ranks that measure together
};
Status calibrate(const CalibrateArgs& args);

struct ValidateArgs {
  ExecuteArgs execute;
  std::string profile;
  std::string prices_from;  ///< a profile that must not have seen the run's shapes
  double seconds_per_op = 0.3;
  double max_error = -1;  ///< < 0: report only; else the largest error of the step, in percent
};
Status validate(const ValidateArgs& args);

struct ScoreArgs {
  std::string report;             ///< the page; "": none
  std::vector<std::string> rows;  ///< rows files
  std::string json, csv, only;    ///< `only`: rows whose id or group contains it
  std::string fit_intervals;      ///< where the widths of intervals go; "": nowhere
  std::string errors;             ///< where the errors of all runs go, for simulate; "": nowhere
  std::int64_t worst = 0;
  int threads = 0;  ///< 0: as many as there are cores
  bool explain = false, quiet = false;
};
Status score(const ScoreArgs& args);

struct SearchArgs {
  std::string report;  ///< the page, "": none
  std::string run;
  std::vector<std::string> sets;
  SearchRequest request;             ///< what flags say; the RUN may say more
  std::vector<std::string> explain;  ///< KEY=VALUE: why the best plan has it not
  std::string profile, json, csv, out;
  int threads = 0;  ///< 0: as many as there are cores
  bool quiet = false;
  Caller* caller = nullptr;
};
Status search(const SearchArgs& args);

struct CompareArgs {
  std::string report;  ///< the page, "": none
  std::string a, b;    ///< no `b`: A alone
  std::vector<std::string> sets;
  std::string json, trace, profile;
  std::string step_name;   ///< of traces: annotations that bound steps
  std::int64_t steps = 0;  ///< of traces without annotations
  bool gpu_steps = false, quiet = false;
  Caller* caller = nullptr;
};
Status compare(const CompareArgs& args);

struct ImportArgs {
  std::vector<std::string> files, sets;
  std::string from, cluster, out, json;
  std::int64_t accelerators = 0;  ///< 0: as the files say
  bool strict = false, quiet = false;
  Caller* caller = nullptr;
};
Status import_files(const ImportArgs& args);

struct ExportArgs {
  std::string run, to, out, json;
  std::vector<std::string> sets;
  bool strict = false, quiet = false;
  Caller* caller = nullptr;
};
Status export_files(const ExportArgs& args);

struct ListArgs {
  std::string kinds;                ///< with commas between; "", "all": all
  std::vector<std::string> filter;  ///< words; none: all
  std::string json;
  bool page = false;   ///< docs/reference/models.md
  bool quiet = false;  ///< as everywhere: nothing but what --json asks for
};
Status list(const ListArgs& args);
/// models, clusters, ...: folders of presets.
const std::vector<std::string>& preset_kinds();

struct ShowArgs {
  std::string name, json;
  std::vector<std::string> sets;
  std::int64_t program_rank = -1;  ///< >= 0: print the Program of that rank
  std::string why;                 ///< print how this op was priced
  bool schedule = false;           ///< print the order of every stage's passes
  bool step = false;               ///< print the tasks of a stage
  bool changed = false;            ///< print only what its system would not do by itself
  std::string after;               ///< after that pass alone
  std::int64_t stage = 0;
  bool quiet = false;
};
Status show(const ShowArgs& args);

struct SchemaArgs {
  std::string kind;
  bool page = false;  ///< print the reference page of keys instead
  std::string json;   ///< where the schema goes too; "": nowhere
  bool quiet = false;
};
Status schema(const SchemaArgs& args);

struct CompletionArgs {
  std::string shell;
  std::vector<OfferedVerb> verbs;
  std::string json;  ///< where the verbs and their options go; "": nowhere
  bool quiet = false;
};
Status completion(const CompletionArgs& args);

struct DoctorArgs {
  std::string json;
  bool quiet = false;
};
Status doctor(const DoctorArgs& args);

/// Writes `text` to a path, or to stdout for "-".
Status write_output(const std::string& path, const std::string& text);

/// Writes a result to the path, if there is one, and gives the caller that, if there is one. The
/// result is made where anybody wants that.
Status give_json(const std::string& path, Caller* caller, const std::function<Json()>& result);

/// A file that a verb writes: the option that names it, and its path; "" = none.
struct Output {
  const char* option;
  std::string path;
};
/// Writes a timeline of the run: a page where the path ends in .html, else a Chrome trace.
Status write_trace(const std::string& path, const TimelineSource& timeline, const std::string& run);

/// Refuses outputs that would be written to one place, or over a file that is read. Names of
/// shipped files are no paths: nothing stands there.
Status check_outputs(const std::vector<Output>& outputs, const std::vector<std::string>& inputs);

/// The files that are read for a RUN or another preset, where an output is a file at all: its own,
/// those that it or a `--set` names, those that these name. Profiles by name are not among them:
/// `Run::profile_source`.
std::vector<std::string> read_with(const std::vector<Output>& outputs, const std::string& run,
                                   const std::vector<std::string>& sets);
/// The same of rows: files, or folders of them.
std::vector<std::string> read_with_rows(const std::vector<Output>& outputs,
                                        const std::vector<std::string>& rows);

/// Writes `text` to stdout unless `quiet`. What a terminal would obey is written out.
Status print(bool quiet, const std::string& text);

/// Warns the caller, or else on stderr unless `quiet`, of what the RUN sets without an effect.
void warn_of_idle_keys(bool quiet, const Run& run, Caller* caller = nullptr);

}  // namespace foretrain
