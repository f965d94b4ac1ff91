// What a profile says about the machine that it was measured on.
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <thread>

#include "executor/calibrate.h"
#include "executor/execute.h"
#include "executor/kernels.h"

namespace foretrain {
namespace {

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("model name")) {
      const std::size_t at = line.find(": ");
      if (at != std::string::npos) return line.substr(at + 2);
    }
  }
  return "unknown";
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d", &parts);
  return text.data();
}

constexpr std::array<const char*, 4> kIdentity = {"device", "processor", "cores", "blas"};

}  // namespace

Bytes private_cache_bytes() {
  const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? bytes : Bytes{1} << 20;
}

Json machine_identity() {
  Json out{Json::Object{}};
  out.set("device", "host");
  out.set("processor", processor());
  out.set("cores", static_cast<std::int64_t>(std::thread::hardware_concurrency()));
  out.set("blas", blas_name());
  out.set("mpi", check_mpi().ok() ? "found" : "none");
  out.set("private_cache_kib", static_cast<std::int64_t>(private_cache_bytes() / 1024));
  out.set("date", today());
  return out;
}

bool same_machine(const Json& a, const Json& b) {
  for (const char* name : kIdentity) {
    const Json* x = a.find(name);
    const Json* y = b.find(name);
    if (x == nullptr || y == nullptr || !(*x == *y)) return false;
  }
  return true;
}

}  // namespace foretrain
