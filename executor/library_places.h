// Where shared libraries lie on this machine: files are looked at, nothing is loaded or run.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "executor/job_variables.h"

namespace foretrain {

/// The variable that names folders to look for libraries in, with colons between.
inline constexpr const char* kLibraryPath = "FORETRAIN_LIBRARY_PATH";

struct LibraryPlaces {
  std::vector<std::filesystem::path> loader;  ///< where programs find them
  /// Where kLibraryPath says, pip and conda put them, and CUDA's toolkits keep them: the CUDA
  /// backend looks there itself.
  std::vector<std::filesystem::path> packages;
};

/// Of the machine whose files lie below `root` ("" for this one) and the variables that `read`
/// tells: LD_LIBRARY_PATH, the loader's configuration, CUDA's folders; the Python packages
/// `nvidia` of the system, the user, VIRTUAL_ENV, CONDA_PREFIX, /opt/conda and the python3 on the
/// PATH.
LibraryPlaces library_places(const std::filesystem::path& root, const ReadVariable& read);
/// The `packages` of this machine.
std::vector<std::string> library_places();

struct FoundLibrary {
  std::string path;       ///< "" where there is none
  bool by_loader = true;  ///< else the CUDA backend alone finds it
};
/// A file whose name is `name` or begins with it and a dot: "libnccl.so" is libnccl.so.2.
FoundLibrary find_library(const LibraryPlaces& places, const std::string& name);

/// Whether a file holds these bytes; false where it cannot be read.
bool file_holds(const std::string& path, const std::string& bytes);

}  // namespace foretrain
