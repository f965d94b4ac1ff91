// The step of a pipeline whose every node also runs the forward pass of the stage behind its own
// (Bamboo, NSDI 2023), as far as bubbles do not hide it.
#pragma once

#include <cstdint>
#include <vector>

namespace foretrain {

/// Of one microbatch on one stage.
struct NodePasses {
  double forward_s = 0, backward_s = 0;
};

/// A step of one forward, one backward over stages of those times, transfers in no time. With
/// `redundant` a node fills the time in which it waits with forward passes of the next stage, the
/// last node with those of the first, in pieces as small as it takes; each is done before the
/// node's own backward pass of that microbatch, which waits for what is left of it.
double pipeline_step(const std::vector<NodePasses>& stages, std::int64_t microbatches,
                     bool redundant);

/// The same where the node before a stage does that stage's passes too: the worst of all stages.
double merged_step(const std::vector<NodePasses>& stages, std::int64_t microbatches);

}  // namespace foretrain
