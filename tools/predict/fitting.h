// What would make a run fit: a small search over the fields of its plan that trade time for memory.
//
// Recomputation, more sharding, smaller microbatches, more tensor, pipeline or context ranks,
// offloading to the host and, where it has too little memory, to storage: of each kind the mildest
// change that fits, of layers as few as do, then, if fewer than three kinds have one, all pairs of
// different kinds, as long as the replays stay under a number of operations. What adds to a change
// that fits and makes it no faster is not told. What takes more than three times as long as the
// step would is left out if anything faster fits. Every change is resolved, lowered and, if it
// fits, replayed like a RUN of the user's; those that a plan refuses are dropped, those that the
// RUN's system has nothing for are not tried. The bound counts operations, not seconds: the same
// RUN has the same answer on every machine. Left out: three changes at once, schedules, and what
// changes the training itself (batch, precision, optimizer).
#pragma once

#include "tools/predict/predict.h"

namespace foretrain {

/// `prediction` is that of `run`, which does not fit.
/// Of `bounds` the seconds are for all of it, the prediction too.
Fitting find_fitting(const Run& run, const Prediction& prediction,
                     const SimulationBounds& bounds = {});

/// What would make a run that fits faster and still fit, by at least 2 %: exchanges beside
/// products, less recomputation, less tensor, pipeline, context or shards, larger microbatches, one
/// change at a time, as many kinds as the bound of operations lets be tried; the three that gain
/// most. Left out: two changes at once, which a search is for, and what changes the training.
Fitting find_faster(const Run& run, const Prediction& prediction,
                    const SimulationBounds& bounds = {});

/// The same as `find_fitting` among what a report of a run often leaves out, one change at a time:
/// layers that are computed again, activations kept on the host; nothing that takes three times as
/// long. `most_memory`: of the capacity.
Fitting find_unsaid(const Run& run, const Prediction& prediction, double most_memory);

}  // namespace foretrain
