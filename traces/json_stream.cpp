#include "traces/json_stream.h"

#include <cstdlib>

namespace foretrain {
namespace {

constexpr std::size_t kMostLevels = 64;
constexpr std::size_t kLongestText = std::size_t{1} << 24;
constexpr int kNothing = -1;

std::string shown(int c) {
  if (c == kNothing) return "the end of the file";
  if (c < 0x20 || c > 0x7e) return "byte " + std::to_string(c);
  return std::string("'") + static_cast<char>(c) + "'";
}

bool in_number(int c) {
  return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}
bool letter(int c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

void append_utf8(std::string& out, unsigned code) {
  const auto put = [&out](unsigned byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

}  // namespace

JsonToken JsonStream::fault(const std::string& what) {
  if (x_error.message.empty()) {
    x_error = input_error(x_bytes.path() + ": byte " + std::to_string(position()) + ": " + what);
  }
  return JsonToken::kFault;
}

bool JsonStream::refill() {
  if (!x_error.message.empty()) return false;
  x_before += x_chunk.size();
  x_at = 0;
  Result<std::string_view> chunk = x_bytes.next();
  x_chunk = chunk.ok() ? chunk.value() : std::string_view();
  if (!chunk.ok()) x_error = chunk.error();
  return !x_chunk.empty();
}

int JsonStream::peek() {
  if (x_at >= x_chunk.size() && !refill()) return kNothing;
  return static_cast<unsigned char>(x_chunk[x_at]);
}

int JsonStream::space() {
  for (;;) {
    const int c = peek();
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return c;
    ++x_at;
  }
}

/// The file ended before its document did.
JsonToken JsonStream::ended() {
  return fault("the file ends here, " + std::to_string(x_open.size()) +
               " brackets open: it was cut off, or is still being written");
}

JsonToken JsonStream::next() {
  const int c = space();
  if (!x_error.message.empty()) return JsonToken::kFault;
  if (x_expects == Expects::kEnd) {
    return c == kNothing ? JsonToken::kEnd
                         : fault("found " + shown(c) + " after the end of the document");
  }
  if (c == kNothing) {
    return x_open.empty() ? fault("the file is empty, expected JSON") : ended();
  }
  if (x_expects == Expects::kColon) {
    if (c != ':') return fault("found " + shown(c) + ", expected ':'");
    ++x_at;
    return value(space());
  }
  return x_expects == Expects::kValue ? value(c) : element(c);
}

/// What stands in an object or a list from `c` on: its end, or the next key or value.
JsonToken JsonStream::element(int c) {
  if (c == x_open.back()) return close(static_cast<char>(c));
  if (x_expects == Expects::kComma) {
    if (c != ',') return fault("found " + shown(c) + ", expected ',' or '" + x_open.back() + "'");
    ++x_at;
  }
  const int begin = space();
  if (begin == kNothing) return ended();
  if (x_open.back() == ']') return value(begin);
  if (begin != '"') return fault("found " + shown(begin) + ", expected a key");
  const JsonToken key = quoted(JsonToken::kKey);
  if (key == JsonToken::kKey) x_expects = Expects::kColon;
  return key;
}

JsonToken JsonStream::value(int c) {
  if (c == kNothing) return ended();
  x_expects = x_open.empty() ? Expects::kEnd : Expects::kComma;
  if (c == '{') return open('}', JsonToken::kObject);
  if (c == '[') return open(']', JsonToken::kArray);
  if (c == '"') return quoted(JsonToken::kString);
  if (in_number(c) || letter(c)) return word();
  return fault("found " + shown(c) + ", expected a value");
}

JsonToken JsonStream::open(char closing, JsonToken token) {
  if (x_open.size() >= kMostLevels) {
    return fault("more than " + std::to_string(kMostLevels) + " levels of nesting");
  }
  ++x_at;
  x_open.push_back(closing);
  x_expects = Expects::kFirst;
  return token;
}

JsonToken JsonStream::close(char closing) {
  ++x_at;
  x_open.pop_back();
  x_expects = x_open.empty() ? Expects::kEnd : Expects::kComma;
  return closing == '}' ? JsonToken::kObjectEnd : JsonToken::kArrayEnd;
}

JsonToken JsonStream::quoted(JsonToken token) {
  ++x_at;
  x_text.clear();
  for (;;) {
    if (x_at >= x_chunk.size() && !refill()) return ended();
    std::size_t end = x_at;
    while (end < x_chunk.size() && x_chunk[end] != '"' && x_chunk[end] != '\\') ++end;
    if (x_text.size() + (end - x_at) > kLongestText) return fault("a text of more than 16 MiB");
    x_text.append(x_chunk.substr(x_at, end - x_at));
    x_at = end;
    if (end == x_chunk.size()) continue;
    ++x_at;
    if (x_chunk[end] == '"') return token;
    if (!escape()) return ended();
  }
}

bool JsonStream::escape() {
  const int c = peek();
  if (c == kNothing) return false;
  ++x_at;
  constexpr std::string_view kLetters = "nrtbf";
  constexpr std::string_view kMeant = "\n\r\t\b\f";
  if (c != 'u') {
    const std::size_t which = kLetters.find(static_cast<char>(c));
    x_text += which == std::string_view::npos ? static_cast<char>(c) : kMeant[which];
    return true;
  }
  unsigned code = 0;
  if (!hex(code)) return false;
  constexpr unsigned kHigh = 0xD800, kLow = 0xDC00, kAfter = 0xE000, kReplacement = 0xFFFD;
  // Halves of a pair are put together where both are there; one alone is no character.
  if (code >= kHigh && code < kLow && peek() == '\\') {
    ++x_at;
    if (peek() != 'u') return escape();
    ++x_at;
    unsigned low = 0;
    if (!hex(low)) return false;
    const bool pair = low >= kLow && low < kAfter;
    code = pair ? 0x10000 + ((code - kHigh) << 10) + (low - kLow) : kReplacement;
  }
  append_utf8(x_text, code >= kHigh && code < kAfter ? kReplacement : code);
  return true;
}

bool JsonStream::hex(unsigned& code) {
  for (int i = 0; i < 4; ++i) {
    const int c = peek();
    if (c == kNothing) return false;
    const char digit[2] = {static_cast<char>(c), 0};
    char* end = nullptr;
    const auto value = static_cast<unsigned>(std::strtoul(digit, &end, 16));
    if (*end != 0) return true;  // no digit: what was read so far stands
    code = code * 16 + value;
    ++x_at;
  }
  return true;
}

JsonToken JsonStream::word() {
  x_text.clear();
  for (int c = peek(); in_number(c) || letter(c); c = peek()) {
    if (x_text.size() >= kLongestText) return fault("a number of more than 16 MiB");
    x_text += static_cast<char>(c);
    ++x_at;
  }
  if (!x_error.message.empty()) return JsonToken::kFault;
  if (x_text == "true" || x_text == "false" || x_text == "null") return JsonToken::kWord;
  char* end = nullptr;
  std::strtod(x_text.c_str(), &end);  // reads inf, Infinity and NaN too
  if (*end == 0) return JsonToken::kNumber;
  return fault("found " + x_text.substr(0, 40) + ", expected a value");
}

bool JsonStream::skip(JsonToken first) {
  if (first == JsonToken::kFault) return false;
  if (first != JsonToken::kObject && first != JsonToken::kArray) return true;
  const std::size_t level = x_open.size();
  for (;;) {
    const JsonToken token = next();
    if (token == JsonToken::kFault || token == JsonToken::kEnd) return false;
    const bool closes = token == JsonToken::kObjectEnd || token == JsonToken::kArrayEnd;
    if (closes && x_open.size() < level) return true;
  }
}

}  // namespace foretrain
