// Fuzzed bytes as a file in memory, for readers that take a path.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "sim/base/check.h"

namespace foretrain {

/// Writes all of the text at the begin of an open file, and cuts what was there behind.
inline void put_bytes(int file, std::string_view text) {
  FT_CHECK(::ftruncate(file, 0) == 0 &&
               ::pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()),
           "no room for the fuzzed bytes");
}

/// A path under which the text can be read until the next call.
inline std::string memory_file(std::string_view text) {
  static const int file = ::memfd_create("fuzz", MFD_CLOEXEC);
  put_bytes(file, text);
  return "/proc/self/fd/" + std::to_string(file);
}

/// A folder in memory that the end of the process removes.
inline const std::string& memory_folder() {
  struct Folder {
    std::string name = "/dev/shm/foretrain-fuzz-XXXXXX";
    Folder() { FT_CHECK(::mkdtemp(name.data()) != nullptr, "no folder in /dev/shm"); }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(name, ignored);
    }
  };
  static const Folder folder;
  return folder.name;
}

}  // namespace foretrain
