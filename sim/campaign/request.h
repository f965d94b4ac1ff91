// What a RUN's section `campaign` asks for, before the run's own bytes, rates and step are known.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/key.h"
#include "sim/campaign/campaign.h"

namespace foretrain {

/// How a checkpoint leaves the device, and where it lies then.
enum class SaveMode : std::uint8_t {
  kSync,        ///< to the store, the job stands still
  kAsync,       ///< to the host, the job goes on, from there to the store
  kHostMemory,  ///< to the host, where it survives the process; to the store when it has time
  kNeighbour,   ///< as that, and to another node's memory (GEMINI, SOSP 2023)
  kNvme,        ///< to the node's drives; to the store when it has time
};

struct SavingRequest {
  std::optional<double> interval_s;
  std::optional<std::int64_t> interval_steps;
  SaveMode mode = SaveMode::kSync;
  std::optional<double> store_gb_per_s, stall_s, load_s, reshard_s;
  double interference = 0;
};

/// A change of the batch or of its sequences, from so many tokens on.
struct PhaseChange {
  double from_tokens = 0;
  std::int64_t value = 0;
};

/// What there is to do.
struct WorkRequest {
  std::optional<double> tokens, step_time_s;
  std::optional<std::int64_t> steps;
  std::vector<PhaseChange> batch_ramp, sequence_phases;
  std::int64_t evaluate_every = 0;  ///< steps
  double evaluation_s = 0;
  DailySlow daily;
};

struct PriceRequest {
  std::optional<double> per_gpu_hour, per_kwh;
  double pue = 1;
};

/// Of Monte Carlo.
struct Sampling {
  std::int64_t campaigns = 1000, seed = 1;
};

struct CampaignRequest {
  WorkRequest work;
  std::optional<Json> reliability;  ///< a preset's name, a path, or an object
  SavingRequest saving;
  RecoveryPlan recovery;
  double start_per_rank_s = 0;  ///< beside recovery.start_s
  std::int64_t spares = 0;
  std::optional<PolicyKind> policy;
  /// `wait` takes repairs of unknown length to be as long as the other policies do; no key.
  bool waits_for_repair = false;
  std::optional<std::int64_t> failures_at_once;
  std::optional<double> regroup_s;
  PriceRequest price;
  Sampling sampling;
};

/// What a user names a value.
const std::vector<std::string>& policy_names();
const std::vector<std::string>& save_mode_names();

using CampaignKey = Key<CampaignRequest, CampaignRequest>;
using CampaignKeys = std::vector<CampaignKey>;

/// Keys of sections `campaign`, `campaign.checkpoint`, `campaign.recovery`.
const CampaignKeys& campaign_keys();
/// Those sections, and what each is about.
const std::vector<std::pair<std::string, std::string>>& campaign_sections();

/// Reads the section; every value that is wrong is an error.
Result<CampaignRequest> read_campaign(const Json& json, const std::string& source,
                                      const std::string& pointer);

}  // namespace foretrain
