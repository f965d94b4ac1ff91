#include "executor/job_variables.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "executor/module_file.h"
#include "executor/mpi_module.h"

namespace foretrain {
namespace {

/// The names of one launcher's variables.
struct Launcher {
  const char* rank;
  std::array<const char*, 2> size;  ///< the second: where the first is not set
  const char* local;
  const char* only_with;  ///< "": always
};

constexpr std::array<Launcher, 4> kOfMpi = {{
    {"OMPI_COMM_WORLD_RANK", {"OMPI_COMM_WORLD_SIZE", ""}, "OMPI_COMM_WORLD_LOCAL_RANK", ""},
    {"PMI_RANK", {"PMI_SIZE", ""}, "MPI_LOCALRANKID", ""},
    {"MV2_COMM_WORLD_RANK", {"MV2_COMM_WORLD_SIZE", ""}, "MV2_COMM_WORLD_LOCAL_RANK", ""},
    // srun starts single processes too, with one task.
    {"SLURM_PROCID", {"SLURM_STEP_NUM_TASKS", ""}, "SLURM_LOCALID", "PMIX_RANK"},
}};
constexpr Launcher kTorchrun = {"RANK", {"WORLD_SIZE", ""}, "LOCAL_RANK", "MASTER_ADDR"};
// A batch script has SLURM_PROCID, too, but no step.
constexpr Launcher kSrun = {
    "SLURM_PROCID", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, "SLURM_LOCALID", "SLURM_STEP_ID"};
/// Of launchers that tell `local` by another name than the one above.
constexpr std::array<const char*, 4> kLocal = {"PMIX_LOCAL_RANK", "PALS_LOCAL_RANKID",
                                               "FLUX_TASK_LOCAL_ID", "SLURM_LOCALID"};

std::optional<std::int64_t> number(const char* text) {
  if (text == nullptr) return std::nullopt;
  std::int64_t out = 0;
  const char* end = text + std::strlen(text);
  const auto [at, error] = std::from_chars(text, end, out);
  if (error != std::errc() || at != end) return std::nullopt;
  return out;
}

const char* size_name(const Launcher& of, const ReadVariable& read) {
  for (const char* name : of.size) {
    if (*name != '\0' && read(name) != nullptr) return name;
  }
  return nullptr;
}

bool told_by(const Launcher& of, const ReadVariable& read) {
  if (*of.only_with != '\0' && read(of.only_with) == nullptr) return false;
  return size_name(of, read) != nullptr;
}

void read_local(const Launcher& of, const ReadVariable& read, JobVariables& out) {
  out.local = number(read(of.local));
  if (&of == &kTorchrun) return;
  for (const char* name : kLocal) {
    if (!out.local) out.local = number(read(name));
  }
}

JobVariables by_mpi(const Launcher& of, const ReadVariable& read) {
  JobVariables out;
  out.by = JobVariables::By::kMpi;
  out.size_name = size_name(of, read);
  out.size = std::max<std::int64_t>(1, number(read(out.size_name.c_str())).value_or(1));
  read_local(of, read, out);
  return out;
}

/// The number that a variable must hold, within bounds; else 0 and the problem.
std::int64_t bounded(const char* name, std::int64_t from, std::int64_t to, const ReadVariable& read,
                     std::string& problem) {
  const char* text = read(name);
  const std::optional<std::int64_t> value = number(text);
  if (value && *value >= from && *value <= to) return *value;
  if (problem.empty()) {
    problem = std::string(name) + " is " +
              (text == nullptr ? "not set" : "\"" + std::string(text) + "\"") + ", expected " +
              std::to_string(from) + " to " + std::to_string(to);
  }
  return 0;
}

JobVariables by_tcp(const Launcher& of, const ReadVariable& read) {
  constexpr std::int64_t kMostRanks = 1 << 16;
  JobVariables out;
  out.by = JobVariables::By::kTcp;
  out.size_name = size_name(of, read);
  out.size = bounded(out.size_name.c_str(), 1, kMostRanks, read, out.problem);
  out.rank = bounded(of.rank, 0, std::max<std::int64_t>(out.size, 1) - 1, read, out.problem);
  out.port = static_cast<int>(bounded("MASTER_PORT", 1, 65535, read, out.problem));
  const char* const shared = read("TORCHELASTIC_USE_AGENT_STORE");
  if (&of == &kTorchrun && shared != nullptr && std::string_view(shared) == "True") {
    out.port = out.port % 65535 + 1;
  }
  const char* const address = read("MASTER_ADDR");
  out.address = address == nullptr ? "" : address;
  if (out.address.empty() && out.problem.empty()) out.problem = "MASTER_ADDR is empty";
  out.size = std::max<std::int64_t>(out.size, 1);
  read_local(of, read, out);
  return out;
}

}  // namespace

JobVariables job_variables(bool mpi_module, const ReadVariable& read) {
  const bool meeting = read("MASTER_ADDR") != nullptr && read("MASTER_PORT") != nullptr;
  const bool torchrun = told_by(kTorchrun, read) && read(kTorchrun.rank) != nullptr;
  if (torchrun && read("TORCHELASTIC_RUN_ID") != nullptr) return by_tcp(kTorchrun, read);
  for (const Launcher& one : kOfMpi) {
    if (!told_by(one, read)) continue;
    if (mpi_module || !meeting) return by_mpi(one, read);
    return by_tcp(one, read);
  }
  if (torchrun) return by_tcp(kTorchrun, read);
  if (meeting && told_by(kSrun, read)) return by_tcp(kSrun, read);
  return {};
}

JobVariables job_variables() {
  return job_variables(!find_module(kMpiModuleFile).empty(),
                       [](const char* name) { return std::getenv(name); });
}

}  // namespace foretrain
