// Weeks of a run: steps of known length, and all that goes wrong between the first and the last.
//
// One campaign is a sequence of events on its own clock: failures, slow-downs, nodes that come
// back, checkpoints that are written. Between two events the job does one thing (`Part`), so that
// the parts add up to the wall time exactly. The job knows lengths of steps, no models.
//
// Failures are Poisson processes on the wall clock, or a trace. A failure during a recovery begins
// the recovery again.
// Left out: failures of spares; repair times that vary; other jobs.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace foretrain {

/// A point on a campaign's clock, in whole nanoseconds: int64 holds 292 years.
using Nanos = std::int64_t;
inline constexpr double kNanosPerSecond = 1e9;
inline constexpr double kSecondsPerDay = 86400;
inline Nanos nanos(double seconds) { return std::llround(seconds * kNanosPerSecond); }
inline double seconds_of(Nanos time) { return static_cast<double>(time) / kNanosPerSecond; }

/// What the job does, and where its wall time goes.
enum class CampaignPart : std::uint8_t {
  kProductive,  ///< work done for the first time, at the step's full speed
  kCheckpoint,  ///< the job stands still, or is slower, while a checkpoint is written
  kRecovery,    ///< detection, diagnosis, start, loading, warm-up
  kRepeated,    ///< work that a failure had undone
  kWaiting,     ///< for a node
  kSlow,        ///< what slow-downs and missing replicas add to the work
  kEvaluation,
  kCount
};
inline constexpr std::size_t kCampaignParts = static_cast<std::size_t>(CampaignPart::kCount);
std::string_view name_of(CampaignPart part);

/// What a failure takes away, as checkpoints see it.
enum class Loss : std::uint8_t {
  kProcesses,  ///< the job stops, its nodes stay
  kNode,
  kNodes,  ///< several at once: a rack, what hangs on a switch
  kCount
};
inline constexpr std::size_t kLosses = static_cast<std::size_t>(Loss::kCount);

/// Steps of one length. A campaign has several where its batch or its sequences grow.
struct WorkPhase {
  std::int64_t steps = 0;
  double step_s = 0;
};

/// Steps that are longer at the same hours of every day, as where a network or a store is shared.
struct DailySlow {
  double at_hour = 0;  ///< of the campaign's clock, whose days begin with the first step
  double hours = 0;
  double factor = 1;  ///< of a step's length
};

struct CampaignWork {
  std::vector<WorkPhase> phases;
  DailySlow daily;
  std::int64_t evaluate_every = 0;  ///< steps; 0: never
  double evaluation_s = 0;
};

/// Failures of one component, of all its units together.
struct FailureProcess {
  std::string component;
  double per_day = 0;
  std::int32_t nodes = 0;               ///< that a failure takes out of the job
  double repair_s = 0;                  ///< until they are back, from the diagnosis on
  std::optional<double> detect_s = {};  ///< in place of what holds for all components
};

/// One failure of a trace.
struct TracedFailure {
  double at_s = 0;
  std::int32_t component = 0;
  std::int32_t nodes = 0;
  double repair_s = 0;
};

/// The job goes on, slower: its slowest rank sets the pace.
struct SlowProcess {
  double per_day = 0;
  double factor = 1;  ///< of a step's length
  double lasts_s = 0;
  /// The slow unit is found after so long, if it is still slow, and fails then: the job stops and
  /// goes on without it. `taken_as` is the process in the model that says what it takes out.
  std::optional<double> found_s = {};
  std::size_t taken_as = 0;
};

struct FailureModel {
  std::vector<FailureProcess> processes;
  std::vector<TracedFailure> trace;  ///< in order; `component` counts on behind the processes
  std::vector<std::string> traced_components;
  std::vector<SlowProcess> slow;
  /// Rates begin `wear_in_factor` times as high, and fall with exp(-t / wear_in_days).
  double wear_in_factor = 1, wear_in_days = 0;
};

struct SavingPlan {
  std::int64_t every_steps = 0;  ///< 0: never
  double stall_s = 0;            ///< the job stands still
  /// From the end of the stall until the checkpoint survives such a loss; infinite: it never does.
  std::array<double, kLosses> ready_s{};
  std::array<double, kLosses> load_s{};
  double reshard_s = 0;  ///< the least time to load what another plan of the job wrote
  /// A checkpoint waits until the one before is written; else it is not written to the store then.
  bool waits_for_writer = true;
  double interference = 0;  ///< by how much longer a step takes while one is written
};

struct RecoveryPlan {
  double detect_s = 0, diagnose_s = 0;
  /// A lost node is replaced after so long, or once it is repaired if that is sooner; none: only
  /// repaired ones come back.
  std::optional<double> queue_s;
  double start_s = 0;
  std::int64_t warm_up_steps = 0;  ///< after a start, without progress
};

enum class PolicyKind : std::uint8_t {
  kWait,
  kSpares,
  kShrink,
  kDropReplica,
  kReroute,
  kTemplates,
  kRedundant,
};

struct Fleet {
  std::int64_t nodes = 1, spares = 0, replicas = 1;
  PolicyKind policy = PolicyKind::kWait;
  /// Time of the same work with so many replicas less, of that with all: [0] is 1. A job that
  /// would have fewer than this has waits. With `kTemplates` it is so many nodes less. With
  /// `kRedundant` [0] is what the redundant passes make of it, [1] what a stage of two does.
  std::vector<double> pace = {1};
  std::vector<std::int64_t> pipelines;  ///< of `kTemplates`, as `pace`
  double pause_s = 0;  ///< a job that goes on without a start stands still so long first
};

struct CampaignPlan {
  CampaignWork work;
  FailureModel failures;
  SavingPlan saving;
  RecoveryPlan recovery;
  Fleet fleet;
  double longest = 100;  ///< a campaign that takes so many times its work is given up
};

struct CampaignSpan {
  CampaignPart part;
  Nanos start, end;
};
struct CampaignMark {
  Nanos at;
  std::int32_t component;
};
/// Of one campaign, in order.
struct CampaignTimeline {
  std::vector<CampaignSpan> spans;
  std::vector<CampaignMark> failures;
};

struct CampaignOutcome {
  std::array<Nanos, kCampaignParts> parts{};
  std::vector<std::int64_t> failures;  ///< by process, then by traced component
  bool ended = true;                   ///< false: given up
  Nanos wall() const {
    Nanos sum = 0;
    for (const Nanos part : parts) sum += part;
    return sum;
  }
  double ettr() const {
    const Nanos all = wall();
    return all > 0 ? static_cast<double>(parts[0]) / static_cast<double>(all) : 1;
  }
};

/// Time of the whole work at full speed.
Nanos work_of(const CampaignWork& work);

/// Failures a day of all processes, once they are worn in. A trace has no rate.
double failures_per_day(const FailureModel& failures);

/// Campaign `index` of those of `seed`. The same arguments give the same outcome.
CampaignOutcome simulate_campaign(const CampaignPlan& plan, std::uint64_t seed, std::uint64_t index,
                                  CampaignTimeline* timeline = nullptr);

}  // namespace foretrain
