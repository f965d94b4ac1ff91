// JSON read token by token, for documents that are too large to hold as values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "traces/byte_stream.h"

namespace foretrain {

enum class JsonToken : std::uint8_t {
  kObject,
  kObjectEnd,
  kArray,
  kArrayEnd,
  kKey,
  kString,
  kNumber,
  kWord,   ///< true, false, null
  kEnd,    ///< of the document
  kFault,  ///< `error()` says which
};

/// Reads what profilers write, which is not always JSON: NaN and inf are numbers, a backslash
/// before any letter is that letter, control characters may stand in strings. Everything else is
/// strict. At most 64 levels; strings and numbers of at most 16 MiB.
class JsonStream {
 public:
  explicit JsonStream(ByteStream& bytes) : x_bytes(bytes) {}

  JsonToken next();
  /// Of a key, a string or a number, as it is written; valid until the next token.
  const std::string& text() const { return x_text; }
  /// Reads over the value that `first` has begun. Returns false at a fault.
  bool skip(JsonToken first);
  /// Bytes read so far, decompressed.
  std::uint64_t position() const { return x_before + x_at; }
  /// What is wrong, with the file and the byte.
  const Error& error() const { return x_error; }
  /// Records a fault of the content at this place.
  JsonToken fault(const std::string& what);

 private:
  enum class Expects : std::uint8_t { kValue, kFirst, kComma, kColon, kEnd };

  bool refill();
  int peek();
  int space();
  JsonToken ended();
  JsonToken element(int c);
  JsonToken value(int c);
  JsonToken open(char closing, JsonToken token);
  JsonToken close(char closing);
  JsonToken quoted(JsonToken token);
  bool escape();
  bool hex(unsigned& code);
  JsonToken word();

  ByteStream& x_bytes;
  std::string_view x_chunk;
  std::size_t x_at = 0;
  std::uint64_t x_before = 0;  ///< bytes of the chunks before this one
  std::string x_text;
  std::vector<char> x_open;  ///< what closes each level
  Expects x_expects = Expects::kValue;
  Error x_error;
};

}  // namespace foretrain
