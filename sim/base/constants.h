// Constants of ours: files of `configs/` that no user writes, read once.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/base/json.h"

namespace foretrain {

/// An embedded file of constants of ours; aborts if it is missing or no JSON.
Json load_constants(std::string_view path);

/// A member of such a file; aborts if absent.
const Json& member(const Json& object, std::string_view key);
double number_at(const Json& object, std::string_view key);
std::int32_t count_at(const Json& object, std::string_view key);
std::vector<double> numbers_at(const Json& object, std::string_view key);

}  // namespace foretrain
