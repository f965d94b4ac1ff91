// Ranks of real runs are killed, stopped or made to hang at random moments: the others end in time
// and say who, where and in what; nothing is left behind; the run goes on from its states.
// FORETRAIN_THOROUGH=1 tries 200 times, else a sample.
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/rng.h"
#include "tests/support/sanitized.h"

namespace foretrain {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;

constexpr double kSilenceOfTests = 2;  ///< s
constexpr double kEndsWithin = 5;      ///< s, after what is noticed at once or after the silence

constexpr const char* kFireRun = R"({
  "model": {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 16,
            "vocab_size": 96, "attn_pdrop": 0, "resid_pdrop": 0},
  "cluster": {"preset": "host", "accelerators": 1},
  "batch": {"global": 24, "micro": 1, "sequence": 16},
  "precision": "fp32", "kernels": {"attention": "unfused"}})";

double seconds_since(Clock::time_point at) {
  return std::chrono::duration<double>(Clock::now() - at).count();
}

void pause_ms(std::int64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

std::string text_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<pid_t> numbers_in(const fs::path& folder) {
  std::vector<pid_t> out;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
    const int number = std::atoi(entry.path().filename().c_str());
    if (number > 0) out.push_back(number);
  }
  return out;
}

/// Alive: one that has ended and is still to be waited for is not.
bool is_alive(pid_t process) {
  const std::string stat = text_of_file("/proc/" + std::to_string(process) + "/stat");
  const std::size_t end = stat.rfind(')');
  return end != std::string::npos && end + 2 < stat.size() && stat[end + 2] != 'Z' &&
         stat[end + 2] != 'X';
}

/// Files of shared memory that no process has mapped.
std::set<std::string> shared_memory_left() {
  std::set<std::string> out;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator("/dev/shm", none)) {
    // Of Open MPI; others of this machine make files there too.
    const std::string name = entry.path().filename().string();
    if (name.find("segment") != name.npos || name.find("mpi") != name.npos) {
      out.insert(entry.path().string());
    }
  }
  for (const pid_t process : numbers_in("/proc")) {
    if (out.empty()) break;
    const std::string maps = text_of_file("/proc/" + std::to_string(process) + "/maps");
    std::erase_if(out, [&](const std::string& name) { return maps.find(name) != maps.npos; });
  }
  return out;
}

enum class Blow : std::uint8_t { kKill, kStop, kHang };
enum class Ways : std::uint8_t { kTcp, kMpi, kThreads };

/// One trial.
struct Trial {
  Ways ways = Ways::kTcp;
  Blow blow = Blow::kKill;
  std::int64_t ranks = 2, victim = 0, after_ms = 0;
  Words sets;
  std::string name() const {
    constexpr const char* kWays[] = {"tcp", "mpi", "threads"};
    constexpr const char* kBlows[] = {"kill", "stop", "hang"};
    std::string out = std::string(kWays[static_cast<int>(ways)]) + " " +
                      kBlows[static_cast<int>(blow)] + " of rank " + std::to_string(victim) +
                      " of " + std::to_string(ranks) + " after " + std::to_string(after_ms) + " ms";
    for (const std::string& set : sets) out += " " + set;
    return out;
  }
};

Trial draw_trial(Rng& rng, Ways ways) {
  constexpr std::int64_t kRanks[] = {2, 3, 4, 6, 8};
  const bool thorough = std::getenv("FORETRAIN_THOROUGH") != nullptr;
  Trial out;
  out.ways = ways;
  out.ranks = kRanks[rng.below(thorough ? 5 : 3)];
  out.victim = rng.below(out.ranks);
  out.after_ms = rng.below(400);
  out.blow = static_cast<Blow>(rng.below(ways == Ways::kMpi ? 2 : 3));
  if (ways == Ways::kThreads) out.blow = Blow::kHang;
  const std::int64_t plan = rng.below(out.ranks % 2 == 0 ? 4 : 2);
  if (plan == 0) out.sets = {"sharding.level=optimizer"};
  if (plan == 1) out.sets = {"sharding.level=parameters"};
  if (plan == 2) out.sets = {"parallel.tensor=2"};
  if (plan == 3) out.sets = {"parallel.pipeline=2"};
  return out;
}

