// A block of a network as segments: forward, and backward in reverse order.
//
// Every activation has a buffer; those that a backward pass reads are kept. The gradient of what
// several nodes read is summed as autograd does, an addition for each reader but the first; a sum
// passes its gradient on without a copy. `kernels.fusion`: eager code runs every node as a kernel
// of its own; else biases and a relu behind a normalisation, a convolution or a sum go with it.
//
// Left out: running statistics and their broadcast, layouts and their transposes, what in-place
// kernels save (one buffer at a time). Branches run one after another.
#pragma once

#include "models/layers/ends.h"
#include "models/layers/layer.h"

namespace foretrain {

/// Formal frames of a block with a loss after those of a layer.
inline constexpr std::int16_t kBlockInputs = kLayerFrames;
inline constexpr std::int16_t kBlockScalars = kLayerFrames + 1;

/// `layouts.hidden` and `layouts.output` are those of the block's input and output; `inputs` and
/// `scalars` of the step's labels and loss.
LayerSegments write_block(ProgramBuilder& builder, const NetworkBlock& block, const Plan& plan,
                          const LayerLayouts& layouts, LayoutId inputs, LayoutId scalars);

}  // namespace foretrain
