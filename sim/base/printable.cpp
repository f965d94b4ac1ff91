#include "sim/base/printable.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>

namespace foretrain {
namespace {

/// A character of UTF-8: its number and how many bytes it has; 0 bytes: not UTF-8.
struct Character {
  std::uint32_t number = 0;
  std::size_t bytes = 0;
};

Character character_at(std::string_view text) {
  const auto byte = [text](std::size_t i) {
    return std::uint32_t{static_cast<unsigned char>(text[i])};
  };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  const std::size_t bytes = first >= 0xf0 && first < 0xf5   ? 4
                            : first >= 0xe0 && first < 0xf0 ? 3
                            : first >= 0xc2 && first < 0xe0 ? 2
                                                            : 0;
  if (bytes == 0 || text.size() < bytes) return {first, 0};
  std::uint32_t number = first & (0xffU >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return {first, 0};
    number = number << 6U | (byte(i) & 0x3fU);
  }
  constexpr std::array<std::uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = number >= 0xd800 && number < 0xe000;
  if (number < kLeast.at(bytes) || number > 0x10ffff || surrogate) return {first, 0};
  return {number, bytes};
}

/// Does a terminal obey it, or turn what stands around it?
bool is_obeyed(std::uint32_t c) {
  const bool control = c < 0x20 || (c >= 0x7f && c < 0xa0);
  const bool direction = c == 0x061c || c == 0x200e || c == 0x200f ||
                         (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
  const bool line = c == 0x2028 || c == 0x2029;
  return control || direction || line;
}

std::string written(const char* format, std::uint32_t number) {
  std::array<char, 16> out{};
  std::snprintf(out.data(), out.size(), format, number);
  return out.data();
}

std::string escaped(std::uint32_t c) {
  if (c == '\n') return "\\n";
  if (c == '\t') return "\\t";
  if (c == '\r') return "\\r";
  return c < 0x80 ? written("\\x%02x", c) : written("\\u%04x", c);
}

std::string made_printable(std::string_view text, bool lines) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character c = character_at(text);
    if (c.bytes == 0) {
      out += written("\\x%02x", c.number);
    } else if (is_obeyed(c.number) && !(lines && c.number == '\n')) {
      out += escaped(c.number);
    } else {
      out += text.substr(0, c.bytes);
    }
    text.remove_prefix(c.bytes == 0 ? 1 : c.bytes);
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) { return made_printable(text, true); }

std::string printable_line(std::string_view text) { return made_printable(text, false); }

std::string shortened(std::string_view text, std::size_t most) {
  if (text.size() <= most) return printable_line(text);
  std::size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80) --end;
  return printable_line(text.substr(0, end)) + "... (" + std::to_string(text.size() - end) +
         " more bytes)";
}

namespace {

/// Characters of UTF-8: bytes that begin one.
std::size_t characters_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0U) != 0x80;
  }));
}

/// Without the spaces at its end.
std::string_view stripped(std::string_view text) {
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

void fold_line(std::string_view line, std::size_t width, std::string& out) {
  constexpr std::size_t kDeeper = 4;
  const std::size_t first = std::min(line.find_first_not_of(' '), line.size());
  std::string indent(std::min(first + kDeeper, width / 2), ' ');
  bool broken = false;
  while (characters_of(stripped(line)) + (broken ? indent.size() : 0) > width) {
    const std::size_t room = width - (broken ? indent.size() : 0);
    // The last space behind the line's own that leaves no more than there is room for, else the
    // first.
    std::size_t at = std::string_view::npos;
    for (std::size_t space = line.find(' ', broken ? 0 : first); space != std::string_view::npos;
         space = line.find(' ', space + 1)) {
      if (at != std::string_view::npos && characters_of(line.substr(0, space)) > room) break;
      at = space;
    }
    if (at == std::string_view::npos) break;
    if (broken) out += indent;
    out += stripped(line.substr(0, at));
    out += '\n';
    line.remove_prefix(std::min(line.find_first_not_of(' ', at), line.size()));
    broken = true;
  }
  if (broken) out += indent;
  out += stripped(line);
}

}  // namespace

std::string folded(std::string_view text, std::size_t width) {
  std::string out;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    fold_line(text.substr(at, end - at), std::max<std::size_t>(width, 1), out);
    if (end < text.size()) out += '\n';
    at = end + 1;
  }
  return out;
}

void warn(std::string_view text) {
  constexpr std::size_t kLongest = 4000;
  std::fprintf(stderr, "foretrain: %s\n", shortened(text, kLongest).c_str());
}

std::string csv_cell(std::string_view text) {
  std::string out = "\"";
  if (!text.empty() && std::string_view("=+-@\t\r").find(text.front()) != std::string_view::npos) {
    out += '\'';
  }
  for (const char c : printable_line(text)) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

std::string printable_json(std::string text) {
  std::string out;
  std::size_t from = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x7f) continue;
    const Character c = character_at(std::string_view(text).substr(i));
    if (c.bytes == 0 || !is_obeyed(c.number)) continue;
    out.append(text, from, i - from);
    out += written("\\u%04x", c.number);
    i += c.bytes - 1;
    from = i + 1;
  }
  if (from == 0) return text;
  return out.append(text, from, std::string::npos);
}

}  // namespace foretrain
