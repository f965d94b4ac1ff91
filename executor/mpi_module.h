// The seam between the program and its MPI module, a shared library that is loaded when ranks are
// processes. Both are built together; nothing here is stable across versions.
#pragma once

#include <string>

#include "executor/execute.h"

namespace foretrain {

inline constexpr const char* kMpiModuleFile = "libforetrain_mpi.so";
inline constexpr const char* kJoinMpiSymbol = "foretrain_join_mpi";

/// Initialises MPI and fills in `world`, or says in `problem` why not.
using JoinMpi = void(const Workload& workload, Silence silence, MpiWorld& world,
                     std::string& problem);

}  // namespace foretrain
