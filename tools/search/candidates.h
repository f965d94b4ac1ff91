// The values that a search tries of each key.
#pragma once

#include <string>
#include <vector>

#include "tools/search/space.h"

namespace foretrain {

/// Keys that a search may change, the degrees apart, in the order of their dimensions.
const std::vector<std::string>& searched_keys();

/// Whether a search changes the key only where it is asked to: by --over or --free, or, of types,
/// by --allow-numerics (`numerics`).
bool is_asked_for_only(const std::string& key, bool numerics);

/// Values of a key that are worth a try with the model, the cluster and the system of `seed`; none
/// where nothing is known of the key.
std::vector<Json> candidates(const Run& seed, const std::string& key);

/// Layers of a stage that are computed again, of a value of `recompute`; 0: all, or no layers.
std::int64_t layers_again(const Json* recompute);

/// Whether the system has no such value.
bool is_lacked(const Run& seed, const std::string& key, const Json& value);

/// Whether a value may go with the degrees before it in `Degrees`' order, the later ones being 1.
bool may_be(const std::string& key, const Json& value, const Degrees& degrees, const Run& seed);

}  // namespace foretrain
