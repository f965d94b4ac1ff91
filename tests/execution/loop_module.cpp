// The CUDA module's way in, of GPUs that are loops on the host: FORETRAIN_LOOP_GPUS of them (1),
// which the driver calls FORETRAIN_LOOP_GPU ("NVIDIA H100 80GB HBM3").
#include <cstdlib>

#include "executor/cuda/device_rank.h"
#include "executor/cuda_module.h"
#include "tests/execution/loop_device.h"

namespace foretrain {
namespace {

std::string setting(const char* name, const char* usual) {
  const char* const value = std::getenv(name);
  return value == nullptr ? usual : value;
}

LoopGpu gpu_with_a_clock() {
  LoopGpu out;
  out.wall_clock = true;
  out.hold = [](int sms) {
    return sms < 132 ? ok_status() : Status(unsupported("there are no more SMs"));
  };
  out.release = [] { return ok_status(); };
  return out;
}

Result<std::unique_ptr<RankRunner>> make_rank(const Workload& workload, RankId rank,
                                              Transport& transport, const HostOptions& options) {
  return std::unique_ptr<RankRunner>(
      std::make_unique<DeviceRank>(workload, rank, transport, options,
                                   make_loop_device(rank, transport, 1, gpu_with_a_clock())));
}

}  // namespace
}  // namespace foretrain

extern "C" __attribute__((visibility("default"))) void foretrain_open_cuda(
    foretrain::CudaModule& module, std::string& problem) {
  module.devices = std::atoi(foretrain::setting("FORETRAIN_LOOP_GPUS", "1").c_str());
  if (module.devices < 1) {
    problem = "no CUDA device here (a GPU of loops that is switched off)";
    return;
  }
  for (int i = 0; i < module.devices; ++i) {
    module.device_names.push_back(
        foretrain::setting("FORETRAIN_LOOP_GPU", "NVIDIA H100 80GB HBM3"));
    module.gpus.push_back({"0000:0" + std::to_string(i) + ":00.0", "GPU-" + std::to_string(i)});
  }
  module.sms = 132;
  module.capability = 90;
  module.cache_bytes = 1 << 20;
  module.versions = "loops on the host";
  module.no_records = "loops have none";
  module.make_rank = foretrain::make_rank;
}
