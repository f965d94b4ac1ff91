// What data-parallel ranks exchange in a step, from below.
//
// A stage of L layers that sees m microbatches exchanges on each stream for
//
//     a + b L + m (c + d L)
//
// seconds. Four samples of the plan's own ranks, of few layers and microbatches, give a, b, c, d.
// A collective takes the less time a byte the larger it is, so each is priced as a part of a large
// one: buckets of any size take no less. Kernels beside it lose time (sharing_bound.h). Left
// out, which makes it lower: other traffic on the same links.
#pragma once

#include <map>

#include "tools/search/bounds/sharing_bound.h"
#include "tools/search/bounds/step_bound.h"

namespace foretrain {

/// a + b L + m (c + d L), in seconds.
struct ExchangeLine {
  double fixed = 0, of_layer = 0, of_microbatch = 0, of_both = 0;
  double seconds(double layers, double microbatches) const {
    return fixed + of_layer * layers + microbatches * (of_microbatch + of_both * layers);
  }
  /// Of a stage without the model's ends.
  ExchangeLine of_layers_alone() const { return {0, of_layer, 0, of_both}; }
};

/// Of one stage, by stream; the ports that streams share are -1, -2, ...
struct StageExchange {
  std::map<std::int16_t, ExchangeLine> gathers, reductions;
  std::map<std::int16_t, ExchangeLine> holding;  ///< of both what holds SMs or memory bandwidth
};

struct ExchangeTimes {
  StageExchange first, last;   ///< stages, the same of one
  std::int64_t uncounted = 0;  ///< layers that are of another kind, at most so many of a stage
  /// Whether passes run on while gradients are reduced, and while parameters are gathered.
  bool hides_reductions = true, hides_gathers = true;
  Cost hold;         ///< what each of them holds at least of SMs and memory bandwidth
  int sm_count = 1;  ///< of a device
};

/// Kernels of one microbatch beside what ranks exchange, those first that lose least.
struct ExchangeKernel {
  double loss = 0;                 ///< share of progress
  double layer_s = 0, ends_s = 0;  ///< alone, in a layer and beside the layers
};
std::vector<ExchangeKernel> kernels_beside(const std::vector<PassKernel>& kernels,
                                           const ExchangeTimes& exchange);

/// The RUN of a sample for a plan of `degrees`: `run` with as many ranks for each stage.
Json exchange_sample_of(Json run, const Degrees& degrees, const Run& seed);

/// Of a sample, whose layers are cut down to few. Fails where it cannot be priced, or where no two
/// layers are alike.
Result<ExchangeTimes> exchange_times(const Run& sample);

/// The bound in seconds of a step, with what the ranks exchange. Of stage s, with the gradients'
/// reductions R and the parameters' gathers G:
///
///     step >= what it exchanges on any one stream, or through any one port
///     step >= fill + microbatches F + (microbatches - 1) B + R   where R is once a step: no
///     gradient
///                                                               is whole before
///     step >= compute + what it exchanges on the compute stream + G and R where nothing hides them
///     step >= fill + compute + R                                where nothing hides R
///     step >= whole fill + compute + what kernels lose to all of it but a whole fill
///
/// fill being the forward passes of the stages before, the whole fill their backward passes too.
double least_step_s(const std::vector<StageLoad>& loads, std::int64_t microbatches,
                    const ExchangeTimes& exchange, const std::vector<ExchangeKernel>& kernels);

}  // namespace foretrain
