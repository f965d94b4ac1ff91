// The main job: a RUN goes in, a Prediction comes out.
//
// Passes: lower (models) -> verify -> fold, flatten and price (sim/engine, hardware) -> replay ->
// what the Timeline of the critical rank says -> memory.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/engine/recorder.h"
#include "sim/program/program.h"
#include "sim/timeline/breakdown.h"
#include "tools/predict/bounds/bounds.h"
#include "tools/predict/memory_report.h"
#include "tools/predict/run_file.h"

namespace foretrain {

struct PredictOptions {
  bool full = false;        ///< every rank unfolded
  bool verify = true;       ///< check the Workload before replaying it
  bool sensitivity = true;  ///< replay again with each resource 10 % faster
  bool whole = false;       ///< every microbatch is lowered and replayed, equal or not
  double most_memory = 0;   ///< of the capacity; above it memory is all that is predicted; 0: any
  bool step_alone = false;  ///< how long a step takes, and memory; not where its time goes
  bool timeline = false;    ///< keep a Timeline of `trace_ranks`
  std::vector<std::int64_t> trace_ranks;  ///< empty: the first rank of each class
  SimulationBounds bounds;
  /// Called now and then during a replay with (operations done, operations in all); may be empty.
  std::function<void(std::int64_t, std::int64_t)> progress;
};

struct Sensitivity {
  std::string resource;
  double gain_s = 0;  ///< what the step gains if this resource's rate is 10 % higher
};

/// Of the memory: what a plan may take and still have a few per cent to spare.
inline constexpr double kRoomyShare = 0.97;

/// Changes of a RUN with which it fits, or is faster: tools/predict/fitting.h.
struct Change {
  std::vector<std::string> sets;
  double iteration_time_s = 0, peak_gib = 0;
};
struct Fitting {
  std::vector<Change> changes;       ///< the fastest first
  std::int64_t tried = 0;            ///< changes, alone and in pairs
  bool stopped = false;              ///< before all were tried: they would have taken too long
  std::vector<std::string> lacking;  ///< what the system has not, so that it was not tried
};

/// What one deviation of the prices of each part of the work adds to a step, as a share of it.
using PartDeviations = std::array<double, static_cast<std::size_t>(Part::kCount)>;

/// Of a step's time, the 5th and the 95th percentile (tools/predict/interval.h), and what the
/// prices alone allow, in log(time).
struct StepInterval {
  double low_s = 0, high_s = 0, prices = 0;
  PartDeviations by_part{};
};

/// How a step was replayed.
struct Simulated {
  std::int64_t ranks = 0;     ///< classes of ranks
  std::int64_t lowered = 0;   ///< operations of the Programs, each once
  std::int64_t events = 0;    ///< of the replay's queue
  bool far_messages = false;  ///< PriceOptions::far_messages: more operations than are replayed
  std::int64_t stages = 0;    ///< of the longer of two pipelines that stand for it; 0: its own
  SimulationCost estimated;   ///< before the replay, of the step alone
  bool less_advice = false;   ///< sensitivities would have taken more than the bounds allow
};

struct Prediction {
  double iteration_time_s = 0;
  StepInterval interval;
  double tokens_per_s = 0;
  double model_tflops_per_accelerator = 0;
  double mfu = 0, hfu = 0;
  std::int64_t parameters = 0;
  MemoryReport memory;
  std::int64_t critical_rank = 0;
  Breakdown breakdown{};
  std::vector<Sensitivity> sensitivity;
  std::array<double, 3> provenance{};      ///< share of the critical rank's busy time by Provenance
  std::int64_t ranks = 0, operations = 0;  ///< of all classes of ranks
  Simulated simulated;
  double wall_s = 0;
  std::optional<Recording> timeline;
  std::optional<Fitting> fitting;  ///< of what does not fit; of what does, what is faster
};

/// What offload.device_share `auto` leaves open is chosen by the device's memory.
Result<Prediction> predict(const Run& given, const PredictOptions& options);

}  // namespace foretrain
