// What NVML says of one GPU. The library comes with the driver and its header with a toolkit that
// need not be here, so the few functions are declared after NVIDIA's public reference of the API.
#include <dlfcn.h>

#include <string>
#include <utility>

#include "executor/machine_state.h"

namespace foretrain {
namespace {

using NvmlDevice = void*;
using NvmlReturn = int;
constexpr NvmlReturn kNvmlSuccess = 0;
constexpr int kClockOfSms = 1;
constexpr int kSensorOfGpu = 0;

struct Nvml {
  NvmlReturn (*init)() = nullptr;
  NvmlReturn (*shutdown)() = nullptr;
  const char* (*text)(NvmlReturn) = nullptr;
  NvmlReturn (*by_bus)(const char*, NvmlDevice*) = nullptr;
  NvmlReturn (*by_uuid)(const char*, NvmlDevice*) = nullptr;
  NvmlReturn (*clock)(NvmlDevice, int, unsigned*) = nullptr;          ///< MHz
  NvmlReturn (*power)(NvmlDevice, unsigned*) = nullptr;               ///< mW
  NvmlReturn (*temperature)(NvmlDevice, int, unsigned*) = nullptr;    ///< C
  NvmlReturn (*throttle)(NvmlDevice, unsigned long long*) = nullptr;  ///< bits; drivers may lack it
};

/// A library that is closed with its last user.
class NvmlLibrary {
 public:
  explicit NvmlLibrary(const std::string& name) : x_handle(dlopen(name.c_str(), RTLD_NOW)) {
    if (x_handle == nullptr) x_problem = dlerror();
  }
  NvmlLibrary(const NvmlLibrary&) = delete;
  NvmlLibrary& operator=(const NvmlLibrary&) = delete;
  NvmlLibrary(NvmlLibrary&& other) noexcept
      : x_handle(std::exchange(other.x_handle, nullptr)), x_problem(std::move(other.x_problem)) {}
  NvmlLibrary& operator=(NvmlLibrary&&) = delete;
  ~NvmlLibrary() {
    if (x_handle != nullptr) dlclose(x_handle);
  }
  bool open() const { return x_handle != nullptr; }
  const std::string& problem() const { return x_problem; }
  template <typename Function>
  Status find(const char* name, Function& out) const {
    out = reinterpret_cast<Function>(dlsym(x_handle, name));
    if (out != nullptr) return ok_status();
    return input_error(std::string("NVML: the library has no ") + name);
  }

 private:
  void* x_handle = nullptr;
  std::string x_problem;
};

Status find_all(const NvmlLibrary& library, Nvml& out) {
  FT_TRY(library.find("nvmlInit_v2", out.init));
  FT_TRY(library.find("nvmlShutdown", out.shutdown));
  FT_TRY(library.find("nvmlErrorString", out.text));
  FT_TRY(library.find("nvmlDeviceGetHandleByPciBusId_v2", out.by_bus));
  FT_TRY(library.find("nvmlDeviceGetHandleByUUID", out.by_uuid));
  FT_TRY(library.find("nvmlDeviceGetClockInfo", out.clock));
  FT_TRY(library.find("nvmlDeviceGetPowerUsage", out.power));
  // Named anew in drivers of CUDA 12.2.
  const Status events = library.find("nvmlDeviceGetCurrentClocksEventReasons", out.throttle);
  if (!events.ok()) {
    (void)library.find("nvmlDeviceGetCurrentClocksThrottleReasons", out.throttle);
  }
  return library.find("nvmlDeviceGetTemperature", out.temperature);
}

class NvmlStateReader final : public StateReader {
 public:
  NvmlStateReader(NvmlLibrary library, const Nvml& nvml)
      : x_library(std::move(library)), x_nvml(nvml) {}
  NvmlStateReader(const NvmlStateReader&) = delete;
  NvmlStateReader& operator=(const NvmlStateReader&) = delete;
  NvmlStateReader(NvmlStateReader&&) = delete;
  NvmlStateReader& operator=(NvmlStateReader&&) = delete;
  ~NvmlStateReader() override {
    if (x_started) x_nvml.shutdown();
  }

