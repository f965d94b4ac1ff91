// Pipelines of different depth that share the nodes and the batch of a job (Jang et al., Oobleck,
// SOSP 2023).
#pragma once

#include <cstdint>
#include <vector>

namespace foretrain {

/// A pipeline of so many nodes, and the time of a step over the microbatches that it has in it, s.
struct PipelineTemplate {
  std::int64_t nodes = 1;
  double microbatch_s = 1;
};

struct TemplateMix {
  std::vector<std::int64_t> pipelines;  ///< of every template
  std::int64_t count = 0;               ///< of all
  double step_s = 0;
};

/// The fastest mixes of a job without 0, 1, 2, ... of its nodes, up to `most_missing` or to where
/// `fewest` pipelines need more nodes. Nodes may be left idle. A mix has the highest sum of speeds
/// 1 / microbatch_s; its pipelines share the microbatches in proportion of speed, in whole ones,
/// and the last one to end sets the step.
std::vector<TemplateMix> template_mixes(const std::vector<PipelineTemplate>& templates,
                                        std::int64_t nodes, std::int64_t microbatches,
                                        std::int64_t fewest, std::int64_t most_missing);

}  // namespace foretrain
