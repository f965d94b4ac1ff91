// Reader of models given as a list of layers.
#pragma once

#include <string>

#include "models/architecture/network.h"
#include "sim/base/json.h"
#include "sim/base/result.h"

namespace foretrain {

/// Reads `"layers": [...]` of a model (docs/reference/networks.md) that takes images
/// of shape `image`. Refuses what does not fit: kernels larger than what they cover, branches whose
/// outputs cannot be joined, a list that does not end in one row of classes.
Result<Network> read_network(const Json& layers, const ImageShape& image, const std::string& source,
                             const std::string& pointer);

}  // namespace foretrain
