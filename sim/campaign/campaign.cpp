#include "sim/campaign/campaign.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "sim/campaign/failure_source.h"
#include "sim/campaign/policy.h"
#include "sim/campaign/saves.h"
#include "sim/campaign/work_line.h"
#include "sim/engine/event_queue.h"

namespace foretrain {

std::string_view name_of(CampaignPart part) {
  constexpr std::array<std::string_view, kCampaignParts> kNames = {
      "productive", "checkpoint", "recovery", "repeated", "waiting", "slow", "evaluation"};
  return kNames[static_cast<std::size_t>(part)];
}

double failures_per_day(const FailureModel& failures) {
  double sum = 0;
  for (const FailureProcess& process : failures.processes) sum += process.per_day;
  return sum;
}

namespace {

/// What ends by itself; everything else is an event of the queue.
enum class Activity : std::uint8_t {
  kRun,
  kSave,
  kEvaluate,
  kDetect,
  kDiagnose,
  kWait,
  kStart,
  kGrow,     ///< a start with more nodes, of a job that has lost nothing
  kRegroup,  ///< of a job that goes on without a start
};

CampaignPart part_of(Activity activity) {
  constexpr std::array<CampaignPart, 9> kParts = {
      CampaignPart::kProductive, CampaignPart::kCheckpoint, CampaignPart::kEvaluation,
      CampaignPart::kRecovery,   CampaignPart::kRecovery,   CampaignPart::kWaiting,
      CampaignPart::kRecovery,   CampaignPart::kRecovery,   CampaignPart::kRecovery};
  return kParts[static_cast<std::size_t>(activity)];
}

enum class CampaignEvent : std::uint8_t {
  kFailure,
  kTracedFailure,  ///< subject: which of the trace
  kNodeBack,
  kCopied,     ///< subject: the Loss that a checkpoint survives from now on
  kSlowBegin,  ///< subject: which process
  kSlowEnd,
  kSlowFound,
  kDailyBegin,
  kDailyEnd,
};
using CampaignQueue = TimedQueue<Nanos, CampaignEvent>;

/// What a failure or a node that came back broke off, at the end of the same step.
enum class Due : std::uint8_t { kNothing, kSave, kEvaluation };

struct WorkDone {
  Nanos position = 0;  ///< on the line of work
  Nanos target = 0;    ///< where the present run ends
  Nanos highest = 0;   ///< what lies before it is work that is done again
  Due due = Due::kNothing;
};

struct Nodes {
  std::int64_t lost = 0;     ///< by failures that are not diagnosed yet
  std::int64_t need = 0;     ///< waited for
  std::int64_t missing = 0;  ///< that the job runs without
  std::int64_t pool = 0;     ///< spares
  std::int64_t most_missing = 0;
  bool restart = false;    ///< the job has to start from a checkpoint
  std::int64_t loads = 0;  ///< the plan that wrote this checkpoint
  Loss loss = Loss::kProcesses;
};

/// What is broken off begins again once the job goes on, where it still stands at that step.
Due broken_off(Activity activity, Due before) {
  if (activity == Activity::kSave) return Due::kSave;
  return activity == Activity::kEvaluate ? Due::kEvaluation : before;
}

std::uint64_t stream_seed(std::uint64_t seed, std::uint64_t index, std::uint64_t stream) {
  return hash_u64(hash_u64(seed + 0x9e3779b97f4a7c15ULL) + 2 * index + stream);
}

std::vector<double> rates_of(const std::vector<FailureProcess>& processes) {
  std::vector<double> out;
  for (const FailureProcess& process : processes) out.push_back(process.per_day);
  return out;
}

std::vector<double> rates_of(const std::vector<SlowProcess>& processes) {
  std::vector<double> out;
  for (const SlowProcess& process : processes) out.push_back(process.per_day);
  return out;
}

/// The campaign's queue, and what fills it: failures, a trace, slow-downs.
class Happenings {
 public:
  Happenings(const FailureModel& model, const DailySlow& daily, std::uint64_t seed,
             std::uint64_t index)
      : x_model(model),
        x_daily(daily),
        x_failures(rates_of(model.processes), stream_seed(seed, index, 0), model.wear_in_factor,
                   model.wear_in_days),
        x_slowness(rates_of(model.slow), stream_seed(seed, index, 1)),
        x_active(model.slow.size(), 0) {
    push_failure(0);
    push_slow(0);
    push_traced(0);
    if (daily.hours <= 0 || daily.factor <= 1) return;
    push(hours(daily.at_hour), CampaignEvent::kDailyBegin);
    // What began the day before lasts into the first one.
    const double rest = daily.at_hour + daily.hours - 24;
    if (rest <= 0) return;
    x_day_slow = true;
    push(hours(rest), CampaignEvent::kDailyEnd);
  }

