// Is random content of buffers what it is said to be, the same on every backend?
#include "executor/fill.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "executor/cuda/device_rank.h"
#include "executor/cuda/fp8.h"
#include "executor/cuda/packing.h"
#include "executor/host_rank.h"
#include "executor/micro.h"
#include "tests/execution/loop_device.h"

namespace foretrain {
namespace {

constexpr std::int64_t kCount = 200'000;

std::vector<std::byte> content(DType type, const Fill& fill) {
  const Workload alone = micro_ranks(1);
  const auto transport = make_thread_transport(alone);
  const auto device = make_loop_device(RankId(0), *transport);
  std::vector<std::byte> out(static_cast<std::size_t>(bytes_of(type, kCount)));
  EXPECT_TRUE(device->fill_random(out.data(), type, kCount, fill).ok());
  return out;
}

/// As numbers, of any type.
std::vector<double> numbers(DType type, const Fill& fill) {
  const std::vector<std::byte> bytes = content(type, fill);
  std::vector<double> out;
  if (is_real(type)) {
    for (const float v : unpack(bytes, type)) out.push_back(static_cast<double>(v));
    return out;
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    const auto byte = static_cast<std::uint8_t>(bytes[type == DType::kInt64 ? 8 * i : i]);
    std::int64_t whole = 0;
    if (type == DType::kInt64) std::memcpy(&whole, bytes.data() + 8 * i, 8);
    if (type == DType::kUint8) whole = byte;
    out.push_back(type == DType::kFp8 ? static_cast<double>(from_e4m3(byte))
                                      : static_cast<double>(whole));
  }
  return out;
}

double mean_power(const std::vector<double>& values, int power) {
  double sum = 0;
  for (const double v : values) sum += std::pow(v, power);
  return sum / static_cast<double>(values.size());
}

// Mean 0, variance 1 (a little more where there are few bits), no skew, kurtosis 3 - 1.2/8; half of
// all are negative. Each limit is over four standard errors.
TEST(Fill, NormalNumbersOfEveryRealType) {
  for (const DType type : {DType::kFp32, DType::kTf32, DType::kBf16, DType::kFp16, DType::kFp8}) {
    SCOPED_TRACE(name_of(type));
    const std::vector<double> values = numbers(type, {7, true, 1});
    EXPECT_NEAR(mean_power(values, 1), 0, 0.01);
    EXPECT_NEAR(mean_power(values, 2), 1, 0.015);
    EXPECT_NEAR(mean_power(values, 3), 0, 0.04);
    EXPECT_NEAR(mean_power(values, 4), 2.85, 0.08);
    double negative = 0;
    double same_sign = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_LT(std::abs(values[i]), 5.01);
      negative += values[i] < 0 ? 1 : 0;
      same_sign += i > 0 && (values[i] < 0) == (values[i - 1] < 0) ? 1 : 0;
    }
    EXPECT_NEAR(negative / kCount, 0.5, 0.006);
    EXPECT_NEAR(same_sign / kCount, 0.5, 0.006);
  }
}

TEST(Fill, PositiveNumbersOfEveryRealType) {
  for (const DType type : {DType::kFp32, DType::kTf32, DType::kBf16, DType::kFp16, DType::kFp8}) {
    SCOPED_TRACE(name_of(type));
    const std::vector<double> values = numbers(type, {7, false, 1});
    for (const double v : values) ASSERT_TRUE(v >= 0.25 && v <= 0.75) << v;
    EXPECT_NEAR(mean_power(values, 1), 0.5, 0.002);
    EXPECT_NEAR(mean_power(values, 2), 0.25 + 1.0 / 48, 0.002);
  }
}

TEST(Fill, WholeNumbersAndFlags) {
  std::vector<double> seen(10, 0);
  for (const double v : numbers(DType::kInt64, {7, true, 10}))
    ++seen.at(static_cast<std::size_t>(v));
  for (const double times : seen) EXPECT_NEAR(times / kCount, 0.1, 0.004);
  const std::vector<double> flags = numbers(DType::kUint8, {7, true, 10});
  for (const double v : flags) ASSERT_TRUE(v == 0 || v == 1) << v;
  EXPECT_NEAR(mean_power(flags, 1), 0.5, 0.006);
}

TEST(Fill, SeedsTellContentsApart) {
  for (const DType type : {DType::kFp32, DType::kBf16, DType::kFp16, DType::kFp8, DType::kInt64}) {
    const Fill one{1, true, 1000};
    const Fill other{2, true, 1000};
    EXPECT_EQ(content(type, one), content(type, one));
    EXPECT_NE(content(type, one), content(type, other));
  }
}

// The host backend stores the same bits as a device.
TEST(Fill, HostRanksAreTheDevices) {
  const MicroOp micro =
      micro_gemm(Gemm{24, 16, 40, 1, false, true, false, DType::kFp32, DType::kFp32}, 1);
  const Workload workload = micro_workload(micro, 1, 2, 2);
  const auto transport = make_thread_transport(workload);
  HostRank<float> host(workload, RankId(0), *transport, {});
  DeviceRank device(workload, RankId(0), *transport, {}, make_loop_device(RankId(0), *transport));
  ASSERT_TRUE(host.set_up().ok());
  ASSERT_TRUE(device.set_up().ok());
  EXPECT_EQ(host.type_of(FrameId(0), 0), DType::kFp32);
  EXPECT_EQ(device.type_of(FrameId(0), 0), DType::kFp32);
  for (const bool normal : {true, false}) {
    const Fill fill{99, normal, 1};
    ASSERT_TRUE(host.fill_values(FrameId(0), 0, fill).ok());
    ASSERT_TRUE(device.fill_values(FrameId(0), 0, fill).ok());
    const auto there = device.values(FrameId(0));
    ASSERT_TRUE(there.ok());
    ASSERT_EQ(there.value().size(), 24U * 40U);
    EXPECT_EQ(std::memcmp(there.value().data(), host.memory().values(FrameId(0)),
                          there.value().size() * sizeof(float)),
              0);
  }
}

}  // namespace
}  // namespace foretrain
