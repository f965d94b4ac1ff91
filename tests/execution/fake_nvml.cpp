// Stands for NVIDIA's management library: one GPU, whose readings a test sets.
#include <cstring>

namespace {

constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;
constexpr int kNotFound = 6;
constexpr const char* kBus = "0000:1b:00.0";
constexpr const char* kUuid = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f";

int users = 0;
unsigned clock_mhz = 1980;
unsigned power_mw = 689'500;
unsigned degrees = 61;
unsigned long long throttle = 0x5;  // idle, and capped by power
bool knows_power = true;
bool knows_buses = true;

int gpu = 0;

int handle_of(const char* asked, const char* own, void** out) {
  if (users == 0 || std::strcmp(asked, own) != 0) return kNotFound;
  *out = &gpu;
  return kSuccess;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the library's names
extern "C" {

int nvmlInit_v2() {
  ++users;
  return kSuccess;
}

int nvmlShutdown() {
  --users;
  return kSuccess;
}

const char* nvmlErrorString(int code) {
  return code == kNotSupported ? "Not Supported" : code == kNotFound ? "Not Found" : nullptr;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** out) {
  return knows_buses ? handle_of(bus, kBus, out) : kNotSupported;
}

int nvmlDeviceGetHandleByUUID(const char* uuid, void** out) { return handle_of(uuid, kUuid, out); }

int nvmlDeviceGetClockInfo(void* device, int kind, unsigned* out) {
  constexpr int kSms = 1;
  if (device != &gpu || kind != kSms) return kNotSupported;
  *out = clock_mhz;
  return kSuccess;
}

int nvmlDeviceGetPowerUsage(void* device, unsigned* out) {
  if (device != &gpu || !knows_power) return kNotSupported;
  *out = power_mw;
  return kSuccess;
}

int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* out) {
  if (device != &gpu || sensor != 0) return kNotSupported;
  *out = degrees;
  return kSuccess;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* out) {
  if (device != &gpu) return kNotSupported;
  *out = throttle;
  return kSuccess;
}

// What tests set and see.
void fake_nvml_set(unsigned mhz, unsigned mw, unsigned celsius, bool power, bool buses) {
  clock_mhz = mhz;
  power_mw = mw;
  degrees = celsius;
  knows_power = power;
  knows_buses = buses;
}

int fake_nvml_users() { return users; }
}
// NOLINTEND(readability-identifier-naming)
