// A layer whose parts one device computes one after the other: see co_shard.cpp.
#pragma once

#include "models/layers/layer.h"

namespace foretrain {

/// Writes the segments of a layer in `plan.recompute.parts` parts. Heads, key-value heads and the
/// MLP's width of a tensor rank are multiples of it; no experts, latent attention or grids.
LayerSegments write_co_shard(ProgramBuilder& builder, const Model& model, const Plan& plan,
                             const LayerLayouts& layouts);

}  // namespace foretrain
