// Bounds of a case's plans, and the samples that they are made of.
//
// A sample is priced when the first plan needs it, once for all plans that share it: plans that are
// never looked at cost no sample. A plan's first bound comes from a sample of its degrees alone.
//
// Of a cluster of pools a sample is priced on each. Let stage s take t_s for a layer of one of m
// microbatches. However L layers are divided, x_s of them to stage s, a step of T has, with one
// chunk a stage, T >= m x_s t_s + sum over j < s (x_j t_j) for every s. For all y_s >= 0 with
// m t_s y_s + t_s sum over j > s (y_j) >= 1 it follows that
//
//     T >= L / sum over s (y_s)
//
// (weigh the inequalities by y_s and add them up). The least such y are found from the last stage
// back. With several chunks a stage the sum over j < s counts as nothing.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hardware/pools/pools.h"
#include "tools/search/bounds/exchange_bound.h"
#include "tools/search/bounds/step_bound.h"
#include "tools/search/search_case.h"

namespace foretrain {

/// A question about a plan: each needs samples of its own.
enum class Ask : std::uint8_t {
  kFirst,   ///< seconds, from its degrees alone
  kMemory,  ///< GiB, from a microbatch of one sequence
  kTime,    ///< seconds, from all of its keys and what data-parallel ranks exchange
};

/// A sample to be priced.
struct SampleRequest {
  Json run;
  Ask ask = Ask::kTime;
  bool exchange = false;  ///< of what ranks exchange, else of layers
};
/// What a sample gave; nothing where it cannot be priced.
struct SampleAnswer {
  std::optional<LayerTimes> layers;
  std::optional<ExchangeTimes> times;
  std::vector<PassKernel> kernels;  ///< of the layers
};
/// Prices a sample of a case. Thread-safe.
SampleAnswer answer_of(const SearchCase& of, const SampleRequest& sample);

class CaseBounds {
 public:
  explicit CaseBounds(const SearchCase& of);

  /// Samples that an answer needs and that are not priced yet, by number.
  std::vector<std::size_t> lacking(std::size_t plan, Ask ask);
  /// Takes a sample that is to be priced: once.
  SampleRequest request(std::size_t sample);
  void learn(std::size_t sample, SampleAnswer answer);

  /// Whether its times are below a plan's step: its schedule is one that bounds are of. Those of
  /// other schedules only tell which plans promise most.
  bool bounds(std::size_t plan) const;
  /// A plan's time in seconds; 0 where none is known.
  double first_seconds(std::size_t plan);
  double seconds(std::size_t plan);
  /// What the layers that are computed again add to the first, beyond the half that is in it.
  double again_seconds(std::size_t plan);
  /// GiB that the plan takes at least: states of a mean stage, activations of the first.
  double least_gib(std::size_t plan);

 private:
  struct Sample {
    SampleRequest request;
    SampleAnswer answer;
    bool priced = false;
  };
  /// A plan's samples by number, -1 none: of its layers, where only some are computed again of all
  /// of them computed again, and of what its ranks exchange.
  struct Samples {
    std::int64_t plain = -1, all = -1, exchange = -1;
  };
  Samples samples_of(std::size_t plan, Ask ask);
  std::int64_t sample(Point point, Ask ask, const Json* recompute);
  std::int64_t exchange_sample(Point point);
  std::int64_t keep(std::string key, Ask ask, bool exchange, Json run);

  bool stands_in_turn(Point point) const;  ///< 1F1B, interleaved or not
  const Json* value(Point point, const char* key) const;
  const std::vector<std::int64_t>& layout(const Degrees& degrees);
  /// Of priced samples; nothing where they are not, or no bounds are of the plan.
  std::optional<LayerTimes> times(Point point, const Samples& samples);
  /// The kernels of a plan's layers beside what its ranks exchange.
  const std::vector<ExchangeKernel>& kernels(const Samples& samples);
  double states_gib(Point point, const LayerTimes& known) const;

  const SearchCase& x_case;
  std::optional<Pools> x_pools;  ///< of a cluster of pools
  bool x_known = false, x_exchange_known = false;
  std::deque<Sample> x_samples;
  std::unordered_map<std::string, std::int64_t> x_by_key;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::int64_t>> x_layouts;
  std::map<std::array<std::int64_t, 3>, std::vector<ExchangeKernel>> x_kernels;  ///< by samples
  /// The last answer of `first_seconds`: plans of one sample follow each other.
  struct First {
    Degrees degrees;
    std::int64_t sample = -2, again = 0;
    double seconds = 0;
    double rest = 0;  ///< of what is computed again
  } x_first;
  const First& first_of(Point point);
};

}  // namespace foretrain
