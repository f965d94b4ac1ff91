// A step's time from below, for less than it costs to lower the plan.
//
// What a layer takes of the compute stream is read off a sample: the same layers with the same
// keys, on one stage or two, a few data-parallel ranks, two microbatches. The calls of a Program
// follow each other on that stream, so a call keeps it at least from the begin of the call's first
// operation there to the end of its last, the operations of other streams between them included.
// These are taken alone, as prices give them: whatever they meet makes them no faster. Of stage s
// of p, in a schedule that does not split the backward pass, with v chunks a stage, chunk c on
// stage c mod p,
//
//     step >= microbatches * sum over its chunks (F + B) + sum over chunks c < s (F + B)
//
// since stage s begins when chunks 0 .. s - 1 have seen the first microbatch, and what follows its
// last backward pass are theirs. The host issues all of it: a step takes no less than that either.
// Where the host waits for the device in every layer, as experts without a capacity have it, no
// layer takes less than its launches. Left out, which makes it lower: messages between stages, the
// host, the update. What data-parallel ranks exchange is in exchange_bound.h.
#pragma once

#include <functional>
#include <vector>

#include "sim/base/units.h"
#include "sim/cost/cost_model.h"
#include "tools/search/space.h"

namespace foretrain {

/// Of one microbatch in one layer, at least.
struct LayerTime {
  Time forward, backward;            ///< of the compute stream
  Time host_forward, host_backward;  ///< to issue them
  Bytes saved = 0;                   ///< activations that wait for the backward pass
};

/// A kernel of the compute stream, or several of one price: what they take of one microbatch alone,
/// in seconds, at most.
struct PassKernel {
  Cost cost;
  double layer_s = 0;  ///< in a layer
  double ends_s = 0;   ///< beside the layers
};

/// The most of both.
void merge_kernels(std::vector<PassKernel>& kernels, const std::vector<PassKernel>& more);

/// Least times of one microbatch.
struct LayerTimes {
  std::vector<LayerTime> layers;
  bool host_waits = false;  ///< for the device in every forward pass of a layer: it is never ahead
  /// What no layer is: of the first stage and the last; all of it stands at the first of one stage.
  Time first_forward, first_backward, last_forward, last_backward;
  Bytes passing = 0;  ///< of activations, beside what is saved, at the peak of the first stage
  /// Of a parameter: what a rank that shares nothing keeps of it.
  double weight_bytes = 0, gradient_bytes = 0, state_bytes = 0;
  std::vector<PassKernel> kernels;   ///< all that are in it
  std::vector<double> pool_layer_s;  ///< on a cluster of pools: of the quickest layer on each
};

/// Layers before kinds repeat, and after how many they do. Where lists give the layers nothing
/// repeats.
struct Pattern {
  std::int64_t first = 0, period = 1;
  static Pattern of(const Model& model);
  std::size_t place_of(std::int64_t layer) const {
    return static_cast<std::size_t>(layer < first ? layer : first + (layer - first) % period);
  }
};

/// Stages of a sample for a plan of several: so many tell the first from the last.
std::int64_t sample_stages(const Degrees& degrees);

/// The RUN of a sample for a plan of `degrees`: `run` with few ranks and microbatches.
Json sample_of(Json run, const Degrees& degrees, const Run& seed);

/// What every work of a Program costs alone on the first rank that runs it; nothing for works that
/// no op does which `counts`.
using CountsOp = std::function<bool(const Op&, const Work&)>;
Result<std::vector<Cost>> costs_alone(const Workload& workload, std::size_t program,
                                      CostModel& model, const CountsOp& counts);

/// What of a sample's compute stream counts beside kernels.
struct Counted {
  bool exchanges = true;         ///< of tensor and context ranks
  bool expert_exchanges = true;  ///< of expert ranks
};

/// Of a sample, whose layers are cut down to one of each kind. Fails where it cannot be priced.
Result<LayerTimes> layer_times(Run sample, Counted counted);

/// Those of plans whose stages compute so many layers again, `again` being of all of them: the
/// first layers of every stage (`layout` as below).
LayerTimes with_recomputed(const LayerTimes& none, const LayerTimes& again, std::int64_t layers,
                           std::int64_t stages, const std::vector<std::int64_t>& layout);

/// What one microbatch takes of a stage's compute stream at least.
struct StageLoad {
  std::int64_t layers = 0;
  Time forward, backward;                 ///< of all chunks
  Time host;                              ///< of both
  Time first_chunk, first_chunk_forward;  ///< of the first; forward and backward, and the first
  Time last_chunk_backward;
};

/// Of layers cut into `layout`, chunk-major (`Plan::pipeline_layout`).
std::vector<StageLoad> stage_loads(const LayerTimes& times, std::int64_t stages,
                                   const std::vector<std::int64_t>& layout);

/// The bound in seconds.
double least_step_s(const std::vector<StageLoad>& loads, std::int64_t microbatches);

/// Least bytes of activations of the first stage at its first backward pass, in 1F1B or its
/// interleaved form: it has run as many forward passes as warm the pipeline up.
double least_saved_bytes(const LayerTimes& times, const Degrees& degrees,
                         const std::vector<std::int64_t>& layout);

/// Whether bounds hold of plans of the RUN: of models that are one stack of layers, in schedules
/// whose chunks stand round the stages, divided by number.
bool is_bounded(const Run& run);

}  // namespace foretrain
