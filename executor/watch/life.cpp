#include "executor/watch/life.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <thread>

namespace foretrain {
namespace {

constexpr double kIdleShare =
    0.005;  ///< CPU time over time; a reader of signs uses less than 0.1 %

/// The text up to the next end of a line, which is taken off.
std::string next_line(std::string& rest) {
  const std::size_t end = std::min(rest.find('\n'), rest.size());
  std::string out = rest.substr(0, end);
  rest.erase(0, end + 1);
  return out;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

char state_of_process(std::int64_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return 0;
  // The name of the program stands before it, in parentheses, and may have some itself.
  const std::size_t end = line.rfind(')');
  return end == std::string::npos || end + 2 >= line.size() ? '\0' : line[end + 2];
}

void OpsUnderWay::begins(const std::string& name) {
  const std::lock_guard lock(x_mutex);
  x_names.push_back(&name);
  ++x_changes;
}

void OpsUnderWay::ends(const std::string& name) {
  const std::lock_guard lock(x_mutex);
  const auto at = std::find(x_names.begin(), x_names.end(), &name);
  if (at != x_names.end()) x_names.erase(at);
  ++x_changes;
}

void OpsUnderWay::waits(bool begins) {
  const std::lock_guard lock(x_mutex);
  x_waits += begins ? 1 : -1;
}

OpsUnderWay::State OpsUnderWay::state() const {
  constexpr std::size_t kShown = 3;
  constexpr int kTries = 50;
  // A thread that hangs may hold the lock.
  std::unique_lock lock(x_mutex, std::try_to_lock);
  for (int i = 0; i < kTries && !lock.owns_lock(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    (void)lock.try_lock();
  }
  if (!lock.owns_lock()) return {0, false, "an operation that holds a lock"};
  State out{x_changes, x_waits > 0, ""};
  for (std::size_t i = 0; i < std::min(kShown, x_names.size()); ++i) {
    out.text += (i > 0 ? " and " : "") + *x_names[i];
  }
  if (x_names.empty()) out.text = "no operation";
  return out;
}

std::uint64_t OwnLife::look(std::uint64_t changes, Moment now) {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  const double cpu = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const std::int64_t blocks = used.ru_inblock + used.ru_oublock + used.ru_majflt;
  const double seconds = std::chrono::duration<double>(now - x_at).count();
  if (changes != x_changes || blocks != x_blocks || cpu - x_cpu > kIdleShare * seconds) ++x_life;
  x_changes = changes;
  x_blocks = blocks;
  x_cpu = cpu;
  x_at = now;
  return x_life;
}

std::string text_of(const Sign& sign) {
  return sign.host.substr(0, 64) + "\n" + std::to_string(sign.process) + "\n" +
         std::to_string(sign.ops) + "\n" + (sign.waits ? "waits" : "works") + "\n" +
         sign.doing.substr(0, 300);
}

Sign read_sign(const std::string& text) {
  std::string rest = text;
  Sign out;
  out.host = next_line(rest);
  out.process = std::atoll(next_line(rest).c_str());
  out.ops = std::atoll(next_line(rest).c_str());
  out.waits = next_line(rest) == "waits";
  out.doing = rest;
  return out;
}

Sign own_sign(std::uint64_t life, const OpsUnderWay::State& state) {
  static const std::string host = host_name().empty() ? "an unknown host" : host_name();
  return {life, getpid(), static_cast<std::int64_t>(state.changes), state.waits, host, state.text};
}

}  // namespace foretrain