  Nanos next() const { return x_queue.empty() ? kNoNanos : x_queue.top().at; }
  CampaignQueue::Event pop() { return x_queue.pop(); }
  void push(Nanos at, CampaignEvent kind, std::int32_t subject = 0, std::uint32_t version = 0) {
    x_queue.push(at, kind, subject, 0, version);
  }
  /// Which process a failure is of; the next one follows.
  std::size_t take_failure(Nanos now) {
    const std::size_t which = x_failures.choose();
    push_failure(now);
    return which;
  }
  const TracedFailure& take_traced(std::int32_t index) {
    push_traced(index + 1);
    return x_model.trace[static_cast<std::size_t>(index)];
  }
  void begin_slow(std::int32_t which, Nanos now) {
    const auto at = static_cast<std::size_t>(which);
    ++x_active[at];
    const SlowProcess& slow = x_model.slow[at];
    const bool found = slow.found_s && *slow.found_s < slow.lasts_s;
    push(now + nanos(found ? *slow.found_s : slow.lasts_s),
         found ? CampaignEvent::kSlowFound : CampaignEvent::kSlowEnd, which);
    push_slow(now);
  }
  void end_slow(std::int32_t which) { --x_active[static_cast<std::size_t>(which)]; }
  void begin_daily(Nanos now) {
    x_day_slow = true;
    push(now + hours(x_daily.hours), CampaignEvent::kDailyEnd);
    push(now + hours(24), CampaignEvent::kDailyBegin);
  }
  void end_daily() { x_day_slow = false; }
  /// Of the slow-downs of this moment the worst: the slowest rank sets the pace. Those of every day
  /// make all ranks slower.
  double slowest() const {
    double out = 1;
    for (std::size_t i = 0; i < x_active.size(); ++i) {
      if (x_active[i] > 0) out = std::max(out, x_model.slow[i].factor);
    }
    return x_day_slow ? out * x_daily.factor : out;
  }
  /// Whether a node drawn from `nodes` is one of `some`.
  bool hits(std::int64_t some, std::int64_t nodes) {
    return some > 0 && x_failures.below(nodes) < some;
  }

 private:
  static Nanos hours(double count) { return nanos(count * 3600); }
  void push_failure(Nanos after) {
    const Nanos at = x_failures.next(after);
    if (at != kNoNanos) push(at, CampaignEvent::kFailure);
  }
  void push_slow(Nanos after) {
    const Nanos at = x_slowness.next(after);
    if (at == kNoNanos) return;
    push(at, CampaignEvent::kSlowBegin, static_cast<std::int32_t>(x_slowness.choose()));
  }
  void push_traced(std::int32_t index) {
    if (static_cast<std::size_t>(index) >= x_model.trace.size()) return;
    const double at_s = x_model.trace[static_cast<std::size_t>(index)].at_s;
    push(nanos(at_s), CampaignEvent::kTracedFailure, index);
  }

  const FailureModel& x_model;
  const DailySlow& x_daily;
  bool x_day_slow = false;
  PoissonSource x_failures, x_slowness;
  std::vector<std::int32_t> x_active;
  CampaignQueue x_queue;
};

/// Adds up where the time goes, and writes it down where somebody wants to see it.
class Ledger {
 public:
  Ledger(std::size_t components, CampaignTimeline* timeline) : x_timeline(timeline) {
    outcome.failures.assign(components, 0);
  }
  void add(CampaignPart part, Nanos from, Nanos length) {
    if (length == 0) return;
    outcome.parts[static_cast<std::size_t>(part)] += length;
    if (x_timeline == nullptr) return;
    std::vector<CampaignSpan>& spans = x_timeline->spans;
    if (!spans.empty() && spans.back().part == part && spans.back().end == from) {
      spans.back().end = from + length;
    } else {
      spans.push_back({part, from, from + length});
    }
  }
  void count(std::size_t component, Nanos at) {
    ++outcome.failures[component];
    if (x_timeline == nullptr) return;
    x_timeline->failures.push_back({at, static_cast<std::int32_t>(component)});
  }
  bool records() const { return x_timeline != nullptr; }

