// The integer arithmetic of $((...)).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace foretrain {

/// The value of a name, where it is a whole number.
using ShellNumbers = std::function<std::optional<std::int64_t>(const std::string&)>;

/// + - * / % ** and comparisons of whole numbers and names, with brackets; nothing where that is
/// not what stands there, where a name has no number, and where a result leaves 64 bits.
std::optional<std::int64_t> shell_arithmetic(std::string_view text, const ShellNumbers& numbers);

}  // namespace foretrain
