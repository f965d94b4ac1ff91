// One cluster of one size in a search, and its space.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/search/search.h"
#include "tools/search/space.h"

namespace foretrain {

/// A cluster of the search, and what its plans have alike.
struct SearchCase {
  Json run;          ///< as it is written, on this cluster
  Run seed;          ///< a plan of it that is legal
  bool own = false;  ///< the seed is the RUN's own plan
  std::optional<Error> own_fault;
  Space space;
  std::string cluster;
  double price_per_gpu_hour = 0;
  double weight = 1;  ///< the objective of a step's second

  /// A RUN of another plan.
  Result<Run> resolve(const Json& written) const;
  /// The same on fewer accelerators; on those of one pool by its prices.
  Result<Run> resolve_sample(const Json& written, std::optional<std::size_t> pool = {}) const;
};

/// Of every cluster and size that the options name.
Result<std::vector<SearchCase>> search_cases(const Json& run, const std::string& source,
                                             const SearchOptions& options);

}  // namespace foretrain
