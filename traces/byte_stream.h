// The bytes of a file in pieces, gzip undone, for files that are too large to hold.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "sim/base/result.h"

namespace foretrain {

class ByteStream {
 public:
  /// Errors name the path and the system's reason.
  static Result<ByteStream> open(const std::string& path);
  /// Of a text that outlives the stream; `path` names it in messages.
  static ByteStream of(std::string_view text, std::string path);

  ByteStream(ByteStream&&) noexcept;
  ByteStream& operator=(ByteStream&&) noexcept;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  ~ByteStream();

  /// The next bytes, valid until the next call; none at the end. A damaged archive is an error.
  Result<std::string_view> next();

  const std::string& path() const;
  /// Bytes of the file that were read so far, compressed where it is, and of all of it.
  std::int64_t done() const;
  std::int64_t all() const;

 private:
  class Impl;
  explicit ByteStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> x_impl;
};

}  // namespace foretrain
