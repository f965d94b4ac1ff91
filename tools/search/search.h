// The best plan of a space, with a proof.
//
// Every plan has a bound that its objective never falls below (case_bounds.h): at first one of its
// degrees, then, if it may fit, one of all its keys. Of the plan with the lowest bound more is
// asked next. Plans with all their bounds are simulated, those first that promise most: their
// bounds are stretched by what plans like them were found to take beyond theirs. The search ends
// when no bound is below the best plan: nothing that is left can be better. Plans are taken in
// rounds of a fixed size, whatever the number of threads, so the answer is the same for any; where
// time ends the search before the proof, the answer depends on how far it came. A team of several
// processes (team/search_team.h) takes larger rounds: the best plan and the proof are the same, but
// other plans that cannot be better may have been simulated on the way.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/predict/predict.h"
#include "tools/search/condition.h"
#include "tools/search/space.h"

namespace foretrain {

class SearchTeam;

enum class Objective : std::uint8_t { kTime, kCost, kEnergy, kDays };
inline const std::vector<std::string> kObjectiveNames = {"time", "cost", "energy", "days"};

/// What a cluster costs.
struct ClusterPrice {
  std::string cluster;  ///< empty: any
  double per_gpu_hour = 0;
};

struct SearchOptions {
  SpaceOptions space;
  std::vector<std::string> conditions;
  Objective objective = Objective::kTime;
  std::vector<std::string> clusters;       ///< in place of the RUN's
  std::vector<std::int64_t> accelerators;  ///< in place of the RUN's
  std::vector<ClusterPrice> prices;
  double budget_s = 60;
  std::size_t threads = 0;     ///< 0: as many as there are cores
  ChoosePrices profile;        ///< in place of what the RUN says
  std::string state;           ///< a file of what was looked at (search_state.h); "": none
  SearchTeam* team = nullptr;  ///< processes that search together; null: this one alone
};

/// A plan that was simulated.
struct FoundPlan {
  Json run;                                           ///< a whole RUN
  std::vector<std::pair<std::string, Json>> changes;  ///< by key, against the RUN
  std::string cluster;
  std::int64_t accelerators = 0;
  double iteration_time_s = 0, tokens_per_s = 0, mfu = 0;
  double cost = 0;        ///< of a step, in the currency of the prices; 0: no price is known
  double energy_kwh = 0;  ///< of a step, if every accelerator draws what it may
  double objective = 0;   ///< the less the better
  double wins = -1;  ///< share of draws of prices in which it is the best (robustness.h); -1: ?
  MemoryReport memory;
};

/// What became of every plan of the space: they are as many as the counts together say.
struct Certificate {
  std::int64_t plans = 0;
  std::int64_t refused = 0;    ///< by the rules of plans
  std::int64_t excluded = 0;   ///< by conditions of the user's
  std::int64_t too_large = 0;  ///< for the device's memory
  std::int64_t bounded = 0;    ///< whose bound is no better than the best
  std::int64_t simulated = 0;
  std::int64_t open = 0;  ///< neither, when time ended the search
  /// (best - lowest bound of an open plan) / best; 0 where none is open, 1 where nothing is found.
  double gap = 0;
  bool complete = false;
};

struct SearchProgress {
  double seconds = 0;
  Certificate so_far;
  const FoundPlan* best = nullptr;
};

struct SearchResult {
  std::vector<FoundPlan> plans;      ///< that fit, the best first
  std::optional<FoundPlan> own;      ///< the RUN's own plan, where it is legal
  std::optional<FoundPlan> nearest;  ///< the plan that lacks least memory, where none fits
  std::vector<std::string> reasons;  ///< the commonest rules that refused plans, the first words
  Certificate certificate;
  /// Draws of prices that `FoundPlan::wins` counts, among so many of the best plans; 0: none.
  std::int64_t draws = 0, drawn_plans = 0;
  std::int64_t bounds = 0;  ///< samples that bounds were made of
  bool interrupted = false;
  std::string state_fault;  ///< why the file of `SearchOptions::state` could not be written
  std::string team_fault;   ///< why other processes helped no more
  double wall_s = 0;
};

/// Asked between rounds with what is known; whether to go on.
using SearchWatch = std::function<bool(const SearchProgress&)>;

/// `run` is a RUN as it is written; `source` names it in messages. In a team the leader has the
/// result, that of the others is empty.
Result<SearchResult> search_plans(const Json& run, const std::string& source,
                                  const SearchOptions& options, const SearchWatch& watch);

/// Of the plans those that no other beats in both time and memory, the fastest first: indices.
std::vector<std::size_t> pareto_front(const std::vector<FoundPlan>& plans);

/// Names that conditions may use.
std::vector<std::string> condition_names();

}  // namespace foretrain
