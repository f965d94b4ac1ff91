// The clock of a host's core.
#include <sched.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "executor/machine_state.h"

namespace foretrain {
namespace {

constexpr const char* kNotReadOfHosts = "power, temperature: not read of hosts";

/// Nothing where the system does not say.
std::optional<double> governed_mhz(const std::string& root, int core) {
  std::ifstream file(root + "/sys/devices/system/cpu/cpu" + std::to_string(core) +
                     "/cpufreq/scaling_cur_freq");
  double khz = 0;
  if (!(file >> khz) || khz <= 0) return std::nullopt;
  return khz / 1000;
}

/// The "cpu MHz" of the entry whose "processor" is that core, else of the first entry.
std::optional<double> listed_mhz(const std::string& root, int core) {
  std::ifstream file(root + "/proc/cpuinfo");
  std::optional<double> out;
  bool own = false;
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const double value = std::strtod(line.c_str() + colon + 1, nullptr);
    if (line.starts_with("processor")) own = static_cast<int>(value) == core;
    if (!line.starts_with("cpu MHz") || value <= 0) continue;
    if (own) return value;
    if (!out) out = value;
  }
  return out;
}

class HostStateReader final : public StateReader {
 public:
  explicit HostStateReader(std::string root) : x_root(std::move(root)) {
    x_readable = clock().has_value();
  }
  MachineState read() override {
    MachineState out;
    if (x_readable) out.clock_mhz = clock();
    return out;
  }
  std::string missing() const override {
    if (x_readable) return kNotReadOfHosts;
    return std::string("clock: neither cpufreq nor /proc/cpuinfo has it; ") + kNotReadOfHosts;
  }

 private:
  std::optional<double> clock() const {
    const int core = sched_getcpu();
    const std::optional<double> governed = governed_mhz(x_root, core);
    return governed ? governed : listed_mhz(x_root, core);
  }

  std::string x_root;
  bool x_readable = false;
};

}  // namespace

std::unique_ptr<StateReader> make_host_state_reader(const std::string& root) {
  return std::make_unique<HostStateReader>(root);
}

}  // namespace foretrain
