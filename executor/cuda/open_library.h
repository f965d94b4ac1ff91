// Shared libraries that a machine may have or not, loaded when they are asked for.
#pragma once

#include <string>
#include <vector>

#include "executor/library_places.h"
#include "sim/base/result.h"

namespace foretrain {

/// Loads the first of `names` that is there: in the folders of FORETRAIN_LIBRARY_PATH, else where
/// the loader looks, else in `places`. The error says where it looked, and what the loader said of
/// a file that is there. It stays loaded; `everywhere`: other libraries see its symbols.
Result<void*> open_library(const std::vector<std::string>& names,
                           const std::vector<std::string>& places, bool everywhere = false);

/// Loads the file of a module; what it needs and the loader does not find is loaded before, from
/// the places of `open_library`. The error names what is missing and where it was looked for.
Result<void*> open_module(const std::string& path, const std::vector<std::string>& places);

/// Where a library has a name; none where it has not.
void* find_symbol(void* library, const char* name);

/// Whether the library has the function, which `out` then is.
template <typename Function>
bool find_function(void* library, const char* name, Function& out) {
  out = reinterpret_cast<Function>(find_symbol(library, name));
  return out != nullptr;
}

}  // namespace foretrain
