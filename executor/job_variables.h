// How a launcher started this process among others, by the variables that it left: those of MPI's
// launchers, of torchrun, of srun.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace foretrain {

struct JobVariables {
  enum class By : std::uint8_t {
    kNobody,  ///< no launcher, or one that started this process alone
    kMpi,     ///< MPI's library finds the others
    kTcp,     ///< the others are found at an address
  };
  By by = By::kNobody;
  std::int64_t rank = 0, size = 0;    ///< `rank` of kTcp only: MPI tells its own
  std::optional<std::int64_t> local;  ///< place among the processes on this machine, where told
  std::string address;                ///< of kTcp: where rank 0 listens
  int port = 0;
  std::string size_name;  ///< the variable that told `size`, for messages
  std::string problem;    ///< of kTcp: what is wrong with the variables, "" if nothing
};

/// The value of a variable, or nullptr.
using ReadVariable = std::function<const char*(const char* name)>;

/// MPI's variables come first where there is an MPI module, then RANK and WORLD_SIZE, then
/// SLURM_PROCID of a job step; the latter two, and MPI's where there is no module, with MASTER_ADDR
/// and MASTER_PORT. Inside torchrun (TORCHELASTIC_RUN_ID) its own are first. Where torchrun keeps
/// its store at MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE) the port is the next one.
JobVariables job_variables(bool mpi_module, const ReadVariable& read);
/// Of this process.
JobVariables job_variables();

}  // namespace foretrain
