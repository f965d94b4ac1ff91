// Products in fp8: are numbers stored right, are operands taken as Programs cast them, and are the
// products of Programs among what is measured?
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "executor/calibrate.h"
#include "executor/cuda/compute.h"
#include "executor/cuda/device_rank.h"
#include "executor/cuda/fp8.h"
#include "executor/random.h"
#include "models/lower.h"
#include "tests/execution/loop_device.h"
#include "tools/calibrate/calibration.h"
#include "tools/predict/run_file.h"

namespace foretrain {
namespace {

// Every number of 8 bits is itself; what lies between two goes to the nearer, half way to the even.
TEST(Fp8, ToTheNearest) {
  for (int bits = 0; bits < 256; ++bits) {
    const auto byte = static_cast<std::uint8_t>(bits);
    const float value = from_e4m3(byte);
    if (std::isnan(value)) continue;
    EXPECT_EQ(to_e4m3(value), byte) << value;
    if ((byte & 0x7f) >= 0x7e) continue;
    const float next = from_e4m3(static_cast<std::uint8_t>(byte + 1));
    EXPECT_GT(std::abs(next), std::abs(value));
    const float middle = (value + next) / 2;
    EXPECT_EQ(to_e4m3(middle), (byte & 1) == 0 ? byte : byte + 1) << middle;
    EXPECT_EQ(to_e4m3(std::nextafterf(middle, next)), byte + 1) << middle;
  }
  EXPECT_EQ(from_e4m3(0x7e), 448.0F);
  EXPECT_EQ(from_e4m3(0x38), 1.0F);
  EXPECT_EQ(from_e4m3(0x01), 0x1.0p-9F);
  EXPECT_EQ(from_e4m3(to_e4m3(1e9F)), 448.0F);
  EXPECT_EQ(from_e4m3(to_e4m3(-std::numeric_limits<float>::infinity())), -448.0F);
  EXPECT_TRUE(std::isnan(from_e4m3(to_e4m3(std::nanf("")))));
  EXPECT_EQ(from_e5m2(0x3c), 1.0F);
  EXPECT_EQ(from_e5m2(0xc2), -3.0F);
}

struct OneProduct {
  Gemm work;
  std::vector<std::uint8_t> a, b;
  std::vector<float> c;
};

/// The product on a loop device, into fp32; `c` is what was there before.
std::vector<float> multiplied(OneProduct& p) {
  const Workload alone = micro_ranks(1);
  const auto transport = make_thread_transport(alone);
  const auto device = make_loop_device(RankId(0), *transport);
  EXPECT_TRUE(device->open(1, 0).ok());
  const MicroOp micro = micro_gemm(p.work, 1);
  const auto operand = [&micro](void* data, std::size_t count, std::size_t buffer) {
    return Operand{static_cast<std::byte*>(data), static_cast<std::int64_t>(count), 0,
                   &micro.buffers[buffer]};
  };
  DeviceOperands x;
  x.reads = {operand(p.a.data(), p.a.size(), 0), operand(p.b.data(), p.b.size(), 1)};
  x.writes = {operand(p.c.data(), p.c.size(), 2)};
  if (p.work.accumulate) x.reads.push_back(x.writes[0]);
  EXPECT_TRUE(device->begin().ok());
  EXPECT_TRUE(device->compute(0, Work{p.work}, OpContext{}, x).ok());
  EXPECT_TRUE(device->finish().ok());
  return p.c;
}

std::vector<std::uint8_t> drawn(std::int64_t count, std::uint64_t key) {
  std::vector<std::uint8_t> out;
  for (std::int64_t i = 0; i < count; ++i) {
    out.push_back(to_e4m3(static_cast<float>(uniform_at(key, i) - 0.5)));
  }
  return out;
}

/// sum over l of A[i,l] B[j,l] of one of the batch; A in e5m2 in backward passes.
double sum_of(const OneProduct& p, std::int64_t batch, std::int64_t i, std::int64_t j) {
  const Gemm& w = p.work;
  double sum = 0;
  for (std::int64_t l = 0; l < w.k; ++l) {
    const std::uint8_t a = p.a[static_cast<std::size_t>((batch * w.m + i) * w.k + l)];
    const std::uint8_t b = p.b[static_cast<std::size_t>((batch * w.n + j) * w.k + l)];
    sum += static_cast<double>(w.split_accumulator ? from_e5m2(a) : from_e4m3(a)) *
           static_cast<double>(from_e4m3(b));
  }
  return sum;
}

// C[i,j] = C[i,j] + sum over l of A[i,l] B[j,l], whatever layout the Gemm of a Program names; in
// backward passes A is a gradient, in e5m2.
TEST(Fp8, ProductsTakeWhatProgramsCast) {
  Gemm forward{4, 3, 5, 2, false, true, false, DType::kFp8, DType::kFp32};
  Gemm input = forward;
  input.transpose_b = false;
  input.split_accumulator = true;
  Gemm weights = input;
  weights.transpose_a = weights.accumulate = true;
  for (const Gemm& work : {forward, input, weights}) {
    OneProduct p{work, drawn(2 * 4 * 5, 1), drawn(2 * 3 * 5, 2), {}};
    p.c.assign(2 * 4 * 3, 0.75F);
    const std::vector<float> c = multiplied(p);
    for (std::int64_t at = 0; at < 2 * 4 * 3; ++at) {
      const double before = work.accumulate ? 0.75 : 0;
      EXPECT_NEAR(c[static_cast<std::size_t>(at)], before + sum_of(p, at / 12, at / 3 % 4, at % 3),
                  1e-5)
          << text_of(Work{work});
    }
  }
}

// Fast sums are what forward passes ask for; a product that nobody describes has none.
TEST(Fp8, SumsStayInTheTensorCoresInForwardPassesOnly) {
  EXPECT_FALSE(Product{}.fast_sums);
  Gemm work{16, 16, 16, 1, false, true, false, DType::kFp8, DType::kBf16};
  const MicroOp micro = micro_gemm(work, 1);
  DeviceOperands x;
  x.reads = {Operand{nullptr, 256, 0, &micro.buffers[0]},
             Operand{nullptr, 256, 0, &micro.buffers[1]}};
  x.writes = {Operand{nullptr, 256, 0, &micro.buffers[2]}};
  EXPECT_TRUE(device::product_of(work, x).fast_sums);
  work.split_accumulator = true;
  EXPECT_FALSE(device::product_of(work, x).fast_sums);
  EXPECT_TRUE(device::product_of(work, x).a_is_e5m2);
}

// Products of a model in fp8 that `calibrate` takes are found again when a Program asks.
TEST(Fp8, ProductsOfProgramsAreMeasured) {
  const auto ops = calibration_ops({1, true, true, true, 132});
  ASSERT_TRUE(ops.ok()) << ops.error().message;
  std::vector<MicroOp> few;  // small enough for loops
  Profile profile;
  profile.machine = Json{Json::Object{}};
  profile.machine.set("blas", "loops");
  std::size_t besides = 0;
  for (const MicroOp& op : ops.value()) {
    if (op.key.sms > 0) ++besides;
    const auto* gemm = std::get_if<Gemm>(&op.work);
    if (gemm == nullptr || gemm->in != DType::kFp8 || op.key.sms > 0) continue;
    EXPECT_EQ(gemm->m % 16 + gemm->n % 16 + gemm->k % 16, 0) << op.key.shape;
    EXPECT_EQ(op.key.state, kSustained);
    Sample sample;
    sample.key = op.key;
    sample.size = sample_size(op.work);
    sample.library = "loops";
    sample.count = 10;
    sample.median_us = 100;
    profile.add(sample);
  }
  EXPECT_EQ(besides, 16U);  // four ops beside 8 and 24 SMs that copy, and that spin
  const auto run = load_run(
      "llama-small-host",
      {"model.hidden_size=1024", "model.num_attention_heads=16", "model.intermediate_size=3072",
       "batch.sequence=2048", "batch.micro=2", "batch.global=8",
       "model.max_position_embeddings=2048", "kernels.attention=\"flash\"", "precision=\"fp8\"",
       R"(cluster={"preset": "dgx-h100", "accelerators": 1})"});
  ASSERT_TRUE(run.ok()) << run.error().message;
  const ProfileTable table(profile);
  std::size_t products = 0;
  for (const MicroOp& op : distinct_ops(lower(run.value().model, run.value().plan))) {
    const auto* gemm = std::get_if<Gemm>(&op.work);
    if (gemm == nullptr) continue;
    const auto price = table.price(op.work, 1);
    ASSERT_EQ(price.ok(), gemm->in == DType::kFp8) << op.key.shape;  // others have no sample
    if (!price.ok()) continue;
    ++products;
    EXPECT_EQ(price.value().provenance, Provenance::kMeasured) << op.key.shape;
    EXPECT_DOUBLE_EQ(price.value().seconds, 100e-6);
  }
  EXPECT_GE(products, 9U);
  // Where the device has no fp8 nothing of it is tried.
  const auto without = calibration_ops({1, true, true, false, 132});
  ASSERT_TRUE(without.ok());
  for (const MicroOp& op : without.value()) {
    for (const Buffer& buffer : op.buffers) EXPECT_NE(buffer.dtype, DType::kFp8) << op.key.shape;
  }
}

// Ranks of devices fill operands in 8 bits and multiply them, one by one; a Program in fp8 is
// refused all the same.
TEST(Fp8, IsMeasuredButNotExecuted) {
  CalibrateOptions options;
  options.seconds = 0.001;
  options.rotation = 1 << 12;
  options.library = "loops";
  options.gemm_rate = options.byte_rate = 1e8;
  options.make_rank = [](const Workload& of, RankId rank, Transport& transport,
                         const HostOptions& how) {
    return Result<std::unique_ptr<RankRunner>>(
        std::make_unique<DeviceRank>(of, rank, transport, how, make_loop_device(rank, transport)));
  };
  Gemm work{16, 32, 16, 1, true, false, true, DType::kFp8, DType::kFp32};
  work.split_accumulator = true;
  const MicroOp micro = micro_gemm(work, 1);
  Profile profile;
  profile.machine = Json{Json::Object{}};
  const auto whole = calibrate_threads({micro}, 1, options, profile);
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  ASSERT_NE(profile.find(micro.key), nullptr);
  EXPECT_EQ(profile.find(micro.key)->dtype, "fp8");
  const Status refused = check_device_executable(micro_workload(micro, 1, 2, 1));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("fp8"), std::string::npos);
}

}  // namespace
}  // namespace foretrain
