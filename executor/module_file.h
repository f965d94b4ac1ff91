// Where the shared libraries lie that are loaded at run time.
#pragma once

#include <string>

namespace foretrain {

/// The running program's own path; "" where the system does not say.
std::string own_path();

/// Beside the program (builds: in executor/), or in ../lib/foretrain; "" where it is not.
std::string find_module(const std::string& file);

}  // namespace foretrain
