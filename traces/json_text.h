// JSON text appended to a string, for writers whose output is too large to hold as values.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace foretrain {

inline void append_number(std::string& out, std::int64_t value) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  out.append(digits, static_cast<std::size_t>(end - digits));
}

/// The shortest text that reads back as the same finite double.
inline void append_number(std::string& out, double value) {
  char digits[40];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  out.append(digits, static_cast<std::size_t>(end - digits));
}

/// `value` millionths, exactly: 1500000 -> "1.5". Picoseconds become microseconds by it.
void append_millionths(std::string& out, std::int64_t value);

/// A quoted string. Bytes that are not UTF-8 become U+FFFD, so that the document stays valid.
void append_string(std::string& out, std::string_view text);

}  // namespace foretrain