class Fire : public testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "the program's times are those of the release build";
    std::string name = (fs::temp_directory_path() / "foretrain-fire-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    x_folder = name;
  }
  void TearDown() override {
    if (!x_folder.empty()) fs::remove_all(x_folder);
  }
  void try_all(Ways ways, std::uint64_t seed, int trials);

 private:
  void burn(const Trial& trial, Rng& rng);
  pid_t start(const Trial& trial, const Words& more, const std::string& err) const;
  std::vector<double> losses(const Trial& trial, const Words& more, std::string& err) const;
  std::vector<std::int64_t> saved() const;
  pid_t process_of(const Trial& trial, pid_t starter) const;
  static std::vector<pid_t> strike(const Trial& trial, pid_t process);
  void expect_told(const Trial& trial, const std::string& err) const;
  void expect_nothing_left(const std::set<std::string>& shared) const;
  void expect_goes_on(const Trial& trial, Rng& rng) const;
  std::vector<pid_t> here() const;

  fs::path x_folder;
  double x_slowest = 0;  ///< s from what was noticed to the end of the last process
};

/// Processes that work in the folder.
std::vector<pid_t> Fire::here() const {
  std::vector<pid_t> out;
  for (const pid_t process : numbers_in("/proc")) {
    std::error_code none;
    const fs::path folder = fs::read_symlink("/proc/" + std::to_string(process) + "/cwd", none);
    if (folder == x_folder && is_alive(process)) out.push_back(process);
  }
  return out;
}

pid_t Fire::start(const Trial& trial, const Words& more, const std::string& err) const {
  Words words = {FORETRAIN_BINARY, "execute", "run.json", "--ranks", std::to_string(trial.ranks)};
  for (const std::string& set : trial.sets) words.insert(words.end(), {"--set", set});
  words.insert(words.end(), more.begin(), more.end());
  if (trial.ways == Ways::kThreads) words.emplace_back("--threads");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child != 0) return child;
  if (chdir(x_folder.c_str()) != 0) _exit(126);
  if (trial.ways == Ways::kTcp) setenv("PATH", "/none", 1);
  setenv("OPENBLAS_NUM_THREADS", "1", 1);
  setenv("XDG_DATA_HOME", "/none", 1);
  std::freopen(err.c_str(), "w", stderr);
  std::freopen("/dev/null", "r", stdin);
  std::freopen("/dev/null", "w", stdout);
  execv(argv[0], argv.data());
  _exit(127);
}

/// Of a run that ends by itself.
std::vector<double> Fire::losses(const Trial& trial, const Words& more, std::string& err) const {
  Words words = {"--json", "result.json"};
  words.insert(words.end(), more.begin(), more.end());
  const pid_t child = start(trial, words, "err2");
  int status = 0;
  waitpid(child, &status, 0);
  err = text_of_file(x_folder / "err2");
  EXPECT_EQ(status, 0) << err;
  std::vector<double> out;
  const Result<Json> json = read_json_file((x_folder / "result.json").string());
  if (!json.ok()) return out;
  for (const Json& step : *json.value().find("steps")->array()) {
    out.push_back(step.find("loss")->number());
  }
  return out;
}

