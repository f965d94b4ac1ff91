// Output files that are whole or absent, and input files that may be compressed.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "sim/base/result.h"

namespace foretrain {

/// A file that is written beside its target and renamed into place by `commit`, so that a reader
/// (or a full disk) never meets half of it. Without `commit` the destructor removes what was
/// written.
///
/// Devices and pipes cannot be renamed: they are written to directly, as are "-" (standard output),
/// /dev/stdout, /dev/stderr and /dev/fd/N. A name that ends in ".gz" is compressed. A symbolic link
/// is followed, not replaced, and makes the file that it leads to; links in a circle are an error.
/// An existing file keeps its permissions. A new one has the usual ones once it is whole; until
/// then only its owner reads it.
///
/// Large files are compressed and written by threads beside the one that appends (`chunks.h`).
///
/// Errors (missing or unwritable directory, target is a directory, full disk, file size limit) name
/// the path and the system's reason. SIGXFSZ is set to be ignored, or the size limit would kill the
/// process. A signal that ends the process removes the temporary (sim/base/temporaries.h). Left
/// out: no fsync, so a power failure may lose the file; a file that replaces one of several hard
/// links leaves the others as they are; owner and attributes are those of a new file.
class AtomicFile {
 public:
  static Result<AtomicFile> create(const std::string& path);

  AtomicFile(AtomicFile&&) noexcept;
  AtomicFile& operator=(AtomicFile&&) noexcept;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Buffered; an error may show only in a later call. After one, every call returns it.
  Status append(std::string_view text);

  /// Writes what is buffered, closes, renames. Call it once, last.
  Status commit();

  const std::string& path() const;

 private:
  class Impl;
  explicit AtomicFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> x_impl;
};

/// Writes a whole file at once.
Status write_text_file(const std::string& path, std::string_view text);

/// What a file may hold, decompressed.
inline constexpr std::size_t kReadLimit = std::size_t{1} << 30;

/// The whole content of a file of at most `limit` bytes, decompressed if it is gzip (whatever its
/// name). A truncated or damaged archive is an error.
Result<std::string> read_compressed_file(const std::string& path, std::size_t limit = kReadLimit);

}  // namespace foretrain
