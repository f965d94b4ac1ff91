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
// last backward pass are theirs. Left out, which makes it lower: the data-parallel ranks'
// communication, messages between stages, the host, the update.
#pragma once

#include <map>
#include <vector>

#include "sim/base/units.h"
#include "tools/search/space.h"

namespace foretrain {

/// Least times of the compute stream for one microbatch.
struct LayerTimes {
  std::vector<Time> forward, backward;  ///< by layer
  /// What no layer is: of the first stage and the last; all of it stands at the first of one stage.
  Time first_forward, first_backward, last_forward, last_backward;
  std::vector<Bytes> saved;  ///< by layer: activations that wait for the backward pass
  /// Of a parameter: what a rank that shares nothing keeps of it.
  double weight_bytes = 0, gradient_bytes = 0, state_bytes = 0;
};

/// The RUN of a sample for a plan of `degrees`: `run` with few ranks and microbatches.
Json sample_of(Json run, const Degrees& degrees, const Run& seed);

/// Of a sample, whose layers are cut down to one of each kind. Fails where it cannot be priced.
Result<LayerTimes> layer_times(Run sample);

/// Those of plans whose stages compute so many layers again, `again` being of all of them: the
/// first layers of every stage (`layout` as below).
LayerTimes with_recomputed(const LayerTimes& none, const LayerTimes& again, std::int64_t layers,
                           std::int64_t stages, const std::vector<std::int64_t>& layout);

/// The bound in seconds for layers cut into `layout`, chunk-major (`Plan::pipeline_layout`).
double least_step_s(const LayerTimes& times, const Degrees& degrees,
                    const std::vector<std::int64_t>& layout);

/// Least bytes of activations of the first stage at the begin of its first backward pass, in 1F1B
/// or its interleaved form: it has run as many forward passes as warm the pipeline up.
double least_saved_bytes(const LayerTimes& times, const Degrees& degrees,
                         const std::vector<std::int64_t>& layout);

/// Whether bounds hold of plans of the RUN: of models that are one stack of layers, in schedules
/// whose chunks stand round the stages, divided by number.
bool is_bounded(const Run& run);

}  // namespace foretrain