/// Steps of states, sorted.
std::vector<std::int64_t> Fire::saved() const {
  std::vector<std::int64_t> out;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(x_folder / "states", none)) {
    const std::string name = entry.path().filename().string();
    if (fs::exists(entry.path() / "state.json", none)) out.push_back(std::stoll(name.substr(5)));
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// The process of the victim.
pid_t Fire::process_of(const Trial& trial, pid_t starter) const {
  if (trial.ways == Ways::kThreads) return starter;
  const std::string variable = trial.ways == Ways::kTcp ? "RANK=" : "OMPI_COMM_WORLD_RANK=";
  const std::string wanted = '\0' + variable + std::to_string(trial.victim) + '\0';
  for (const pid_t process : here()) {
    const std::string variables =
        '\0' + text_of_file("/proc/" + std::to_string(process) + "/environ");
    if (process != starter && variables.find(wanted) != std::string::npos) return process;
  }
  return 0;
}

/// The threads that this process now traces, which must be waited for. A process whose threads hang
/// has still the one that gives signs of life: the first that it started. The kernel lists threads
/// in the order of their start; their numbers begin again after the largest.
std::vector<pid_t> Fire::strike(const Trial& trial, pid_t process) {
  std::vector<pid_t> out;
  if (trial.blow != Blow::kHang) {
    kill(process, trial.blow == Blow::kKill ? SIGKILL : SIGSTOP);
    return out;
  }
  const std::vector<pid_t> threads = numbers_in("/proc/" + std::to_string(process) + "/task");
  for (std::size_t i = 0; i < threads.size(); ++i) {
    if (i == 1 || ptrace(PTRACE_SEIZE, threads[i], 0, 0) != 0) continue;
    ptrace(PTRACE_INTERRUPT, threads[i], 0, 0);
    out.push_back(threads[i]);
  }
  return out;
}

void Fire::expect_told(const Trial& trial, const std::string& err) const {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const std::string rank = "rank " + std::to_string(trial.victim);
  EXPECT_NE(err.find(host.data()), std::string::npos) << "no host: " << err;
  // Of a process that is killed mpirun tells, which knows no operations.
  if (trial.ways == Ways::kMpi && trial.blow == Blow::kKill) {
    EXPECT_NE(err.find("process " + rank), std::string::npos) << err;
    return;
  }
  const char* const what = trial.blow == Blow::kKill   ? " is gone"
                           : trial.blow == Blow::kStop ? " is silent"
                                                       : " hangs in ";
  // All ranks are stopped where they are threads of one process. A thread that hangs while it holds
  // a lock of the connections silences its process.
  const bool silenced = trial.blow == Blow::kHang && err.find(rank + " is silent") != err.npos;
  const bool named = err.find(trial.ways == Ways::kThreads ? what : rank + what) != err.npos;
  EXPECT_TRUE(named || silenced) << err;
  EXPECT_TRUE(err.find(" in ") != std::string::npos) << "no operation: " << err;
}

void Fire::expect_nothing_left(const std::set<std::string>& shared) const {
  for (const pid_t process : here()) {
    ADD_FAILURE() << "process " << process
                  << " is left: " << text_of_file("/proc/" + std::to_string(process) + "/cmdline");
    kill(process, SIGKILL);
  }
  for (const std::string& name : shared_memory_left()) {
    EXPECT_TRUE(shared.contains(name)) << name << " is left";
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(x_folder)) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(name == "run.json" || name == "err" || name == "states") << name << " is left";
  }
}

/// After a resume, maybe with the newest state damaged, nothing differs from a run that nobody
/// disturbed.
void Fire::expect_goes_on(const Trial& trial, Rng& rng) const {
  const std::vector<std::int64_t> states = saved();
  ASSERT_FALSE(states.empty());
  const bool damages = states.size() > 1 && rng.below(2) == 0;
  std::int64_t from = states.back();
  fs::path damaged;
  if (damages) {
    std::vector<fs::path> files;
    const fs::path folder = x_folder / "states" / ("step-" + std::to_string(from));
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with(".") && entry.file_size() > 0) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    damaged = files[static_cast<std::size_t>(rng.below(static_cast<std::int64_t>(files.size())))];
    std::string bytes = text_of_file(damaged);
    const auto at = static_cast<std::size_t>(rng.below(static_cast<std::int64_t>(bytes.size())));
    if (rng.below(2) == 0) {
      bytes.resize(at / 2);  // the end of the last line is no loss
    } else {
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << rng.below(8)));
    }
    std::ofstream(damaged, std::ios::binary) << bytes;
    from = states[states.size() - 2];
  }
  const std::string end = std::to_string(from + 4);
  std::string err;
  const std::vector<double> whole = losses(trial, {"--steps", end}, err);
  const std::vector<double> resumed =
      losses(trial, {"--steps", end, "--checkpoint", "states", "--every", "2", "--resume"}, err);
  ASSERT_EQ(resumed.size(), 4U) << "damaged: " << damaged << "\n" << err;
  EXPECT_EQ(resumed, std::vector<double>(whole.end() - 4, whole.end()));
  if (damages) {
    EXPECT_NE(err.find(damaged.parent_path().filename().string()), std::string::npos) << err;
  }
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(x_folder / "states")) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path() << " is left";
  }
}