  CampaignOutcome outcome;

 private:
  CampaignTimeline* x_timeline;
};

bool evaluates_at(const CampaignWork& work, std::int64_t step) {
  return work.evaluate_every > 0 && step % work.evaluate_every == 0 && work.evaluation_s > 0;
}

/// One job from its first step to its last.
class Job {
 public:
  Job(const CampaignPlan& plan, std::uint64_t seed, std::uint64_t index, CampaignTimeline* timeline)
      : x_plan(plan),
        x_line(plan.work),
        x_policy(make_policy(plan.fleet.policy)),
        x_ledger(plan.failures.processes.size() + plan.failures.traced_components.size(), timeline),
        x_saves(plan.saving),
        x_happenings(plan.failures, plan.work.daily, seed, index) {
    x_nodes.pool = plan.fleet.spares;
    const auto steps = static_cast<std::int64_t>(plan.fleet.pace.size());
    while (x_nodes.most_missing + 1 < plan.fleet.nodes &&
           x_policy->pace_index(x_nodes.most_missing + 1, plan.fleet) < steps) {
      ++x_nodes.most_missing;
    }
  }

  CampaignOutcome run();

 private:
  void begin(Activity activity, Nanos length) {
    x_activity = activity;
    x_until = length == kNoNanos ? kNoNanos : x_now + length;
  }
  double pace() const;
  void begin_run();
  void set_run_end();
  void advance(Nanos to);
  void advance_run(Nanos to);
  void finish();
  void begin_save();
  void end_save();
  void end_grow();
  void go_on();
  Saves::Point point() const;
  bool skip_cycles(std::int64_t step);
  void handle(const CampaignQueue::Event& event);
  void fail(std::size_t component, std::int32_t nodes, double repair_s, bool drawn);
  void react();
  void start_or_go_on();
  void node_back();

