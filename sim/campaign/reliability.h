// Files of what fails how often: `configs/reliability/`, or the user's own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/campaign/campaign.h"

namespace foretrain {

/// Of the job that the rates are applied to.
struct JobUnits {
  std::int64_t ranks = 1, nodes = 1, nodes_per_rack = 4, nodes_per_leaf = 32;
};

/// What a rate counts, and what a failure takes out of the job: a rank takes its node along.
enum class FailureScope : std::uint8_t { kRank, kNode, kRack, kLeaf, kJob };
std::int64_t units_of(FailureScope scope, const JobUnits& job);
std::int64_t nodes_of(FailureScope scope, const JobUnits& job);

const std::vector<std::string>& failure_components();
const std::vector<std::string>& failure_scopes();

/// Where `failures_per_node_day` stands, its failures are of this name.
inline constexpr const char* kAnyComponent = "node";

/// Reads the file's keys; a trace may be a file of its own.
Result<FailureModel> read_reliability(const Json& json, const std::string& source,
                                      const std::string& pointer, JobUnits job);

}  // namespace foretrain
