// Passes of their own for the gradients of weights.
//
// With sharded units a backward pass lets parameters go as any other does, and what it wrote of a
// unit's gradients, those of norms and biases, waits with the microbatch until its pass for weights
// has written the rest: then the unit is reduced.
#include <algorithm>

#include "models/emit/tasks.h"
#include "sim/base/check.h"

namespace foretrain {
namespace {

bool refers(const Segment& segment, std::size_t formal) {
  const auto of_frame = [formal](const View& v) { return v.frame == static_cast<int>(formal); };
  return std::any_of(segment.ops.begin(), segment.ops.end(), [&](const Op& op) {
    return std::any_of(op.reads.begin(), op.reads.end(), of_frame) ||
           std::any_of(op.writes.begin(), op.writes.end(), of_frame);
  });
}

}  // namespace

/// The call of a backward pass, for its gradients of weights, which come later. Parameters of units
/// that it does not read are not held until then.
Call for_weights(Stage& stage, Call call, SegmentId segment) {
  call.segment = segment;
  if (!by_units(stage)) return call;
  const Segment& s = stage.builder.program().segments[segment.index()];
  std::vector<std::size_t> weights = {kWeights, kShared};
  for (std::size_t f = 0; f < s.frames.size(); ++f) {
    const bool owner =
        std::any_of(stage.holds.shapes.begin(), stage.holds.shapes.end(),
                    [&](const ShardLayout& shape) { return shape.weights == s.frames[f]; });
    const bool experts = std::any_of(stage.holds.kinds.begin(), stage.holds.kinds.end(),
                                     [&](const LayerLayouts& kind) {
                                       return kind.experts.valid() && kind.experts == s.frames[f];
                                     });
    if (owner || experts) weights.push_back(f);
  }
  for (const std::size_t f : weights) {
    if (refers(s, f)) return call;
  }
  for (const std::size_t f : weights) call.frames[f] = FrameId();
  return call;
}

}  // namespace foretrain
