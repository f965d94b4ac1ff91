// Keys that a RUN sets without an effect.
#pragma once

#include <string>
#include <vector>

#include "models/plan/keys/keys.h"
#include "tools/predict/run_file.h"

namespace foretrain {

/// What the effect of a run's keys depends on.
KeyContext context_of(const Run& run);

/// A line for each key of the RUN or of --set that changes nothing beside the others, such as
/// "/sharding/persist_elements has no effect: sharding.level is not parameters". What a system sets
/// is not named, nor a default that asks for nothing (0, false, null, none).
std::vector<std::string> idle_keys(const Run& run);

}  // namespace foretrain
