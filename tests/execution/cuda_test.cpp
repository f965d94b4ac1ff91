// Does a GPU compute what the host does? Every kernel runs within plans that train on both. What
// needs a device is skipped, and says so, where there is none; loading and refusing is not.
#include "executor/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include "executor/cuda_module.h"
#include "executor/micro.h"
#include "tests/execution/device_ops.h"
#include "tests/execution/device_plans.h"
#include "tests/execution/loop_device.h"

namespace foretrain {
namespace {

Result<std::unique_ptr<Device>> cuda(const Workload& workload, RankId rank, Transport& transport) {
  return std::unique_ptr<Device>(
      std::make_unique<CudaDevice>(workload, rank, transport, rank.value));
}

std::string why_no_device() {
  const Result<int> devices = count_cuda_devices();
  return devices.ok() ? "" : devices.error().message;
}

#define FT_NEEDS_DEVICE() \
  if (const std::string why = why_no_device(); !why.empty()) GTEST_SKIP() << why

// Needs no device: the module loads, all its symbols are there, and it opens or says why not.
TEST(CudaModuleFile, LoadsAndSaysWhatIsMissing) {
  const Result<CudaModule> module = open_cuda();
  const std::string why = why_no_device();
  ASSERT_EQ(module.ok(), why.empty());
  if (module.ok()) {
    EXPECT_GT(module.value().devices, 0);
    EXPECT_TRUE(module.value().make_rank);
  } else {
    EXPECT_EQ(module.error().message, why);
    EXPECT_NE(why.find("CUDA"), std::string::npos);
  }
}

// Needs no device: without a driver the handle is refused with a message.
TEST(CudaModuleFile, BlasSaysWhyItHasNoHandle) {
  const auto blas = Blas::create();
  if (blas.ok()) return;
  EXPECT_NE(blas.error().message.find("cuBLASLt: handle: CUBLAS_STATUS_"), std::string::npos)
      << blas.error().message;
}

TEST(CudaModuleFile, TwoRanksOnOneDeviceAreRefused) {
  EXPECT_TRUE(device_of(RankId(0), 1).ok());
  const Result<int> second = device_of(RankId(1), 1);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("NCCL refuses two ranks on one"), std::string::npos);
}

/// Single operations of plans of one rank and of several.
std::vector<DeviceCase> operation_cases() {
  std::vector<DeviceCase> out = drawn_cases(4, 12);
  for (const std::vector<DeviceCase>& more : {expert_cases(), context_cases(), grid_cases()}) {
    out.insert(out.end(), more.begin(), more.end());
  }
  return out;
}

// The loops' operations are the host backend's: device_test.cpp, device_layers_test.cpp.
TEST(Cuda, EveryOperationIsTheLoops) {
  FT_NEEDS_DEVICE();
  const std::pair<DType, double> types[] = {
      {DType::kFp32, 1e-4}, {DType::kBf16, 0x1.0p-6}, {DType::kFp16, 0x1.0p-9}};
  for (const auto& [type, tolerance] : types) {
    for (const DeviceCase& one : operation_cases()) {
      SCOPED_TRACE(one.name);
      const Workload workload = lowered(one, type);
      const Workload alone = micro_ranks(1);  // no communication
      const auto transport = make_thread_transport(alone);
      CudaDevice device(alone, RankId(0), *transport, 0);
      const auto loops = make_loop_device(RankId(0), *transport);
      ASSERT_TRUE(loops->open(1, 0).ok());
      const Status open = device.open(1, 0);
      ASSERT_TRUE(open.ok()) << open.error().message;
      expect_ops_alike(workload, *loops, device, tolerance, true);
    }
  }
}

TEST(Cuda, TrainsLikeTheHostInFp32) {
  FT_NEEDS_DEVICE();
  for (const DeviceCase& one : single_rank_cases()) {
    expect_trains_like_host(one, DType::kFp32, cuda, {});
  }
}

TEST(Cuda, DrawnSizesTrainLikeTheHost) {
  FT_NEEDS_DEVICE();
  for (const DeviceCase& one : drawn_cases(2, 30)) {
    expect_trains_like_host(one, DType::kFp32, cuda, {});
  }
}

TEST(Cuda, TrainsLikeTheHostInHalves) {
  FT_NEEDS_DEVICE();
  for (const DeviceCase& one : single_rank_cases()) {
    expect_trains_like_host(one, DType::kBf16, cuda, kBf16Tolerance);
    expect_trains_like_host(one, DType::kFp16, cuda, kFp16Tolerance);
  }
}

TEST(Cuda, ExpertsTrainLikeTheHosts) {
  FT_NEEDS_DEVICE();
  for (const DeviceCase& one : expert_cases()) {
    expect_trains_like_host(one, DType::kFp32, cuda, {});
    if (one.plan.experts.routing != Routing::kBalanced) continue;  // as on loops
    expect_trains_like_host(one, DType::kBf16, cuda, kBf16Tolerance);
    expect_trains_like_host(one, DType::kFp16, cuda, kFp16Tolerance);
  }
}

TEST(Cuda, OffloadedPlansTrainLikeTheHost) {
  FT_NEEDS_DEVICE();
  for (const DeviceCase& one : offload_cases(1)) {
    expect_trains_like_host(one, DType::kFp32, cuda, {});
    expect_trains_like_host(one, DType::kFp32, cuda, {}, true);
    expect_trains_like_host(one, DType::kBf16, cuda, kBf16Tolerance);
  }
}

// The ops of a step as CUDA graphs.
TEST(Cuda, GraphsTrainLikeTheHost) {
  FT_NEEDS_DEVICE();
  for (const DeviceCase& one : single_rank_cases()) {
    expect_trains_like_host(one, DType::kFp32, cuda, {}, true);
  }
}

TEST(Cuda, CudnnAttentionTrainsLikeTheHost) {
  FT_NEEDS_DEVICE();
  if (!open_cuda().value().cudnn) GTEST_SKIP() << "built without cuDNN";
  for (const DeviceCase& one : cudnn_cases()) {
    expect_trains_like_host(one, DType::kBf16, cuda, kBf16Tolerance);
    expect_trains_like_host(one, DType::kFp16, cuda, kFp16Tolerance);
  }
}

TEST(Cuda, RanksOnSeveralDevicesTrainLikeTheHost) {
  FT_NEEDS_DEVICE();
  const int devices = count_cuda_devices().value();
  int ran = 0;
  std::vector<DeviceCase> all = many_rank_cases();
  for (const std::vector<DeviceCase>& more :
       {expert_rank_cases(), offload_cases(2), context_cases(), grid_cases()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  for (const DeviceCase& one : all) {
    if (one.plan.accelerators > devices) continue;
    ++ran;
    expect_trains_like_host(one, DType::kFp32, cuda, {});
  }
  if (ran == 0) GTEST_SKIP() << "NCCL needs a device for every rank; here is one";
}

}  // namespace
}  // namespace foretrain
