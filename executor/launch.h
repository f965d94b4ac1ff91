// How several ranks of this program come to run, and starting them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "executor/execute.h"

namespace foretrain {

/// The one decision of who starts the ranks; `execute` follows it, `doctor` shows it.
struct RankStart {
  enum class By : std::uint8_t {
    kMpi,        ///< a launcher started this process: it joins by MPI
    kTcp,        ///< likewise, by TCP
    kMpirun,     ///< this program again under mpirun
    kProcesses,  ///< this program again, so many times; they join by TCP
    kThreads,
  };
  By by = By::kThreads;
  std::string note;  ///< why no better one, or ""
  /// What `execute --json` calls the way that ranks talk: "mpi", "tcp" or "threads".
  const char* transport() const;
};
/// `threads`: the user asks for threads.
RankStart rank_start(bool threads);

/// A program on the PATH, or "".
std::string find_program(const std::string& name);

/// Whether the words of a command line say `--device cuda`.
bool is_for_devices(const std::vector<std::string>& arguments);

/// `mpirun` and its options, then `program` and its arguments. A rank on the host has a core of its
/// own where there are enough. One on a device is not bound: the thread that issues, NCCL's and the
/// driver's would share one core.
std::vector<std::string> mpirun_words(const std::string& mpirun, std::int64_t ranks,
                                      std::int64_t cores, const std::string& program,
                                      const std::vector<std::string>& arguments);

/// Starts this program so many times with the same arguments and torchrun's variables, at a free
/// port of the loopback, and waits for all. A rank that fails ends the others; the exit code is
/// that of the first failure (128 + the signal that ended it). Signals as by `run_under_mpirun`.
Result<int> run_as_processes(std::int64_t ranks, const std::vector<std::string>& arguments);

}  // namespace foretrain
