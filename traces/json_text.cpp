#include "traces/json_text.h"

#include <algorithm>

namespace foretrain {
namespace {

/// Length of the UTF-8 character at the start of `text`, 0 if there is none (RFC 3629: no overlong
/// forms, no surrogates, at most U+10FFFF).
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool overlong = first == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = first == 0xED && byte(1) > 0x9F;
    return !overlong && !surrogate && follows(1) && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool overlong = first == 0xF0 && byte(1) < 0x90;
    const bool beyond = first == 0xF4 && byte(1) > 0x8F;
    return !overlong && !beyond && follows(1) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

void append_escaped(std::string& out, char c) {
  constexpr std::string_view kHex = "0123456789abcdef";
  if (c == '"' || c == '\\') {
    out += '\\';
    out += c;
  } else if (c == '\n') {
    out += "\\n";
  } else if (c == '\t') {
    out += "\\t";
  } else {
    const auto code = static_cast<unsigned char>(c);
    out += "\\u00";
    out += kHex[code >> 4];
    out += kHex[code & 15];
  }
}

/// Whether a byte is a character that stands for itself.
bool is_plain(char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; }

}  // namespace

void append_millionths(std::string& out, std::int64_t value) {
  constexpr std::uint64_t kOne = 1'000'000;
  char text[32];
  char* end = text;
  // Negated as unsigned, because the lowest int64 has no positive counterpart.
  auto rest = static_cast<std::uint64_t>(value);
  if (value < 0) {
    *end++ = '-';
    rest = 0 - rest;
  }
  end = std::to_chars(end, text + sizeof text, rest / kOne).ptr;
  auto fraction = static_cast<std::uint32_t>(rest % kOne);
  if (fraction != 0) {
    *end = '.';
    for (int i = 6; i > 0; --i) {
      end[i] = static_cast<char>('0' + fraction % 10);
      fraction /= 10;
    }
    end += 7;
    while (end[-1] == '0') --end;
  }
  out.append(text, static_cast<std::size_t>(end - text));
}

void append_string(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    const auto plain = static_cast<std::size_t>(
        std::find_if_not(text.begin(), text.end(), is_plain) - text.begin());
    out.append(text.substr(0, plain));
    text.remove_prefix(plain);
    if (text.empty()) break;
    const std::size_t length = character_length(text);
    const char c = text.front();
    if (length == 0) {
      out += "\\ufffd";
    } else if (length == 1 && (c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20)) {
      append_escaped(out, c);
    } else {
      out.append(text.substr(0, length));
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  out += '"';
}

}  // namespace foretrain
