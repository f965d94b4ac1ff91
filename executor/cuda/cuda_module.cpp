// The CUDA module's one way in.
#include "executor/cuda_module.h"

#include <cublasLt.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#ifdef FORETRAIN_CUPTI
#include "executor/cuda/activity.h"
#endif
#include "executor/cuda/cuda_device.h"
#ifdef FORETRAIN_CUDNN
#include "executor/cuda/cudnn_api.h"
#endif
#include "executor/cuda/device_rank.h"
#include "executor/cuda/peers.h"

namespace foretrain {
namespace {

#ifdef FORETRAIN_CUDNN
bool has_cudnn() { return open_cudnn().ok(); }
std::string cudnn_version() {
  if (!has_cudnn()) return "";
  return ", cuDNN " + std::to_string(cudnn_api().get_version());
}
#else
bool has_cudnn() { return false; }
std::string cudnn_version() { return ""; }
#endif

/// Why times are those of CUDA events alone; empty where they are not.
std::string no_records() {
#ifdef FORETRAIN_CUPTI
  const Status started = open_activity();
  return started.ok() ? "" : "CUPTI cannot be used: " + started.error().message;
#else
  return "this build has no CUPTI";
#endif
}

std::string versions() {
  int driver = 0;
  int runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  return "CUDA driver " + std::to_string(driver) + ", runtime " + std::to_string(runtime) +
         ", cuBLASLt " + std::to_string(cublasLtGetVersion()) + nccl_version() + cudnn_version();
}

/// As NVML knows it: CUDA's numbers are the process's own.
GpuName name_of_gpu(int number, const cudaDeviceProp& properties) {
  GpuName out;
  std::array<char, 32> bus{};
  if (cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), number) == cudaSuccess) {
    out.bus = bus.data();
  }
  out.uuid = "GPU-";
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (std::size_t i = 0; i < sizeof properties.uuid.bytes; ++i) {
    const auto byte = static_cast<unsigned char>(properties.uuid.bytes[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) out.uuid += '-';
    out.uuid += {kDigits[byte / 16], kDigits[byte % 16]};
  }
  return out;
}

/// Its ranks share what they need of a device; all of it goes with the last copy and rank.
MakeRank rank_maker() {
  return [sessions = std::make_shared<DeviceSessions>()](
             const Workload& workload, RankId rank, Transport& transport,
             const HostOptions& options) -> Result<std::unique_ptr<RankRunner>> {
    FT_ASSIGN(const int devices, count_cuda_devices());
    FT_ASSIGN(const int number, device_of(rank, devices));
    FT_ASSIGN(auto session, sessions->of(number));
    auto device = std::make_unique<CudaDevice>(workload, rank, transport, std::move(session));
    return std::unique_ptr<RankRunner>(
        std::make_unique<DeviceRank>(workload, rank, transport, options, std::move(device)));
  };
}

}  // namespace
}  // namespace foretrain

extern "C" __attribute__((visibility("default"))) void foretrain_open_cuda(
    foretrain::CudaModule& module, std::string& problem) {
  // Kernels that are loaded at their first launch wait for the whole device, and so for NCCL; but
  // loading all of them takes seconds. The driver looks once, before it can count devices or anyone
  // knows how many ranks there will be.
  const auto* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const bool several =
      foretrain::may_have_peers(foretrain::launched_ranks(), visible == nullptr ? "" : visible,
                                foretrain::count_device_files("/dev"));
  setenv("CUDA_MODULE_LOADING", several ? "EAGER" : "LAZY", 0);
  // Streams of a Program must not wait for each other: one that waits for another rank would hold
  // up what that rank waits for.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  const auto devices = foretrain::count_cuda_devices();
  if (!devices.ok()) {
    problem = devices.error().message;
    return;
  }
  module.devices = devices.value();
  for (int i = 0; i < module.devices; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) == cudaSuccess) {
      module.device_names.emplace_back(properties.name);
      module.gpus.push_back(foretrain::name_of_gpu(i, properties));
      if (i > 0) continue;
      module.cache_bytes = properties.l2CacheSize;
      module.sms = properties.multiProcessorCount;
      module.capability = 10 * properties.major + properties.minor;
    }
  }
  module.versions = foretrain::versions();
  module.cudnn = foretrain::has_cudnn();
  module.no_records = foretrain::no_records();
  module.make_rank = foretrain::rank_maker();
}