  Status start(const GpuName& gpu) {
    FT_TRY(check(x_nvml.init(), "its start"));
    x_started = true;
    NvmlReturn found = gpu.bus.empty() ? -1 : x_nvml.by_bus(gpu.bus.c_str(), &x_device);
    if (found != kNvmlSuccess) found = x_nvml.by_uuid(gpu.uuid.c_str(), &x_device);
    FT_TRY(check(found, ("GPU " + gpu.bus + " " + gpu.uuid).c_str()));
    const auto try_one = [this](const char* what, std::pair<NvmlReturn, unsigned> got, bool& can) {
      can = got.first == kNvmlSuccess;
      if (can) return;
      x_missing += (x_missing.empty() ? "" : "; ") + std::string(what) + ": " + text(got.first);
    };
    try_one("clock", clock(), x_has_clock);
    try_one("power", power(), x_has_power);
    try_one("temperature", temperature(), x_has_temperature);
    unsigned long long bits = 0;
    x_has_throttle = x_nvml.throttle != nullptr && x_nvml.throttle(x_device, &bits) == kNvmlSuccess;
    if (!x_has_throttle) {
      x_missing += (x_missing.empty() ? "" : "; ") + std::string("reasons of throttling");
    }
    return ok_status();
  }

  MachineState read() override {
    MachineState out;
    const auto value = [](std::pair<NvmlReturn, unsigned> got, double scale) {
      return got.first == kNvmlSuccess ? std::optional(static_cast<double>(got.second) * scale)
                                       : std::nullopt;
    };
    if (x_has_clock) out.clock_mhz = value(clock(), 1);
    if (x_has_power) out.power_w = value(power(), 1e-3);
    if (x_has_temperature) out.temperature_c = value(temperature(), 1);
    constexpr std::uint64_t kIdle = 1;
    unsigned long long bits = 0;
    if (x_has_throttle && x_nvml.throttle(x_device, &bits) == kNvmlSuccess) {
      out.throttle = bits & ~kIdle;
    }
    return out;
  }
  std::string missing() const override { return x_missing; }

 private:
  std::pair<NvmlReturn, unsigned> clock() const {
    unsigned out = 0;
    const NvmlReturn got = x_nvml.clock(x_device, kClockOfSms, &out);
    return {got, out};
  }
  std::pair<NvmlReturn, unsigned> power() const {
    unsigned out = 0;
    const NvmlReturn got = x_nvml.power(x_device, &out);
    return {got, out};
  }
  std::pair<NvmlReturn, unsigned> temperature() const {
    unsigned out = 0;
    const NvmlReturn got = x_nvml.temperature(x_device, kSensorOfGpu, &out);
    return {got, out};
  }
  std::string text(NvmlReturn code) const {
    const char* const known = x_nvml.text(code);
    return known == nullptr ? "error " + std::to_string(code) : known;
  }
  Status check(NvmlReturn code, const char* what) const {
    if (code == kNvmlSuccess) return ok_status();
    return input_error(std::string("NVML: ") + what + ": " + text(code));
  }

  NvmlLibrary x_library;
  Nvml x_nvml;
  bool x_started = false, x_has_clock = false, x_has_power = false, x_has_temperature = false,
       x_has_throttle = false;
  NvmlDevice x_device = nullptr;
  std::string x_missing;
};

}  // namespace

Result<std::unique_ptr<StateReader>> make_nvml_state_reader(const GpuName& gpu,
                                                            const std::string& library) {
  NvmlLibrary loaded(library);
  if (!loaded.open()) return input_error("NVML: " + loaded.problem());
  Nvml nvml;
  FT_TRY(find_all(loaded, nvml));
  auto out = std::make_unique<NvmlStateReader>(std::move(loaded), nvml);
  FT_TRY(out->start(gpu));
  return std::unique_ptr<StateReader>(std::move(out));
}

}  // namespace foretrain
