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

  /// A RUN of another plan.
  Result<Run> resolve(const Json& written) const;
  /// The same on fewer accelerators.
  Result<Run> resolve_sample(const Json& written) const;
};

/// Of every cluster and size that the options name.
Result<std::vector<SearchCase>> search_cases(const Json& run, const std::string& source,
                                             const SearchOptions& options);

/// Bounds of a case's plans, from samples that are priced once for all plans that share them.
/// Those of memory, which a microbatch of one sequence tells, come first: `sample_times` makes
/// samples for the plans that they leave.
class CaseBounds {
 public:
  explicit CaseBounds(const SearchCase& of);
  std::size_t samples() const { return x_samples.size(); }
  /// Prices one; different ones may be priced at once.
  void price(std::size_t sample);
  void sample_times();
  /// The bound of a plan in seconds, once its samples are priced; 0 where none is known.
  double seconds(std::size_t plan) const;
  /// GiB that the plan takes at least: states of a mean stage, activations of the first.
  double least_gib(std::size_t plan) const;

 private:
  /// A plan's samples by number, -1 none: of its layers, and where only some are computed again, of
  /// all of them computed again.
  struct Samples {
    std::int32_t plain = -1, all = -1;
  };
  bool stands_round(Point point) const;    ///< its schedule is one that bounds are of
  bool stands_in_turn(Point point) const;  ///< it is 1F1B, interleaved or not
  const Json* value(Point point, const char* key) const;
  std::string level(Point point) const;
  Samples samples_of(Point point, bool of_memory);
  std::int32_t sample(Point point, const Json* recompute, bool of_memory);
  const std::vector<std::int64_t>* layout(const Degrees& degrees) const;
  /// Of priced samples; nothing where they are not, or no bounds are of the plan.
  std::optional<LayerTimes> times(Point point, const Samples& samples) const;
  double states_gib(Point point, const LayerTimes& known) const;

  const SearchCase& x_case;
  std::vector<Samples> x_of_memory, x_of_time;  ///< by plan
  std::map<std::string, std::int32_t> x_known;
  std::vector<Json> x_samples;  ///< RUNs
  std::vector<std::optional<LayerTimes>> x_times;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::int64_t>> x_layouts;
};

}  // namespace foretrain