  const CampaignPlan& x_plan;
  WorkLine x_line;
  std::unique_ptr<Policy> x_policy;
  Ledger x_ledger;
  Saves x_saves;
  Happenings x_happenings;
  Nanos x_now = 0, x_until = 0;
  Activity x_activity = Activity::kRun;
  WorkDone x_progress;
  Nodes x_nodes;
};

double Job::pace() const {
  const auto index = static_cast<std::size_t>(x_policy->pace_index(x_nodes.missing, x_plan.fleet));
  const std::vector<double>& pace = x_plan.fleet.pace;
  double out = x_happenings.slowest() * pace[std::min(index, pace.size() - 1)];
  if (x_saves.busy_until() > x_now) out *= 1 + x_plan.saving.interference;
  return out;
}

void Job::begin_run() {
  const std::int64_t step = x_line.steps_before(x_progress.position);
  std::int64_t target = x_line.steps();
  for (const std::int64_t every : {x_plan.saving.every_steps, x_plan.work.evaluate_every}) {
    if (every > 0) target = std::min(target, (step / every + 1) * every);
  }
  x_progress.target = target == x_line.steps() ? x_line.end() : x_line.at_step(target);
  x_activity = Activity::kRun;
  set_run_end();
}

void Job::set_run_end() {
  const Nanos left = x_progress.target - x_progress.position;
  const double factor = pace();
  x_until = x_now + (factor == 1 ? left : std::llround(static_cast<double>(left) * factor));
}

void Job::advance_run(Nanos to) {
  const Nanos wall = to - x_now;
  const Nanos left = x_progress.target - x_progress.position;
  const double factor = pace();
  Nanos work = wall;
  if (factor != 1) work = std::llround(static_cast<double>(wall) / factor);
  if (to == x_until) work = left;
  work = std::min({work, left, wall});
  const Nanos again = std::clamp<Nanos>(x_progress.highest - x_progress.position, 0, work);
  const Nanos more = wall - work;
  Nanos of_saving = 0;
  if (x_plan.saving.interference > 0 && x_saves.busy_until() > x_now) {
    of_saving =
        std::min<Nanos>(more, std::llround(static_cast<double>(work) * x_plan.saving.interference));
  }
  x_ledger.add(CampaignPart::kRepeated, x_now, again);
  x_ledger.add(CampaignPart::kProductive, x_now + again, work - again);
  x_ledger.add(CampaignPart::kCheckpoint, x_now + work, of_saving);
  x_ledger.add(CampaignPart::kSlow, x_now + work + of_saving, more - of_saving);
  x_progress.position += work;
  x_progress.highest = std::max(x_progress.highest, x_progress.position);
}

void Job::advance(Nanos to) {
  if (to == x_now) return;
  if (x_activity == Activity::kRun) {
    advance_run(to);
  } else {
    x_ledger.add(part_of(x_activity), x_now, to - x_now);
  }
  x_now = to;
}

void Job::begin_save() {
  const Nanos stall = nanos(x_plan.saving.stall_s);
  const Nanos busy = x_plan.saving.waits_for_writer ? x_saves.busy_until() - x_now : 0;
  begin(Activity::kSave, std::max<Nanos>(0, busy) + stall);
}

void Job::finish() {
  const std::int64_t step = x_line.steps_before(x_progress.position);
  switch (x_activity) {
    case Activity::kRun: {
      const std::int64_t every = x_plan.saving.every_steps;
      if (x_progress.position >= x_line.end()) return;
      if (every > 0 && step % every == 0) return begin_save();
      if (evaluates_at(x_plan.work, step))
        return begin(Activity::kEvaluate, nanos(x_plan.work.evaluation_s));
      return begin_run();
    }
    case Activity::kSave:
      return end_save();
    case Activity::kDetect:
      if (x_nodes.restart) return begin(Activity::kDiagnose, nanos(x_plan.recovery.diagnose_s));
      return react();
    case Activity::kDiagnose:
      return react();
    case Activity::kStart:
      x_nodes.restart = false;
      x_nodes.loss = Loss::kProcesses;
      return go_on();
    case Activity::kGrow:
      return end_grow();
    case Activity::kEvaluate:
      return begin_run();
    case Activity::kRegroup:
    case Activity::kWait:
      return go_on();
  }
}

Saves::Point Job::point() const {
  return {x_progress.position, x_policy->plan_index(x_nodes.missing, x_plan.fleet)};
}

void Job::go_on() {
  const Due due = std::exchange(x_progress.due, Due::kNothing);
  if (due == Due::kSave) return begin_save();
  if (due == Due::kEvaluation) {
    return begin(Activity::kEvaluate, nanos(x_plan.work.evaluation_s));
  }
  begin_run();
}

/// All ranks have written their states and read them as the larger plan shares them out.
void Job::end_grow() {
  x_saves.settle(point());
  if (x_progress.due == Due::kSave) {
    const bool evaluates = evaluates_at(x_plan.work, x_line.steps_before(x_progress.position));
    x_progress.due = evaluates ? Due::kEvaluation : Due::kNothing;
  }
  go_on();
}

void Job::end_save() {
  const std::int64_t step = x_line.steps_before(x_progress.position);
  const bool evaluates = evaluates_at(x_plan.work, step);
  if (!evaluates) {
    const Nanos before = x_progress.position;
    if (skip_cycles(step)) {
      const Nanos run = x_line.at_step(step + x_plan.saving.every_steps) - before;
      x_saves.settle({x_progress.position - run, point().plan});
    }
  }
  std::size_t count = 0;
  const Saves::Copies copies = x_saves.take(point(), x_now, count);
  for (std::size_t i = 0; i < count; ++i) {
    x_happenings.push(copies[i].at, CampaignEvent::kCopied,
                      static_cast<std::int32_t>(copies[i].loss), x_saves.version());
  }
  if (evaluates) return begin(Activity::kEvaluate, nanos(x_plan.work.evaluation_s));
  begin_run();
}

/// From the end of a checkpoint to the end of the last one before anything else happens: runs and
/// checkpoints of equal lengths, at once. Returns whether there were any.
bool Job::skip_cycles(std::int64_t step) {
  const SavingPlan& saving = x_plan.saving;
  if (x_ledger.records() || pace() != 1) return false;
  const std::int64_t phase_end = x_line.phase_end(x_progress.position);
  if (step + saving.every_steps >= phase_end) return false;
  const Nanos run = x_line.at_step(step + saving.every_steps) - x_progress.position;
  for (const double ready : saving.ready_s) {
    if (ready > 0 && (saving.interference > 0 || (!std::isinf(ready) && nanos(ready) > run))) {
      return false;
    }
  }
  const Nanos stall = nanos(saving.stall_s);
  Nanos cycles = std::min((x_happenings.next() - x_now - 1) / (run + stall),
                          (phase_end - step - 1) / saving.every_steps);
  if (x_plan.work.evaluate_every > 0) {
    const std::int64_t every = x_plan.work.evaluate_every;
    cycles = std::min(cycles, (every - step % every - 1) / saving.every_steps);
  }
  const bool again = x_progress.position < x_progress.highest;
  if (again) cycles = std::min(cycles, (x_progress.highest - x_progress.position) / run);
  if (cycles <= 0) return false;
  x_ledger.add(again ? CampaignPart::kRepeated : CampaignPart::kProductive, x_now, cycles * run);
  x_ledger.add(CampaignPart::kCheckpoint, x_now, cycles * stall);
  x_progress.position += cycles * run;
  x_progress.highest = std::max(x_progress.highest, x_progress.position);
  x_now += cycles * (run + stall);
  return true;
}

void Job::fail(std::size_t component, std::int32_t nodes, double repair_s, bool drawn) {
  // A node that the job has not cannot fail in it.
  if (drawn && nodes > 0 && x_happenings.hits(x_nodes.missing, x_plan.fleet.nodes)) return;
  x_ledger.count(component, x_now);
  const std::int64_t absent = x_nodes.missing + x_nodes.lost + x_nodes.need;
  const bool exposed = nodes > 0 && x_happenings.hits(x_policy->exposed(absent),
                                                      x_plan.fleet.nodes - x_nodes.missing);
  const RecoveryPlan& recovery = x_plan.recovery;
  const std::vector<FailureProcess>& processes = x_plan.failures.processes;
  const double detect_s = component < processes.size()
                              ? processes[component].detect_s.value_or(recovery.detect_s)
                              : recovery.detect_s;
  double back_s = repair_s;
  if (recovery.queue_s && (repair_s <= 0 || *recovery.queue_s < repair_s)) {
    back_s = *recovery.queue_s;
  }
  const Nanos back = x_now + nanos(detect_s + recovery.diagnose_s + back_s);
  for (std::int32_t n = 0; n < nodes; ++n) x_happenings.push(back, CampaignEvent::kNodeBack);
  x_nodes.lost += nodes + x_nodes.need;
  x_nodes.need = 0;
  const Blow blow = {nodes, x_nodes.lost, x_nodes.missing, x_nodes.most_missing + x_nodes.pool,
                     exposed};
  const bool keeps = nodes > 0 && x_policy->survives(blow, x_plan.fleet);
  x_nodes.restart = x_nodes.restart || !keeps;
  x_progress.due = broken_off(x_activity, x_progress.due);
  if (x_nodes.restart) {
    const Loss loss = nodes == 0 ? Loss::kProcesses : nodes == 1 ? Loss::kNode : Loss::kNodes;
    x_nodes.loss = std::max(x_nodes.loss, loss);
    const Saves::Point restored = x_saves.restore(x_nodes.loss);
    if (restored.position != x_progress.position) x_progress.due = Due::kNothing;
    x_progress.position = restored.position;
    x_nodes.loads = restored.plan;
  } else if (x_policy->redoes_step()) {
    x_progress.position = x_line.at_step(x_line.steps_before(x_progress.position));
  }
  begin(Activity::kDetect, nanos(detect_s));
}

void Job::react() {
  const Reaction reaction =
      x_policy->react({x_nodes.lost, x_nodes.missing, x_nodes.pool, x_nodes.most_missing});
  x_nodes.pool -= reaction.from_pool;
  x_nodes.missing += reaction.without;
  x_nodes.need = x_nodes.lost - reaction.from_pool - reaction.without;
  x_nodes.lost = 0;
  if (x_nodes.need > 0) return begin(Activity::kWait, kNoNanos);
  start_or_go_on();
}

void Job::start_or_go_on() {
  if (!x_nodes.restart) return begin(Activity::kRegroup, nanos(x_plan.fleet.pause_s));
  const Nanos warm_up = x_plan.recovery.warm_up_steps * x_line.step_at(x_progress.position);
  double load_s = x_plan.saving.load_s[static_cast<std::size_t>(x_nodes.loss)];
  if (x_progress.position > 0 && x_nodes.loads != point().plan) {
    load_s = std::max(load_s, x_plan.saving.reshard_s);
  }
  begin(Activity::kStart, nanos(x_plan.recovery.start_s + load_s) + warm_up);
}

void Job::node_back() {
  if (x_nodes.lost > 0) {
    --x_nodes.lost;
  } else if (x_nodes.need > 0) {
    if (--x_nodes.need == 0) start_or_go_on();
  } else if (x_nodes.missing > 0) {
    const std::int64_t before = x_policy->pace_index(x_nodes.missing, x_plan.fleet);
    --x_nodes.missing;
    const std::int64_t after = x_policy->pace_index(x_nodes.missing, x_plan.fleet);
    const bool runs = x_activity == Activity::kRun || x_activity == Activity::kSave ||
                      x_activity == Activity::kEvaluate;
    if (after == before || !runs) return;
    if (x_policy->goes_on()) {
      const bool pauses = x_plan.fleet.pause_s > 0 && x_activity == Activity::kRun;
      return pauses ? begin(Activity::kRegroup, nanos(x_plan.fleet.pause_s)) : void();
    }
    x_progress.due = broken_off(x_activity, x_progress.due);
    const SavingPlan& saving = x_plan.saving;
    const double saves_s = saving.stall_s + std::max(saving.load_s[0], saving.reshard_s);
    begin(Activity::kGrow, nanos(saves_s + x_plan.recovery.start_s) +
                               x_plan.recovery.warm_up_steps * x_line.step_at(x_progress.position));
  } else {
    ++x_nodes.pool;
  }
}

void Job::handle(const CampaignQueue::Event& event) {
  switch (event.kind) {
    case CampaignEvent::kFailure: {
      const std::size_t which = x_happenings.take_failure(event.at);
      const FailureProcess& process = x_plan.failures.processes[which];
      fail(which, process.nodes, process.repair_s, true);
      break;
    }
    case CampaignEvent::kSlowFound: {
      x_happenings.end_slow(event.subject);
      const std::size_t as = x_plan.failures.slow[static_cast<std::size_t>(event.subject)].taken_as;
      const FailureProcess& process = x_plan.failures.processes[as];
      fail(as, process.nodes, process.repair_s, true);
      break;
    }
    case CampaignEvent::kTracedFailure: {
      const TracedFailure& traced = x_happenings.take_traced(event.subject);
      fail(x_plan.failures.processes.size() + static_cast<std::size_t>(traced.component),
           traced.nodes, traced.repair_s, false);
      break;
    }
    case CampaignEvent::kNodeBack:
      node_back();
      break;
    case CampaignEvent::kCopied:
      if (event.version == x_saves.version()) x_saves.finish_copy(static_cast<Loss>(event.subject));
      break;
    case CampaignEvent::kSlowBegin:
      x_happenings.begin_slow(event.subject, event.at);
      break;
    case CampaignEvent::kSlowEnd:
      x_happenings.end_slow(event.subject);
      break;
    case CampaignEvent::kDailyBegin:
      x_happenings.begin_daily(event.at);
      break;
    case CampaignEvent::kDailyEnd:
      x_happenings.end_daily();
      break;
  }
  if (x_activity == Activity::kRun) set_run_end();
}

CampaignOutcome Job::run() {
  // The clock has room for what may follow the limit: a wait of decades.
  constexpr double kLatest = 4e18;
  const double most = static_cast<double>(x_line.end()) * x_plan.longest;
  const auto limit = static_cast<Nanos>(std::min(most, kLatest));
  begin_run();
  while (x_progress.position < x_line.end() || x_activity != Activity::kRun) {
    const Nanos next = x_happenings.next();
    if (x_now > limit || (next == kNoNanos && x_until == kNoNanos)) {
      x_ledger.outcome.ended = false;
      break;
    }
    if (x_until <= next) {
      advance(x_until);
      finish();
      continue;
    }
    const CampaignQueue::Event event = x_happenings.pop();
    advance(event.at);
    handle(event);
  }
  return std::move(x_ledger.outcome);
}

}  // namespace

CampaignOutcome simulate_campaign(const CampaignPlan& plan, std::uint64_t seed, std::uint64_t index,
                                  CampaignTimeline* timeline) {
  return Job(plan, seed, index, timeline).run();
}

}  // namespace foretrain
