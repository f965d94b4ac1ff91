// Weeks of a run: the RUN's section `campaign`, with step times, bytes and rates of the run itself.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/campaign/statistics.h"
#include "tools/goodput/bill.h"
#include "tools/goodput/checkpoint_bytes.h"

namespace foretrain {

struct GoodputOptions {
  std::optional<std::int64_t> campaigns, seed;  ///< in place of the RUN's
  std::size_t threads = 0;                      ///< 0: as many as there are cores
  bool advice = true;                           ///< the best interval, and what helps
  bool same_repair = false;  ///< of unknown length: with `wait` as long as with other policies
};

/// How long checkpoints take, and how often one is written.
struct CheckpointReport {
  CheckpointBytes bytes;
  double interval_s = 0;  ///< of work; 0: none is written
  std::optional<double> best_s, young_s, daly_s;
};

/// What the campaign gains if something bad is halved.
struct Lever {
  std::string name;
  double days = 0;
};

struct Goodput {
  CampaignPlan plan;
  std::uint64_t seed = 1;
  std::int64_t campaigns = 0;
  double step_time_s = 0;
  std::int64_t steps = 0;
  CampaignStatistics statistics;
  std::optional<double> mttf_s;
  CheckpointReport checkpoint;
  Bill bill;
  std::optional<std::int64_t> best_spares;  ///< with which GPU-hours are fewest, where some help
  std::vector<Lever> sensitivity;
  std::vector<std::string> notes;
};

/// Simulates the RUN's campaign.
Result<Goodput> goodput_of(const Run& run, const GoodputOptions& options);

/// Names of what is counted in `CampaignOutcome::failures`.
std::vector<std::string> component_names(const FailureModel& failures);

/// Mean and percentiles of so many campaigns of a plan, on so many threads: the same on any.
/// None has ended where it is asked to stop.
CampaignStatistics simulate_campaigns(const CampaignPlan& plan, std::uint64_t seed,
                                      std::int64_t campaigns, std::size_t threads);

/// The same campaign on a cluster of that name, with a policy.
struct ClusterGoodput {
  std::string cluster;
  Goodput goodput;
};
/// One that cannot be: the plan does not go with the policy, or the campaign has no end.
struct RefusedGoodput {
  std::string cluster, policy, why;
};
struct GoodputTable {
  std::vector<ClusterGoodput> rows;
  std::vector<RefusedGoodput> refused;
};
/// The campaign of a RUN on each of the clusters ("": its own) with each of the policies ("": its
/// own). What goes with other policies alone is left out of a row. An error where every row is
/// refused.
Result<GoodputTable> goodput_table(const std::string& run, const Sets& sets,
                                   const std::vector<std::string>& clusters,
                                   const std::vector<std::string>& policies,
                                   const GoodputOptions& options);
std::string text_of(const Run& run, const GoodputTable& table);
Json json_of(const GoodputTable& table);

std::string text_report(const Run& run, const Goodput& goodput);
Json json_report(const Goodput& goodput);
/// The first campaign, event by event.
CampaignTimeline campaign_timeline(const Goodput& goodput);
/// The same as a Chrome trace.
std::string campaign_trace(const Run& run, const Goodput& goodput);

}  // namespace foretrain
