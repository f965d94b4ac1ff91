#include "tools/goodput/campaign_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "hardware/presets.h"
#include "sim/campaign/reliability.h"
#include "tools/goodput/host_store.h"
#include "tools/goodput/pipeline_policies.h"

namespace foretrain {
Result<Prediction> predict_with(const Run& run, const Sets& sets) {
  const auto prices = [&run](Run& other) {
    other.profile = run.profile;
    other.profile_source = run.profile_source;
    return ok_status();
  };
  FT_ASSIGN(const Run changed, resolve_run(run.resolved, run.source, sets, prices));
  PredictOptions options;
  options.sensitivity = options.verify = false;
  options.step_alone = true;
  return predict(changed, options);
}

std::string set_text(const char* key, std::int64_t value) {
  return std::string(key) + "=" + std::to_string(value);
}

double peer_copy_s(const Run& run, const CheckpointBytes& bytes) {
  const Cluster& cluster = run.cluster;
  const std::int64_t ranks = std::min(cluster.accelerators, cluster.accelerators_per_node);
  return transfer_s(bytes.rank * static_cast<double>(ranks), cluster.node_network_gb_per_s());
}

namespace {

/// GB/s of a shared store for each node where nobody says: BLOOM's 48 nodes wrote 2294.77 GiB in
/// 40 s (bigscience train/tr11-176B-ml/chronicles.md, 2022), 61.6 GB/s.
constexpr double kStorePerNode = 1.28;
/// Seconds until a node is back where neither the rates nor the RUN say: an assumption.
constexpr double kUnknownRepair = 86400;

std::string where(const Run& run) { return run.source + ": /campaign/"; }

/// Step time of the run with changes; `fits` tells whether it fits into memory.
Result<double> step_with(const Run& run, const Sets& sets, bool* fits = nullptr) {
  FT_ASSIGN(const Prediction prediction, predict_with(run, sets));
  if (fits != nullptr) *fits = prediction.memory.fits;
  return prediction.iteration_time_s;
}

/// The value that holds from `tokens` on; `first` where no change is that early.
std::int64_t value_from(const std::vector<PhaseChange>& changes, double tokens,
                        std::int64_t first) {
  std::int64_t out = first;
  for (const PhaseChange& change : changes) {
    if (change.from_tokens <= tokens) out = change.value;
  }
  return out;
}

/// Phases of a campaign whose batch or sequences grow, each with its simulated step.
Status plan_phases(const Run& run, const WorkRequest& work, Goodput& out) {
  if (!work.tokens || work.step_time_s) {
    return input_error(where(run) + "batch_ramp, sequence_phases: go with tokens and simulated " +
                       "steps, not with steps or step_time_s");
  }
  std::vector<double> begins = {0};
  for (const auto* changes : {&work.batch_ramp, &work.sequence_phases}) {
    for (const PhaseChange& change : *changes) {
      if (change.from_tokens < *work.tokens) begins.push_back(change.from_tokens);
    }
  }
  std::sort(begins.begin(), begins.end());
  begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
  begins.push_back(*work.tokens);
  std::map<std::pair<std::int64_t, std::int64_t>, double> known;
  for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
    const std::int64_t global = value_from(work.batch_ramp, begins[i], run.plan.global_batch);
    const std::int64_t length =
        value_from(work.sequence_phases, begins[i], run.plan.sequence_length);
    auto found = known.find({global, length});
    if (found == known.end()) {
      FT_ASSIGN(const double step_s, step_with(run, {set_text("batch.global", global),
                                                     set_text("batch.sequence", length)}));
      found = known.emplace(std::pair(global, length), step_s).first;
    }
    const double tokens = static_cast<double>(global) * static_cast<double>(length);
    const auto steps = static_cast<std::int64_t>(std::ceil((begins[i + 1] - begins[i]) / tokens));
    out.plan.work.phases.push_back({steps, found->second});
    out.steps += steps;
  }
  out.step_time_s = seconds_of(work_of(out.plan.work)) / static_cast<double>(out.steps);
  return ok_status();
}

Status plan_work(const Run& run, const WorkRequest& work, Goodput& out) {
  out.plan.work.evaluate_every = work.evaluate_every;
  out.plan.work.evaluation_s = work.evaluation_s;
  out.plan.work.daily = work.daily;
  if (!work.batch_ramp.empty() || !work.sequence_phases.empty()) {
    return plan_phases(run, work, out);
  }
  FT_ASSIGN(out.steps, steps_of(run, work));
  if (work.step_time_s) {
    out.step_time_s = *work.step_time_s;
  } else {
    bool fits = true;
    FT_ASSIGN(out.step_time_s, step_with(run, {}, &fits));
    if (!fits) {
      out.notes.push_back(
          "the plan does not fit into memory: `foretrain simulate` says what would");
    }
  }
  out.plan.work.phases = {{out.steps, out.step_time_s}};
  constexpr double kMostDays = 1e4;
  const double days = static_cast<double>(out.steps) * out.step_time_s / kSecondsPerDay;
  if (days <= kMostDays) return ok_status();
  return input_error(where(run) + (work.steps ? "steps" : "tokens") + ": " +
                     std::to_string(out.steps) + " steps of " + std::to_string(out.step_time_s) +
                     " s take more than " + std::to_string(static_cast<int>(kMostDays)) + " days");
}

/// Files that the section names lie beside the RUN where they do not from the working directory:
/// `run_file.cpp` has seen to that.
Status plan_failures(const Run& run, const CampaignRequest& request, Goodput& out) {
  if (!request.reliability) return ok_status();
  JobUnits units;
  units.ranks = run.cluster.accelerators;
  units.nodes = run.cluster.nodes();
  const std::vector<NetworkLevel>& levels = run.cluster.topology.levels;
  if (!levels.empty()) units.nodes_per_leaf = levels.front().nodes;
  const std::int64_t of_domain =
      run.cluster.domain_size() / std::max(1, run.cluster.accelerators_per_node);
  units.nodes_per_rack = std::max<std::int64_t>(units.nodes_per_rack, of_domain);
  Json json = *request.reliability;
  std::string source = run.source;
  std::string pointer = "/campaign/reliability";
  const Json* preset = json.object() == nullptr ? nullptr : json.find("preset");
  const Json named = preset == nullptr ? json : *preset;
  if (named.string() != nullptr) {
    FT_ASSIGN(NamedJson file,
              load_preset("reliability", *named.string(), run.source, "/campaign/reliability"));
    if (preset != nullptr) {
      for (const auto& [key, value] : *json.object()) {
        if (key != "preset") file.json.set(key, value);
      }
    }
    json = std::move(file.json);
    source = file.source;
    pointer = "";
  } else if (json.object() == nullptr) {
    return input_error(where(run) + "reliability: found " + describe(json) +
                       ", expected a preset's name, a path or an object");
  }
  FT_ASSIGN(out.plan.failures, read_reliability(json, source, pointer, units));
  return ok_status();
}

/// Time of the same work with `lost` replicas less, of that with all; 0: its plan does not go with
/// so few. A replica that drops out takes its part of the batch along; else those that are left
/// share all of it, and the step is that of the one with most microbatches.
double pace_without(const Run& run, PolicyKind policy, std::int64_t lost, double step_s) {
  const std::int64_t replicas = run.plan.data / run.plan.context;
  const std::int64_t left = replicas - lost;
  const std::int64_t of_one = run.plan.micro_batch * left;
  const bool drops = policy == PolicyKind::kDropReplica;
  const std::int64_t microbatches =
      drops ? run.plan.microbatches() : (run.plan.global_batch + of_one - 1) / of_one;
  const std::int64_t accelerators = run.plan.accelerators / replicas * left;
  const Result<double> step = step_with(run, {set_text("cluster.accelerators", accelerators),
                                              set_text("batch.global", of_one * microbatches)});
  if (!step.ok()) return 0;
  const double work = drops ? static_cast<double>(left) / static_cast<double>(replicas) : 1;
  return step.value() / step_s / work;
}

/// Paces of a job with 1, 2, ... replicas less, up to half of them: some simulated, between them in
/// proportion.
Status plan_elastic(const Run& run, Goodput& out) {
  Fleet& fleet = out.plan.fleet;
  const std::int64_t most = std::min<std::int64_t>(fleet.replicas / 2, 64);
  if (most < 1) {
    return input_error(where(run) + "policy: the run has " + std::to_string(fleet.replicas) +
                       " data-parallel replica, none of which it can do without");
  }
  FT_ASSIGN(const double step_s, step_with(run, {}));
  std::map<std::int64_t, double> known = {{0, 1.0}};
  bool simulated = true;
  std::vector<std::int64_t> lost;
  for (std::int64_t n = 1; n < most; n *= 2) lost.push_back(n);
  lost.push_back(most);
  for (const std::int64_t n : lost) {
    const double fewer =
        static_cast<double>(fleet.replicas) / static_cast<double>(fleet.replicas - n);
    const double pace = pace_without(run, fleet.policy, n, step_s);
    simulated = simulated && pace > 0;
    known[n] = std::max(1.0, pace > 0 ? pace : fewer);
  }
  if (!simulated) {
    out.notes.push_back(
        "step times of fewer replicas are those of the run in proportion, where "
        "its plan does not go with so few");
  }
  fleet.pace.clear();
  for (std::int64_t n = 0; n <= most; ++n) {
    const auto above = known.lower_bound(n);
    if (above->first == n) {
      fleet.pace.push_back(above->second);
      continue;
    }
    const auto below = std::prev(above);
    const double share =
        static_cast<double>(n - below->first) / static_cast<double>(above->first - below->first);
    fleet.pace.push_back(below->second + share * (above->second - below->second));
  }
  return ok_status();
}

/// Keys that only some policies read stand with these.
Status check_policy_keys(const Run& run, const CampaignRequest& request, PolicyKind policy) {
  const bool templates = policy == PolicyKind::kTemplates;
  if (request.failures_at_once && !templates) {
    return input_error(where(run) + "failures_at_once: goes with policy templates, found " +
                       policy_names()[static_cast<std::size_t>(policy)]);
  }
  if (request.regroup_s && !templates && policy != PolicyKind::kRedundant) {
    return input_error(where(run) +
                       "recovery/regroup_s: goes with policies templates and redundant, found " +
                       policy_names()[static_cast<std::size_t>(policy)]);
  }
  return ok_status();
}

/// What replaces nodes, and how long that takes where nobody says.
Status plan_fleet(const Run& run, const CampaignRequest& request, Goodput& out) {
  Fleet& fleet = out.plan.fleet;
  fleet.nodes = run.cluster.nodes();
  fleet.spares = request.spares;
  fleet.replicas = std::max<std::int64_t>(1, run.plan.data / run.plan.context);
  fleet.policy =
      request.policy.value_or(request.spares > 0 ? PolicyKind::kSpares : PolicyKind::kWait);
  FT_TRY(check_policy_keys(run, request, fleet.policy));
  const bool waits = fleet.policy == PolicyKind::kWait && !request.waits_for_repair;
  bool unknown = false;
  const auto look = [&](std::int32_t nodes, double& repair_s) {
    if (nodes == 0 || repair_s > 0 || out.plan.recovery.queue_s || waits) return;
    unknown = true;
    repair_s = kUnknownRepair;
  };
  for (FailureProcess& one : out.plan.failures.processes) look(one.nodes, one.repair_s);
  for (TracedFailure& one : out.plan.failures.trace) look(one.nodes, one.repair_s);
  if (unknown && fleet.policy == PolicyKind::kSpares && fleet.spares == 0) {
    return input_error(where(run) +
                       "spares: found no spares and no queue, so nothing replaces a "
                       "node that failed; give spares, recovery.queue_s or a "
                       "repair_s of what fails");
  }
  if (unknown) {
    out.notes.push_back(
        "nodes are taken to be repaired in a day, as neither recovery.queue_s nor "
        "a repair_s says otherwise");
  }
  switch (fleet.policy) {
    case PolicyKind::kWait:
    case PolicyKind::kSpares:
      return ok_status();
    case PolicyKind::kShrink:
    case PolicyKind::kDropReplica:
    case PolicyKind::kReroute:
      return plan_elastic(run, out);
    case PolicyKind::kTemplates:
      return plan_templates(run, request, out);
    case PolicyKind::kRedundant:
      return plan_redundant(run, request, out);
  }
  return ok_status();
}

void plan_saving(const Run& run, const SavingRequest& asked, Goodput& out) {
  const CheckpointBytes& bytes = out.checkpoint.bytes;
  const Cluster& cluster = run.cluster;
  const double nodes = cluster.nodes();
  const double store =
      transfer_s(bytes.total, asked.store_gb_per_s.value_or(kStorePerNode * nodes));
  const double to_host = transfer_s(bytes.rank, cluster.device.pcie_gb_per_s);
  const double to_peer = peer_copy_s(run, bytes);
  SavingPlan& saving = out.plan.saving;
  saving.interference = asked.interference;
  saving.waits_for_writer = asked.mode == SaveMode::kSync || asked.mode == SaveMode::kAsync;
  saving.load_s = {store, store, store};
  saving.stall_s = to_host;
  switch (asked.mode) {
    case SaveMode::kSync:
      saving.stall_s = std::max(store, to_host);
      break;
    case SaveMode::kAsync:
      saving.ready_s = {store, store, store};
      break;
    case SaveMode::kHostMemory:
      saving.ready_s = {0, store, store};
      saving.load_s[0] = to_host;
      break;
    case SaveMode::kNeighbour:
      saving.ready_s = {0, to_peer, store};
      saving.load_s = {to_host, to_peer + to_host, store};
      break;
    case SaveMode::kNvme:
      saving.ready_s = {0, store, store};
      saving.stall_s = transfer_s(bytes.rank, cluster.storage_writes());
      saving.load_s[0] = transfer_s(bytes.rank, cluster.storage_gb_per_s);
      break;
  }
  // Another plan reads ranges that other ranks wrote, so from the store, whatever lies nearer:
  // every byte once, and every node gets what its ranks hold (Wan et al., ByteCheckpoint, NSDI
  // 2025).
  const bool moves =
      run.plan.sharding != Sharding::kNone || out.plan.fleet.policy == PolicyKind::kTemplates;
  if (moves) saving.reshard_s = std::max(store, to_peer);
  if (asked.stall_s) saving.stall_s = *asked.stall_s;
  if (asked.load_s) saving.load_s.fill(*asked.load_s);
  if (asked.load_s && moves) saving.reshard_s = *asked.load_s;
  if (asked.reshard_s) saving.reshard_s = *asked.reshard_s;
}

Status plan_interval(const Run& run, const SavingRequest& asked, Goodput& out) {
  if (asked.interval_s && asked.interval_steps) {
    return input_error(where(run) +
                       "checkpoint/interval_steps: stands beside interval_s; give one "
                       "of them");
  }
  const bool stated = asked.interval_s || asked.interval_steps;
  if (!stated) return ok_status();
  const std::int64_t steps = asked.interval_steps.value_or(
      std::max<std::int64_t>(1, std::llround(asked.interval_s.value_or(0) / out.step_time_s)));
  if (steps >= out.steps) {
    return input_error(where(run) + "checkpoint/" +
                       (asked.interval_s ? "interval_s" : "interval_steps") + ": found " +
                       std::to_string(steps) + " steps, which is not less than the campaign's " +
                       std::to_string(out.steps));
  }
  out.plan.saving.every_steps = steps;
  return ok_status();
}

}  // namespace

Status plan_campaign(const Run& run, const CampaignRequest& request, Goodput& goodput) {
  goodput.plan.recovery = request.recovery;
  goodput.plan.recovery.start_s +=
      request.start_per_rank_s * static_cast<double>(run.cluster.accelerators);
  FT_TRY(plan_failures(run, request, goodput));
  FT_TRY(plan_work(run, request.work, goodput));
  goodput.checkpoint.bytes = checkpoint_bytes(run);
  FT_TRY(plan_fleet(run, request, goodput));
  plan_saving(run, request.saving, goodput);
  return plan_interval(run, request.saving, goodput);
}

}  // namespace foretrain
