#include "executor/library_places.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

namespace foretrain {
namespace {

namespace fs = std::filesystem;

/// What lies in a folder, in order; nothing where it is none.
std::vector<fs::path> inside(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    out.push_back(at->path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::string> split(const char* text, char at) {
  std::vector<std::string> out;
  std::string all = text == nullptr ? "" : text;
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = std::min(all.find(at, begin), all.size());
    if (end > begin) out.push_back(all.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

/// The folders of libraries in the packages `nvidia-...` below PREFIX/lib/python3.*.
void add_packages(const fs::path& prefix, std::vector<fs::path>& out) {
  for (const fs::path& python : inside(prefix / "lib")) {
    if (!python.filename().string().starts_with("python3")) continue;
    for (const char* packages : {"site-packages", "dist-packages"}) {
      for (const fs::path& one : inside(python / packages / "nvidia")) {
        std::error_code error;
        const fs::path folder = one / "lib";
        if (!fs::is_directory(folder, error)) continue;
        if (std::find(out.begin(), out.end(), folder) == out.end()) out.push_back(folder);
      }
    }
  }
}

void add_toolkit(const fs::path& home, std::vector<fs::path>& out) {
  for (const char* folder : {"lib64", "extras/CUPTI/lib64"}) {
    std::error_code error;
    if (fs::is_directory(home / folder, error)) out.push_back(home / folder);
  }
}

/// PREFIX of the first PREFIX/bin/python3 on the PATH, as it is written and where it leads.
std::vector<fs::path> prefixes_of_python(const ReadVariable& read) {
  for (const std::string& folder : split(read("PATH"), ':')) {
    std::error_code error;
    const fs::path python = fs::path(folder) / "python3";
    if (!fs::exists(python, error)) continue;
    return {fs::path(folder).parent_path(),
            fs::canonical(python, error).parent_path().parent_path()};
  }
  return {};
}

}  // namespace

LibraryPlaces library_places(const fs::path& root, const ReadVariable& read) {
  LibraryPlaces out;
  const auto below = [&root](const std::string& path) {
    return root.empty() ? fs::path(path) : root / fs::path(path).relative_path();
  };
  for (const std::string& folder : split(read("LD_LIBRARY_PATH"), ':'))
    out.loader.push_back(folder);
  for (const fs::path& file : inside(below("/etc/ld.so.conf.d"))) {
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("/")) out.loader.push_back(below(line.substr(0, line.find(' '))));
    }
  }
  for (const char* folder :
       {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
        "/usr/local/lib", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/usr/local/cuda/lib64",
        "/usr/local/cuda/lib", "/usr/local/cuda/extras/CUPTI/lib64"}) {
    out.loader.push_back(below(folder));
  }
  for (const std::string& folder : split(read(kLibraryPath), ':')) out.packages.push_back(folder);
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* home = read(name)) add_toolkit(home, out.packages);
  }
  const auto add = [&](const char* prefix, const char* under = "") {
    if (prefix != nullptr && *prefix != '\0') add_packages(fs::path(prefix) / under, out.packages);
  };
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    add(read(name));
    if (const char* prefix = read(name)) out.packages.push_back(fs::path(prefix) / "lib");
  }
  for (const fs::path& prefix : prefixes_of_python(read)) add(prefix.c_str());
  add(read("HOME"), ".local");
  for (const char* prefix : {"/usr", "/usr/local", "/opt/conda"}) add(below(prefix).c_str());
  for (const fs::path& one : inside(below("/usr/local"))) {
    if (one.filename().string().starts_with("cuda")) add_toolkit(one, out.packages);
  }
  return out;
}

std::vector<std::string> library_places() {
  const auto read = [](const char* name) -> const char* { return std::getenv(name); };
  std::vector<std::string> out;
  for (const fs::path& folder : library_places("", read).packages) out.push_back(folder.string());
  return out;
}

FoundLibrary find_library(const LibraryPlaces& places, const std::string& name) {
  for (const std::vector<fs::path>* folders : {&places.loader, &places.packages}) {
    for (const fs::path& folder : *folders) {
      for (const fs::path& file : inside(folder)) {
        const std::string found = file.filename().string();
        if (found != name && !found.starts_with(name + ".")) continue;
        return {file.string(), folders == &places.loader};
      }
    }
  }
  return {};
}

bool file_holds(const std::string& path, const std::string& bytes) {
  std::ifstream file(path, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return file.good() || file.eof() ? all.find(bytes) != std::string::npos : false;
}

}  // namespace foretrain
