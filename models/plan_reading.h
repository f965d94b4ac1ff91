// What the readers of a plan share.
#pragma once

#include <cstdint>
#include <string>

#include "sim/base/json.h"

namespace foretrain {

/// Of anything that is counted.
inline constexpr JsonReader::IntRange kAnyCount{1, 1'000'000'000};

inline std::string text(std::int64_t value) { return std::to_string(value); }

}  // namespace foretrain
