// Memory in files without a name, in the folder for temporary files: what a plan keeps in storage.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace foretrain {

class FileMemory {
 public:
  FileMemory() = default;
  FileMemory(const FileMemory&) = delete;
  FileMemory& operator=(const FileMemory&) = delete;
  FileMemory(FileMemory&&) = delete;
  FileMemory& operator=(FileMemory&&) = delete;
  ~FileMemory();

  /// A new file, mapped, with room for all of it; none where there is no room, or no such file.
  std::byte* map(std::size_t bytes);

 private:
  std::vector<std::pair<std::byte*, std::size_t>> x_files;
};

}  // namespace foretrain
