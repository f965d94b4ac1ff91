// Joining and starting jobs, without linking MPI: a module beside the program holds all of it.
#include "executor/launch.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <thread>

#include "executor/module_file.h"
#include "executor/mpi_module.h"
#include "executor/tcp_transport.h"
#include "sim/base/check.h"

namespace foretrain {
namespace {

namespace fs = std::filesystem;

/// The children that SIGINT and SIGTERM are passed on to.
constexpr std::size_t kMostChildren = 4096;
std::array<volatile sig_atomic_t, kMostChildren> running_children{};
volatile sig_atomic_t passed_on = 0;
constexpr std::array<int, 3> kPassed = {SIGINT, SIGTERM, SIGHUP};
void pass_on(int signal) {
  passed_on = signal;
  for (const volatile sig_atomic_t& child : running_children) {
    if (child > 0) kill(static_cast<pid_t>(child), signal);
  }
}

/// A process to start.
struct Child {
  std::vector<std::string> words;
  std::vector<std::string> variables;  ///< "NAME=value", beside those of this process
  int keeps = -1;                      ///< an open file that it inherits
};

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (std::string& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

/// What the CUDA module sets where it sees one device. Ranks decide anew: they are several.
constexpr std::string_view kNotPassed = "CUDA_MODULE_LOADING=LAZY";

/// Signals that wait meanwhile find a child that has no handler of this process.
void take_signals_anew(const sigset_t& mask) {
  for (const int signal : kPassed) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    if (now.sa_handler == pass_on) std::signal(signal, SIG_DFL);
  }
  sigprocmask(SIG_SETMASK, &mask, nullptr);
}

/// `mask`: of the signals that the child blocks.
Result<pid_t> start_child(Child child, const sigset_t& mask) {
  std::vector<std::string> variables = child.variables;
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string_view text = *one;
    const std::string_view name = text.substr(0, text.find('=') + 1);
    const bool own = std::any_of(child.variables.begin(), child.variables.end(),
                                 [&](const std::string& v) { return v.starts_with(name); });
    if (!own && text != kNotPassed) variables.emplace_back(text);
  }
  std::vector<char*> argv = pointers(child.words);
  std::vector<char*> envp = pointers(variables);
  const pid_t parent = getpid();
  const pid_t out = fork();
  if (out < 0) return input_error(child.words[0] + " cannot be started: " + strerror(errno));
  if (out > 0) return out;
  // Whatever ends this process must not leave ranks behind.
  take_signals_anew(mask);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(127);
  if (child.keeps >= 0) fcntl(child.keeps, F_SETFD, 0);
  execve(argv[0], argv.data(), envp.data());
  _exit(127);
}

/// Waits for all. Once one has failed the others have some seconds to end by themselves.
int wait_for_all(std::vector<pid_t> children) {
  constexpr auto kPatience = std::chrono::seconds(6);
  int first = 0;
  std::chrono::steady_clock::time_point failed_at{};
  auto nap = std::chrono::milliseconds(1);
  while (!children.empty()) {
    int failure = 0;
    std::erase_if(children, [&](pid_t child) {
      int status = 0;
      if (waitpid(child, &status, WNOHANG) != child) return false;
      for (volatile sig_atomic_t& one : running_children) {
        if (one == child) one = 0;
      }
      // Who was killed is the cause of those that exit.
      failure = std::max(failure, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
      return true;
    });
    const auto now = std::chrono::steady_clock::now();
    if (first == 0 && failure != 0) {
      first = failure;
      failed_at = now;
    }
    for (const pid_t child : children) {
      // One that is stopped does not end by itself.
      const bool late = now - failed_at > kPatience;
      if (first != 0 && (late || state_of_process(child) == 'T')) kill(child, SIGKILL);
    }
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, std::chrono::milliseconds(50));
  }
  return first;
}

Result<int> run_children(const std::vector<Child>& children) {
  FT_CHECK(children.size() <= kMostChildren, "more children than are passed signals");
  struct sigaction action {};
  action.sa_handler = pass_on;
  std::array<struct sigaction, kPassed.size()> before{};
  sigset_t passed;
  sigset_t mask;
  sigemptyset(&passed);
  for (const int signal : kPassed) sigaddset(&passed, signal);
  pthread_sigmask(SIG_BLOCK, &passed, &mask);
  passed_on = 0;
  for (std::size_t i = 0; i < kPassed.size(); ++i) {
    sigaction(kPassed.at(i), nullptr, &before.at(i));
    // nohup ignores a signal: this process and its children go on ignoring it.
    if (before.at(i).sa_handler != SIG_IGN) sigaction(kPassed.at(i), &action, nullptr);
  }
  std::vector<pid_t> started;
  Status all = ok_status();
  for (std::size_t i = 0; i < children.size() && all.ok(); ++i) {
    const Result<pid_t> one = start_child(children[i], mask);
    all = one.ok() ? ok_status() : Status(one.error());
    if (!one.ok()) continue;
    started.push_back(one.value());
    running_children.at(i) = one.value();
  }
  // Another thread may have taken a signal before all children were known.
  for (const pid_t child : started) {
    if (passed_on != 0) kill(child, passed_on);
  }
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  if (!all.ok()) {
    for (const pid_t child : started) kill(child, SIGKILL);
  }
  const int code = wait_for_all(started);
  for (std::size_t i = 0; i < kPassed.size(); ++i) {
    sigaction(kPassed.at(i), &before.at(i), nullptr);
  }
  FT_TRY(all);
  // What it would have done to this process it does now.
  if (passed_on != 0) raise(passed_on);
  return code;
}

}  // namespace

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
  const JobVariables job = job_variables();
  return job.by == JobVariables::By::kNobody ? 0 : job.size;
}

