// One cluster of one size in a search: its space, and a bound for every plan of it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/search/search.h"
#include "tools/search/step_bound.h"

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

  ChoosePrices profile() const;
};

/// Of every cluster and size that the options name.
Result<std::vector<SearchCase>> search_cases(const Json& run, const std::string& source,
                                             const SearchOptions& options);

/// Bounds of a case's plans, from samples that are priced once for all plans that share them.
class CaseBounds {
 public:
  explicit CaseBounds(const SearchCase& of);
  std::size_t samples() const { return x_samples.size(); }
  /// Prices one; different ones may be priced at once.
  void price(std::size_t sample);
  /// The bound of a plan in seconds, once its samples are priced; 0 where none is known.
  double seconds(std::size_t plan) const;
  /// GiB of parameters and of gradients that no rank keeps in parts, on a mean stage.
  double least_gib(std::size_t plan) const;

 private:
  /// What a plan's samples are, by number; none: -1. `all`: of all layers computed again.
  struct Samples {
    std::int32_t plain = -1, all = -1;
    std::int64_t layers = 0;  ///< of a stage that are computed again
  };
  bool stands_round(Point point) const;  ///< its schedule is one that bounds are of
  const Json* value(Point point, const char* key) const;
  std::int32_t sample(Point point, const Json* recompute);

  const SearchCase& x_case;
  std::vector<Samples> x_samples_of;  ///< by plan
  std::map<std::string, std::int32_t> x_known;
  std::vector<Json> x_samples;  ///< RUNs
  std::vector<std::optional<LayerTimes>> x_times;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::int64_t>> x_layouts;
};

}  // namespace foretrain
