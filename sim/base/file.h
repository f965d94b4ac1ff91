// Output files that are whole or absent, and input files that may be compressed.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "sim/base/result.h"

namespace foretrain {

/// A file that is written beside its target and renamed into place by `commit`, so that a reader
/// (or a full disk) never meets half of it. Without `commit` the destructor removes what was
/// written.
///
/// Devices, pipes, anything below /dev, and "-" (standard output) cannot be renamed: they are
/// written to directly. A name that ends in ".gz" is compressed. A symbolic link is followed, not
/// replaced; an existing file keeps its permissions.
///
/// Errors (missing or unwritable directory, target is a directory, full disk, file size limit) name
/// the path and the system's reason. SIGXFSZ is set to be ignored, or the size limit would kill the
/// process. Left out: no fsync, so a power failure may lose the file; killed by a signal, the
/// temporary stays.
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

/// The whole content of a file of at most 1 GiB, decompressed if it is gzip (whatever its name).
/// A truncated or damaged archive is an error.
Result<std::string> read_compressed_file(const std::string& path);

}  // namespace foretrain