void Fire::burn(const Trial& trial, Rng& rng) {
  for (const fs::directory_entry& entry : fs::directory_iterator(x_folder)) fs::remove_all(entry);
  std::ofstream(x_folder / "run.json") << kFireRun;
  const std::set<std::string> shared = shared_memory_left();
  const pid_t starter = start(trial,
                              {"--steps", "90000", "--silence", std::to_string(kSilenceOfTests),
                               "--checkpoint", "states", "--every", "2", "--keep", "3"},
                              "err");
  const Clock::time_point begin = Clock::now();
  while (saved().empty() && seconds_since(begin) < 60) pause_ms(5);
  pause_ms(trial.after_ms);
  const pid_t victim = process_of(trial, starter);
  ASSERT_GT(victim, 0) << text_of_file(x_folder / "err");
  const std::vector<pid_t> traced = strike(trial, victim);
  const Clock::time_point struck = Clock::now();
  int status = 0;
  bool ended = false;
  while (!(ended && here().empty()) && seconds_since(struck) < 30) {
    for (const pid_t thread : traced) waitpid(thread, nullptr, WNOHANG | __WALL);
    ended = ended || waitpid(starter, &status, WNOHANG) == starter ||
            (trial.ways == Ways::kThreads && !is_alive(starter));
    pause_ms(5);
  }
  const double noticed = trial.blow == Blow::kKill ? 0 : kSilenceOfTests;
  x_slowest = std::max(x_slowest, seconds_since(struck) - noticed);
  EXPECT_LT(seconds_since(struck), noticed + kEndsWithin);
  EXPECT_TRUE(ended);
  if (!ended) {
    kill(starter, SIGKILL);
    // Who is traced is not gone before its tracer knows.
    for (const pid_t thread : traced) {
      while (thread != starter && waitpid(thread, nullptr, __WALL) == thread) {
      }
    }
    waitpid(starter, nullptr, 0);
  }
  EXPECT_TRUE(status != 0 || trial.ways == Ways::kThreads);
  expect_told(trial, text_of_file(x_folder / "err"));
  expect_nothing_left(shared);
  expect_goes_on(trial, rng);
}

void Fire::try_all(Ways ways, std::uint64_t seed, int trials) {
  for (int i = 0; i < trials; ++i) {
    Rng rng(seed + static_cast<std::uint64_t>(i));
    const Trial trial = draw_trial(rng, ways);
    SCOPED_TRACE("seed " + std::to_string(seed) + "+" + std::to_string(i) + ": " + trial.name());
    burn(trial, rng);
  }
  std::cout << trials << " trials, the slowest end " << x_slowest << " s after it was noticed\n";
}

/// Whether this process may trace its descendants, as a debugger does.
bool may_trace() {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const bool may = ptrace(PTRACE_SEIZE, child, 0, 0) == 0;
  kill(child, SIGKILL);
  waitpid(child, nullptr, __WALL);
  return may;
}

int fire_trials(int sample, int thorough) {
  return std::getenv("FORETRAIN_THOROUGH") != nullptr ? thorough : sample;
}

TEST_F(Fire, OfProcessesThatTcpConnects) {
  if (!may_trace()) GTEST_SKIP() << "ptrace is not allowed here";
  try_all(Ways::kTcp, 4200, fire_trials(4, 130));
}

TEST_F(Fire, OfProcessesOfMpi) {
  if (std::system("command -v mpirun > /dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun";
  try_all(Ways::kMpi, 5200, fire_trials(1, 50));
}

TEST_F(Fire, OfThreads) {
  if (!may_trace()) GTEST_SKIP() << "ptrace is not allowed here";
  try_all(Ways::kThreads, 6200, fire_trials(1, 20));
}

}  // namespace
}  // namespace foretrain
