#include "executor/cuda/open_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace foretrain {
namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<std::string> folders_of(const std::string& list) {
  std::vector<std::string> out;
  std::istringstream in(list);
  std::string one;
  while (std::getline(in, one, ':')) {
    if (!one.empty()) out.push_back(one);
  }
  return out;
}

/// Of "libX.so.1: cannot open shared object file: ...", as the loader says of a library that
/// another one needs; else "".
std::string missing_library(const std::string& said) {
  const std::size_t end = said.find(": cannot open shared object file");
  const std::string name = said.substr(0, end);
  return end == std::string::npos || name.find('/') != std::string::npos ? "" : name;
}

}  // namespace

Result<void*> open_library(const std::vector<std::string>& names,
                           const std::vector<std::string>& places, bool everywhere) {
  std::string said;
  // A file that is there but cannot be loaded tells more than those that are missing.
  const int symbols = everywhere ? RTLD_GLOBAL : RTLD_LOCAL;
  const auto load = [&said, symbols](const std::string& path, bool is_there) -> void* {
    if (!is_there) return nullptr;
    void* const library = dlopen(path.c_str(), RTLD_NOW | symbols);
    const char* const problem = library == nullptr ? dlerror() : nullptr;
    if (problem != nullptr && said.empty() && path.find('/') != std::string::npos) said = problem;
    return library;
  };
  const auto in_folders = [&](const std::vector<std::string>& folders) -> void* {
    for (const std::string& folder : folders) {
      for (const std::string& name : names) {
        const std::string path = folder + "/" + name;
        std::error_code error;
        if (void* library = load(path, std::filesystem::exists(path, error))) return library;
      }
    }
    return nullptr;
  };
  const std::vector<std::string> asked = folders_of(variable(kLibraryPath));
  if (void* library = in_folders(asked)) return library;
  for (const std::string& name : names) {
    if (void* library = load(name, true)) return library;
  }
  if (void* library = in_folders(places)) return library;
  std::string out = names.empty() ? "no library" : names.front();
  if (!said.empty()) return input_error(out + " cannot be loaded: " + said);
  out += " is not found: neither where the loader looks";
  for (const std::string& folder : asked) out += ", nor in " + folder;
  for (const std::string& folder : places) out += ", nor in " + folder;
  return input_error(out + "; name its folder in " + kLibraryPath);
}

Result<void*> open_module(const std::string& path, const std::vector<std::string>& places) {
  constexpr int kMostNeeded = 8;
  std::string tried;
  for (int i = 0; i <= kMostNeeded; ++i) {
    if (void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return module;
    const char* const problem = dlerror();
    const std::string said = problem == nullptr ? "it cannot be loaded" : problem;
    const std::string missing = missing_library(said);
    if (missing.empty() || missing == tried) return input_error(said);
    FT_TRY(open_library({missing}, places, true));
    tried = missing;
  }
  return input_error(path + " needs too many libraries that the loader does not find");
}

void* find_symbol(void* library, const char* name) { return dlsym(library, name); }

}  // namespace foretrain
