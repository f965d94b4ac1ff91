// One of the two that are compared: where the time of a step goes, whatever it was read from.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/timeline/breakdown.h"
#include "sim/timeline/timeline.h"
#include "tools/predict/run_file.h"
#include "traces/activity.h"

namespace foretrain {

enum class SideKind : std::uint8_t { kRun, kResult, kTimeline, kKineto, kNsight };
/// "RUN", "result", "timeline", "PyTorch trace", "Nsight Systems export".
std::string_view name_of(SideKind kind);

/// Seconds a step.
struct FamilyTime {
  double seconds = 0;    ///< all of it, whatever runs beside it
  double exposed_s = 0;  ///< instants that are its own
  double waiting_s = 0;  ///< of `seconds`: until partners were there, where that is known
  double count = 0;      ///< operations
  FamilyTime& operator+=(const FamilyTime& other);
};

/// A kernel by its name, or an operation by its module's path.
struct KernelTime {
  std::string name, family;
  double seconds = 0, count = 0;
};

/// Where the time of a step goes.
struct StepTimes {
  double step_s = 0;
  double idle_s = 0;
  double launch_gaps_s = 0;       ///< of `idle_s`: gaps too short to be anything but launches
  double unclassified_share = 0;  ///< of the time of kernels
  /// By family and phase; the exposed ones and `idle_s` add up to `step_s`. Of a result the
  /// families are the parts of its breakdown, and there are no phases.
  std::map<std::pair<std::string, std::string>, FamilyTime> families;
  std::map<std::string, std::map<std::string, double>> kinds;  ///< by family: seconds by kind
  std::vector<KernelTime> kernels;                             ///< the longest first
  /// By part of `simulate`'s breakdown; empty of what profilers saw.
  std::map<std::string, double> parts;
};

struct Side {
  std::string source;  ///< as the user names it
  SideKind kind = SideKind::kRun;
  std::string device;      ///< "" where it is not known
  std::int64_t ranks = 0;  ///< of the world
  std::int64_t steps = 1, ranks_read = 1;
  StepTimes time;
  std::vector<std::string> notes;
  std::optional<Timeline> timeline;   ///< of one step, to be drawn
  std::shared_ptr<const Run> run;     ///< of a RUN
  std::vector<ActivityTrace> traces;  ///< kept where their shapes are wanted

  bool measured() const { return kind == SideKind::kKineto || kind == SideKind::kNsight; }
};

struct SideOptions {
  std::vector<std::string> sets;  ///< of RUNs
  std::string step_name;          ///< annotations that bound steps; "": the usual ones
  std::int64_t steps = 0;         ///< that a trace without annotations holds; 0: one
  bool gpu_steps = false;         ///< a step ends when the GPU has done what it launched
  bool shapes = false;            ///< keep the traces, with shapes
  bool timeline = false;          ///< keep a timeline to be drawn
  std::function<void(std::int64_t, std::int64_t)> progress = {};
};

/// From the files of several ranks.
Result<Side> side_of(std::vector<ActivityTrace> traces, SideKind kind, const SideOptions& options);
/// The busiest rank's of a timeline.
Result<Side> side_of(Timeline timeline, const std::string& source, const SideOptions& options);
/// Of one track, over [0, timeline.end].
StepTimes times_of(const Timeline& timeline, std::int32_t track);
/// From what `simulate --json` wrote.
Result<Side> side_of_result(const Json& json, const std::string& source);
/// From a RUN that is predicted now.
Result<Side> side_of_run(const std::string& name_or_path, const SideOptions& options);

/// A RUN, a result, a timeline, a trace of PyTorch or Nsight Systems, or several of these traces:
/// a folder of them, or paths with commas between. The content tells the kind.
Result<Side> load_side(const std::string& what, const SideOptions& options);

/// The files that it names: those between commas, or those of a folder in the order of their names.
Result<std::vector<std::string>> files_of_side(const std::string& what);

/// The family of an operation of ours, and the kind within it; nothing of what the GPU has no part
/// in (host work, waits for data).
std::optional<KernelClass> classify_operation(const SpanInfo& info);

}  // namespace foretrain
