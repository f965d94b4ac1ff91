// What the readers of a plan share.
#pragma once

#include <cstdint>
#include <string>

namespace foretrain {

inline std::string text(std::int64_t value) { return std::to_string(value); }

}  // namespace foretrain