Status check_mpi() {
  if (find_module(kMpiModuleFile).empty()) {
    return input_error(std::string("this build has no MPI (") + kMpiModuleFile +
                       "): install libopenmpi-dev and build again");
  }
  if (find_program("mpirun").empty()) {
    return input_error("mpirun is not on the PATH: install openmpi-bin");
  }
  return ok_status();
}

const char* RankStart::transport() const {
  if (by == By::kThreads) return "threads";
  return by == By::kMpi || by == By::kMpirun ? "mpi" : "tcp";
}

RankStart rank_start(bool threads) {
  using By = RankStart::By;
  if (threads) return {By::kThreads, ""};
  const JobVariables job = job_variables();
  if (job.by == JobVariables::By::kMpi) return {By::kMpi, ""};
  if (job.by == JobVariables::By::kTcp) return {By::kTcp, ""};
  const Status mpi = check_mpi();
  if (mpi.ok()) return {By::kMpirun, ""};
  return {By::kProcesses, mpi.error().message};
}

Result<MpiWorld> join_mpi(const Workload& workload, Silence silence) {
  const std::string path = find_module(kMpiModuleFile);
  if (path.empty()) return check_mpi().error();
  // Open MPI's own plug-ins look its symbols up globally.
  void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (module == nullptr) return input_error(std::string("MPI cannot be loaded: ") + dlerror());
  auto* const join = reinterpret_cast<JoinMpi*>(dlsym(module, kJoinMpiSymbol));
  if (join == nullptr) return input_error(path + " is not the MPI module of this version");
  MpiWorld world;
  std::string problem;
  join(workload, silence, world, problem);
  if (!problem.empty()) return input_error(problem);
  return world;
}

Result<MpiWorld> join_job(const Workload& workload, Silence silence) {
  const JobVariables job = job_variables();
  if (job.by == JobVariables::By::kTcp) return join_tcp(workload, job, silence);
  return join_mpi(workload, silence);
}

bool is_for_devices(const std::vector<std::string>& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--device=cuda") return true;
    if (i > 0 && arguments[i - 1] == "--device" && arguments[i] == "cuda") return true;
  }
  return false;
}

std::vector<std::string> mpirun_words(const std::string& mpirun, std::int64_t ranks,
                                      std::int64_t cores, const std::string& program,
                                      const std::vector<std::string>& arguments) {
  std::vector<std::string> out = {mpirun, "-np", std::to_string(ranks)};
  if (is_for_devices(arguments) || ranks > cores) {
    out.insert(out.end(), {"--oversubscribe", "--bind-to", "none"});
  } else {
    out.insert(out.end(), {"--bind-to", "core"});
  }
  if (geteuid() == 0) out.emplace_back("--allow-run-as-root");
  out.push_back(program);
  out.insert(out.end(), arguments.begin(), arguments.end());
  return out;
}

Result<int> run_under_mpirun(std::int64_t ranks, const std::vector<std::string>& arguments) {
  FT_TRY(check_mpi());
  const auto cores = static_cast<std::int64_t>(std::thread::hardware_concurrency());
  Child child;
  child.words = mpirun_words(find_program("mpirun"), ranks, cores, own_path(), arguments);
  return run_children({child});
}

Result<int> run_as_processes(std::int64_t ranks, const std::vector<std::string>& arguments) {
  FT_ASSIGN(const Socket listener, listen_at(true, 0));
  const std::string port = std::to_string(own_end(listener).port);
  std::vector<Child> children(static_cast<std::size_t>(ranks));
  for (std::size_t r = 0; r < children.size(); ++r) {
    children[r].words = {own_path()};
    children[r].words.insert(children[r].words.end(), arguments.begin(), arguments.end());
    const std::string rank = std::to_string(r);
    children[r].variables = {"RANK=" + rank, "LOCAL_RANK=" + rank,
                             "WORLD_SIZE=" + std::to_string(ranks), "MASTER_ADDR=127.0.0.1",
                             "MASTER_PORT=" + port};
    if (r > 0) continue;
    children[r].keeps = listener.number();
    children[r].variables.push_back(kListenerVariable + ("=" + std::to_string(listener.number())));
  }
  return run_children(children);
}

}  // namespace foretrain
