// What a machine runs at while something is measured: clock, power, temperature. Only read, never
// set.
#pragma once

#include <memory>
#include <string>

#include "hardware/profile.h"
#include "sim/base/result.h"

namespace foretrain {

class StateReader {
 public:
  StateReader() = default;
  StateReader(const StateReader&) = delete;
  StateReader& operator=(const StateReader&) = delete;
  StateReader(StateReader&&) = delete;
  StateReader& operator=(StateReader&&) = delete;
  virtual ~StateReader() = default;
  /// As it is now, what of it can be read. Takes microseconds on a host, up to milliseconds of a
  /// device.
  virtual MachineState read() = 0;
  /// What cannot be read here and why, "power: Not Supported; ..."; "" where all can.
  virtual std::string missing() const = 0;
};

/// The clock of the core that asks, from `root`/sys/devices/system/cpu (what the governor says of
/// it), else from `root`/proc/cpuinfo (which virtual machines keep constant). Power and temperature
/// of hosts are not read.
std::unique_ptr<StateReader> make_host_state_reader(const std::string& root = "");

inline constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

/// Names one GPU: where it sits on the bus, "0000:1b:00.0", and "GPU-" and its identifier.
struct GpuName {
  std::string bus, uuid;
};

/// NVML, the library of NVIDIA's driver, which is loaded by `library`'s name or path: the clock of
/// the SMs, the power of the board (its mean over a time that depends on the GPU, up to a second),
/// the temperature of the GPU. The error says what is missing: the library, a function of it, the
/// GPU.
Result<std::unique_ptr<StateReader>> make_nvml_state_reader(
    const GpuName& gpu, const std::string& library = kNvmlLibrary);

}  // namespace foretrain
