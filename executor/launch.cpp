// Joining and starting MPI jobs without linking MPI: a module beside the program holds all of it.
#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "executor/execute.h"
#include "executor/module_file.h"
#include "executor/mpi_module.h"

namespace foretrain {
namespace {

namespace fs = std::filesystem;

std::string find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::string folders = path == nullptr ? "" : path;
  for (std::size_t at = 0; at <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', at), folders.size());
    std::string file = folders.substr(at, end - at) + "/" + name;
    if (access(file.c_str(), X_OK) == 0) return file;
    at = end + 1;
  }
  return "";
}

/// The child that SIGINT and SIGTERM are passed on to.
volatile sig_atomic_t running_child = 0;
volatile sig_atomic_t passed_on = 0;
void pass_on(int signal) {
  passed_on = signal;
  if (running_child > 0) kill(static_cast<pid_t>(running_child), signal);
}

std::vector<std::string> command_line(const std::string& mpirun, std::int64_t ranks,
                                      const std::vector<std::string>& arguments) {
  std::vector<std::string> out = {mpirun, "-np", std::to_string(ranks)};
  const bool room = ranks <= static_cast<std::int64_t>(std::thread::hardware_concurrency());
  if (room) {
    out.insert(out.end(), {"--bind-to", "core"});
  } else {
    out.insert(out.end(), {"--oversubscribe", "--bind-to", "none"});
  }
  if (geteuid() == 0) out.emplace_back("--allow-run-as-root");
  out.push_back(own_path());
  out.insert(out.end(), arguments.begin(), arguments.end());
  return out;
}

}  // namespace

std::string own_path() {
  std::error_code error;
  const fs::path path = fs::read_symlink("/proc/self/exe", error);
  return error ? "" : path.string();
}

std::string find_module(const std::string& module) {
  const fs::path folder = fs::path(own_path()).parent_path();
  for (const fs::path& place : {folder, folder / "../executor", folder / "../lib/foretrain"}) {
    std::error_code error;
    const fs::path file = place / module;
    if (fs::exists(file, error)) return file.string();
  }
  return "";
}

std::int64_t launched_ranks() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"}) {
    if (const char* value = std::getenv(name)) return std::max(1LL, std::atoll(value));
  }
  // srun starts single processes too, with one task.
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  return tasks != nullptr && std::getenv("PMIX_RANK") != nullptr ? std::atoll(tasks) : 0;
}

Status check_mpi() {
  if (find_module(kMpiModuleFile).empty()) {
    return input_error(
        "more than one rank needs MPI, and this build has none: install libopenmpi-dev and build "
        "again, or use --threads (ranks as threads of one process)");
  }
  if (find_program("mpirun").empty()) {
    return input_error(
        "more than one rank needs mpirun, which is not on the PATH: install openmpi-bin, or use "
        "--threads (ranks as threads of one process)");
  }
  return ok_status();
}

Result<MpiWorld> join_mpi(const Workload& workload) {
  const std::string path = find_module(kMpiModuleFile);
  if (path.empty()) return check_mpi().error();
  // Open MPI's own plug-ins look its symbols up globally.
  void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (module == nullptr) return input_error(std::string("MPI cannot be loaded: ") + dlerror());
  auto* const join = reinterpret_cast<JoinMpi*>(dlsym(module, kJoinMpiSymbol));
  if (join == nullptr) return input_error(path + " is not the MPI module of this version");
  MpiWorld world;
  std::string problem;
  join(workload, world, problem);
  if (!problem.empty()) return input_error(problem);
  return world;
}

Result<int> run_under_mpirun(std::int64_t ranks, const std::vector<std::string>& arguments) {
  FT_TRY(check_mpi());
  std::vector<std::string> words = command_line(find_program("mpirun"), ranks, arguments);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child < 0) return input_error(std::string("mpirun cannot be started: ") + strerror(errno));
  if (child == 0) {
    // Whatever ends this process must not leave ranks behind.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    execv(argv[0], argv.data());
    _exit(127);
  }
  running_child = child;
  struct sigaction action {};
  action.sa_handler = pass_on;
  constexpr std::array<int, 3> kPassed = {SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, 3> before{};
  passed_on = 0;
  for (std::size_t i = 0; i < kPassed.size(); ++i) {
    sigaction(kPassed.at(i), &action, &before.at(i));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  running_child = 0;
  for (std::size_t i = 0; i < kPassed.size(); ++i) {
    sigaction(kPassed.at(i), &before.at(i), nullptr);
  }
  // What it would have done to this process it does now.
  if (passed_on != 0) raise(passed_on);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace foretrain
