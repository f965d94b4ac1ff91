// Does a GPU compute what the host does? Every kernel runs within plans that train on both. What
// needs a device is skipped, and says so, where there is none; loading and refusing is not.
#include "executor/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include "executor/calibrate.h"
#include "executor/cuda/packing.h"
#include "executor/cuda_module.h"
#include "executor/micro.h"
#include "executor/random.h"
#include "tests/execution/device_ops.h"
#include "tests/execution/device_plans.h"
#include "tests/execution/loop_device.h"

namespace foretrain {
namespace {

/// What tests share on each device, as ranks of the module do; gone before main returns.
std::unique_ptr<DeviceSessions>& sessions() {
  static std::unique_ptr<DeviceSessions> only;
  return only;
}
class SessionsOfTests final : public ::testing::Environment {
 public:
  void SetUp() override { sessions() = std::make_unique<DeviceSessions>(); }
  void TearDown() override { sessions().reset(); }
};
const auto* const kSessions = ::testing::AddGlobalTestEnvironment(new SessionsOfTests);

/// Rank r on device r.
Result<std::unique_ptr<Device>> cuda(const Workload& workload, RankId rank, Transport& transport) {
  FT_ASSIGN(auto session, sessions()->of(rank.value));
  return std::unique_ptr<Device>(
      std::make_unique<CudaDevice>(workload, rank, transport, std::move(session)));
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
      const auto made = cuda(alone, RankId(0), *transport);
      ASSERT_TRUE(made.ok()) << made.error().message;
      Device& device = *made.value();
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

/// Results of a product in fp8 that were read back, on one device.
std::vector<float> fp8_product(Device& device, const Gemm& work) {
  const MicroOp micro = micro_gemm(work, 1);
  std::vector<std::byte*> memory;
  for (std::size_t b = 0; b < micro.buffers.size(); ++b) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < micro.buffers[b].count; ++i) {
      values.push_back(uniform_at(7 + b, i) - 0.5);
    }
    const std::vector<std::byte> content = pack(values, micro.buffers[b].dtype);
    const auto taken = device.take(content.size());
    EXPECT_TRUE(taken.ok() && device.write(taken.value(), content.data(), content.size()).ok());
    if (!taken.ok()) return {};
    memory.push_back(taken.value());
  }
  const auto operand = [&](std::size_t b) {
    return Operand{memory[b], micro.buffers[b].count, 0, &micro.buffers[b]};
  };
  DeviceOperands x;
  x.reads = {operand(0), operand(1)};
  x.writes = {operand(2)};
  if (work.accumulate) x.reads.push_back(x.writes[0]);
  Status done = device.begin();
  if (done.ok()) done = device.compute(0, Work{work}, OpContext{}, x);
  if (done.ok()) done = device.finish();
  EXPECT_TRUE(done.ok()) << done.error().message;
  std::vector<std::byte> bytes(static_cast<std::size_t>(micro.buffers[2].bytes()));
  EXPECT_TRUE(device.read(bytes.data(), memory[2], bytes.size()).ok());
  return unpack(bytes, work.out);
}

// The loops' products are those of the numbers: fp8_test.cpp. Sums that stay in the tensor cores
// have 14 bits or so.
TEST(Cuda, ProductsInFp8AreTheLoops) {
  FT_NEEDS_DEVICE();
  if (!multiplies_fp8(open_cuda().value())) GTEST_SKIP() << "this device has no fp8";
  const Workload alone = micro_ranks(1);
  const auto transport = make_thread_transport(alone);
  const auto made = cuda(alone, RankId(0), *transport);
  ASSERT_TRUE(made.ok()) << made.error().message;
  Device& device = *made.value();
  const auto loops = make_loop_device(RankId(0), *transport);
  ASSERT_TRUE(loops->open(1, 0).ok());
  const Status open = device.open(1, 0);
  ASSERT_TRUE(open.ok()) << open.error().message;
  Gemm forward{64, 48, 256, 1, false, true, false, DType::kFp8, DType::kBf16};
  Gemm input = forward;
  input.transpose_b = false;
  input.split_accumulator = true;
  Gemm weights = input;
  weights.transpose_a = weights.accumulate = true;
  weights.out = DType::kFp32;
  for (const Gemm& work : {forward, input, weights}) {
    SCOPED_TRACE(text_of(Work{work}));
    const std::vector<float> here = fp8_product(device, work);
    const std::vector<float> there = fp8_product(*loops, work);
    ASSERT_EQ(here.size(), there.size());
    for (std::size_t i = 0; i < here.size(); ++i) EXPECT_NEAR(here[i], there[i], 0.05) << i;
  }
}

// What holds SMs lasts until it is let go, work beside it ends, and takes longer.
TEST(Cuda, HoldsSmsBesideWork) {
  FT_NEEDS_DEVICE();
  const CudaModule module = open_cuda().value();
  const Gemm work{4096, 4096, 1024, 1, false, true, false, DType::kBf16, DType::kBf16};
  CalibrateOptions options;
  options.seconds = 0.2;
  options.make_rank = module.make_rank;
  options.library = module.versions;
  options.gemm_rate = 5e13;
  std::vector<MicroOp> ops = {micro_gemm(work, 1), micro_gemm(work, 1), micro_gemm(work, 1)};
  ops[0].key.sms = 1;
  ops[1].key.sms = module.sms / 2;
  ops[2].key.sms = module.sms;  // none would be left
  Profile profile;
  profile.machine = Json{Json::Object{}};
  const auto whole = calibrate_threads(ops, 1, options, profile);
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  EXPECT_EQ(profile.find(ops[2].key), nullptr);
  const Sample* const little = profile.find(ops[0].key);
  const Sample* const half = profile.find(ops[1].key);
  ASSERT_TRUE(little != nullptr && half != nullptr);
  // Half of the SMs are left: at least a half more, and no ten times as long.
  EXPECT_GT(half->price_us(), 1.5 * half->alone_us);
  EXPECT_LT(half->price_us(), 10 * half->alone_us);
  EXPECT_LT(little->price_us() / little->alone_us, half->price_us() / half->alone_us);
}

// Both states of one large product are measured; what is sustained is no faster than a burst, but
// for what repeats differ by, and its clock no higher.
TEST(Cuda, BurstAndSustained) {
  FT_NEEDS_DEVICE();
  const CudaModule module = open_cuda().value();
  const Gemm work{8192, 8192, 8192, 1, false, true, false, DType::kBf16, DType::kBf16};
  CalibrateOptions options;
  options.make_rank = module.make_rank;
  options.library = module.versions;
  options.rotation = 4 * module.cache_bytes;
  options.gemm_rate = 5e13;
  auto state = make_nvml_state_reader(module.gpus.front());
  if (state.ok()) {
    options.state = std::move(state.value());
  } else {
    options.no_state = state.error().message;
  }
  std::vector<MicroOp> ops = {micro_gemm(work, 1), micro_gemm(work, 1)};
  ops[0].key.state = kBurst;
  ops[1].key.state = kSustained;
  Profile profile;
  profile.machine = Json{Json::Object{}};
  const auto whole = calibrate_threads(ops, 1, options, profile);
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  const Sample* const burst = profile.find(ops[0].key);
  const Sample* const sustained = profile.find(ops[1].key);
  ASSERT_TRUE(burst != nullptr && sustained != nullptr);
  EXPECT_GT(sustained->price_us(), 0.95 * burst->price_us());
  if (!burst->ran_at.clock_mhz || !sustained->ran_at.clock_mhz) {
    GTEST_SKIP() << "no clock: " << options.no_state;
  }
  EXPECT_LT(*sustained->ran_at.clock_mhz, 1.05 * *burst->ran_at.clock_mhz);
}

TEST(Cuda, NvmlReadsTheDevice) {
  FT_NEEDS_DEVICE();
  const CudaModule module = open_cuda().value();
  ASSERT_FALSE(module.gpus.empty());
  const auto reader = make_nvml_state_reader(module.gpus.front());
  if (!reader.ok()) GTEST_SKIP() << reader.error().message;
  const MachineState state = reader.value()->read();
  if (!reader.value()->missing().empty()) GTEST_SKIP() << reader.value()->missing();
  EXPECT_GT(*state.clock_mhz, 100);
  EXPECT_GT(*state.power_w, 5);
  EXPECT_GT(*state.temperature_c, 0);
  EXPECT_LT(*state.temperature_c, 120);
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
