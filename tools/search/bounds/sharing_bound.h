// What communication costs the kernels beside it, from below.
//
// An operation that communicates for d seconds holds SMs and memory bandwidth for as long. At every
// moment of that the compute stream runs a kernel k, which loses the share
//
//     loss(k) = 1 - duration / duration beside the hold
//
// of its progress, or it runs none and loses all of it. A kernel that takes a seconds alone is
// beside the hold for at most a / (1 - loss(k)). So the compute stream takes, besides its kernels
// alone, at least the cost of d seconds that are laid beside the kernels which lose least, and the
// rest of d. Operations of one stream follow each other: their costs add up.
#pragma once

#include <vector>

#include "sim/cost/cost_model.h"

namespace foretrain {

/// Kernels of the compute stream beside which something communicates.
struct KernelsBeside {
  double alone_s = 0;  ///< what they take alone, in seconds
  double loss = 0;     ///< the share of their progress that is lost, 0 .. 1
};

/// Of a kernel beside an operation that holds as much or more; 0 for what holds itself. What was
/// measured need not rise with the SMs that are held.
double lost_share(const Cost& kernel, const Cost& hold, int sm_count);

/// Sorts them for `least_loss_s`.
void sort_by_loss(std::vector<KernelsBeside>& kernels);

/// Seconds that are lost at least when something communicates for `held_s` seconds.
double least_loss_s(const std::vector<KernelsBeside>& kernels, double held_s);

/// What operations of one stream cost the compute stream at least.
struct Lost {
  Time lost;
  Time held;  ///< by those operations
};

/// Of a segment: of the operations beside its compute stream 0 that must run between two of that
/// stream's, those of the stream whose cost is highest. `alone` is by work, `takes` by op: whether
/// its time counts.
Lost least_loss(const Segment& segment, const std::vector<Cost>& alone,
                const std::vector<bool>& takes, int sm_count);

}  // namespace foretrain
