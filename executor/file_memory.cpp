#include "executor/file_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace foretrain {

FileMemory::~FileMemory() {
  for (const auto& [data, bytes] : x_files) munmap(data, bytes);
}

std::byte* FileMemory::map(std::size_t bytes) {
  std::error_code none;
  std::string path = std::filesystem::temp_directory_path(none).string() + "/foretrain-XXXXXX";
  const int file = mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) return nullptr;
  unlink(path.c_str());
  void* data = MAP_FAILED;
  // Room is reserved now: a full disk must not end the process in the middle of a copy.
  if (posix_fallocate(file, 0, static_cast<off_t>(bytes)) == 0) {
    data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  close(file);
  if (data == MAP_FAILED) return nullptr;
  x_files.emplace_back(static_cast<std::byte*>(data), bytes);
  return x_files.back().first;
}

}  // namespace foretrain
