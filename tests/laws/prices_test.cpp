// Do prices obey physics, and are they as close to measurements as docs/prices.md says?
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numbers>
#include <string>

#include "hardware/collective_cost.h"
#include "hardware/hardware_cost_model.h"
#include "hardware/local_cost.h"
#include "sim/base/rng.h"

namespace foretrain {
namespace {

Cluster cluster_of(const std::string& preset, std::int32_t accelerators) {
  Cluster cluster = read_cluster(Json(preset), "test", "").value();
  cluster.accelerators = accelerators;
  return cluster;
}

std::vector<RankId> strided(int count, int stride) {
  std::vector<RankId> out;
  for (int i = 0; i < count; ++i) out.emplace_back(i * stride);
  return out;
}

TEST(Prices, NoGemmBeatsThePeak) {
  for (const char* preset : {"dgx-a100-80gb", "dgx-h100", "dgx-b200", "l40s"}) {
    const DeviceSpec device = cluster_of(preset, 8).device;
    for (std::int64_t m = 1; m <= 65536; m *= 4) {
      for (std::int64_t k = 64; k <= 65536; k *= 4) {
        Gemm work;
        work.m = m;
        work.n = 4096;
        work.k = k;
        const Cost cost = gemm_cost(device, work, nullptr).value();
        const double flops = 2.0 * 4096 * static_cast<double>(m) * static_cast<double>(k);
        EXPECT_LE(flops / cost.duration.seconds() / 1e12, device.bf16_tflops);
        const double bytes =
            2.0 * (static_cast<double>(m * k) + 4096.0 * static_cast<double>(k + m));
        EXPECT_LE(bytes / cost.duration.seconds() / 1e9, device.memory_gb_per_s);
      }
    }
  }
}

// The expected slowest of n devices, against the mean of many drawn runs.
// A tile's begin and end wait for memory: in fp32, off the tensor cores and eight times slower,
// they take about as long as in fp16. A wave of 80 tiles, at two depths: the rest is arithmetic.
TEST(Prices, BeginAndEndOfATileAreNoArithmetic) {
  const Result<Json> json = parse_json(R"({"preset": "dgx-1v", "accelerators": 1})", "test");
  const Cluster cluster = read_cluster(json.value(), "test", "").value();
  const std::unique_ptr<CostModel> prices = make_cost_model(cluster, PriceOptions());
  const auto begin_and_end = [&prices](DType type) {
    const auto seconds = [&](std::int64_t k) {
      const Gemm work{1024, 1280, k, 1, false, true, false, type, type};
      return prices->price(Work{work}, {}).value().duration.seconds();
    };
    return 2 * seconds(8192) - seconds(16384);
  };
  EXPECT_GT(begin_and_end(DType::kFp32), 1e-6);
  EXPECT_NEAR(begin_and_end(DType::kFp32) / begin_and_end(DType::kFp16), 1, 0.25);
}

// An unfused attention multiplies in its type; off the tensor cores no faster than fp32 does.
TEST(Prices, AttentionMultipliesInItsTypeOrPlainly) {
  const std::unique_ptr<CostModel> prices =
      make_cost_model(cluster_of("dgx-a100-80gb", 1), PriceOptions());
  const auto seconds = [&prices](DType type, bool plain) {
    Attention work;
    work.batch = 8;
    work.q_heads = work.kv_heads = 16;
    work.q_len = work.kv_len = 2048;
    work.head_dim = 64;
    work.causal = false;
    work.kernel = AttentionKernel::kUnfused;
    work.dtype = type;
    work.plain = plain;
    return prices->price(Work{work}, {}).value().duration.seconds();
  };
  const double flops = 4.0 * 8 * 16 * 2048 * 2048 * 64;
  EXPECT_LT(seconds(DType::kFp16, false), seconds(DType::kTf32, false));
  EXPECT_LT(seconds(DType::kTf32, false), seconds(DType::kFp32, false));
  for (const DType type : {DType::kFp16, DType::kTf32, DType::kFp32}) {
    EXPECT_GT(seconds(type, true), flops / 19.5e12);
    EXPECT_LE(seconds(type, true), 1.01 * seconds(DType::kFp32, false));
  }
}

TEST(Prices, TheSlowestDeviceIsTheExpectedOne) {
  constexpr double kSpread = 0.015;
  EXPECT_DOUBLE_EQ(slowest_rate(1, kSpread), 1);
  EXPECT_DOUBLE_EQ(slowest_rate(4096, 0), 1);
  Rng rng(7);
  for (const int devices : {2, 8, 64, 1024}) {
    const int runs = 200'000 / devices;
    double sum = 0;
    for (int run = 0; run < runs; ++run) {
      double slowest = 1;
      for (int i = 0; i < devices; ++i) {
        const double radius = std::sqrt(-2 * std::log(1 - rng.uniform()));
        const double normal = radius * std::cos(2 * std::numbers::pi * rng.uniform());
        slowest = i == 0 ? 1 + kSpread * normal : std::min(slowest, 1 + kSpread * normal);
      }
      sum += slowest;
    }
    EXPECT_NEAR(slowest_rate(devices, kSpread), sum / runs, 0.1 * kSpread) << devices;
  }
}

// A run's products take as much longer as its slowest device is slower; kernels that move bytes do
// not, and on one device nothing does.
TEST(Prices, MoreDevicesWaitForASlowerOne) {
  const auto read = [](int accelerators, const char* spread) {
    const std::string text =
        R"({"preset": "dgx-h100", "accelerators": )" + std::to_string(accelerators) + spread + "}";
    return read_cluster(parse_json(text, "test").value(), "test", "").value();
  };
  Gemm gemm;
  gemm.m = gemm.n = gemm.k = 8192;
  const auto duration = [&gemm](const Cluster& cluster) {
    const Cost cost = gemm_cost(cluster.device, gemm, nullptr).value();
    return (cost.duration - cost.latency).seconds();
  };
  const double one = duration(read(1, ""));
  EXPECT_DOUBLE_EQ(duration(read(4096, R"(, "rate_spread": 0)")), one);
  EXPECT_NEAR(duration(read(8, R"(, "rate_spread": 0.03)")), one / slowest_rate(8, 0.03),
              1e-6 * one);
  double before = one;
  for (const int accelerators : {8, 64, 512, 4096}) {
    const double now = duration(read(accelerators, ""));
    EXPECT_GT(now, before);
    before = now;
  }
  EXPECT_LT(before, 1.07 * one);
}

TEST(Prices, DoublingARateSlowsNothing) {
  const Cluster cluster = cluster_of("dgx-h100", 64);
  std::vector<PriceOptions> faster(5);
  faster[0].compute_rate = 2;
  faster[1].memory_rate = 2;
  faster[2].scale_up_rate = 2;
  faster[3].network_rate = 2;
  faster[4].host_rate = 2;
  Gemm gemm;
  gemm.m = gemm.n = gemm.k = 4096;
  Attention attention;
  attention.q_heads = attention.kv_heads = 8;
  attention.q_len = attention.kv_len = 4096;
  attention.head_dim = 128;
  Attention unfused = attention;
  unfused.kernel = AttentionKernel::kUnfused;
  Kernel kernel;
  kernel.bytes = 1 << 28;
  Collective collective;
  collective.count = 1 << 26;
  Collective exchange = collective;
  exchange.kind = CollectiveKind::kAllToAll;
  Copy copy;
  copy.bytes = 1 << 28;
  const std::vector<Work> works = {gemm, attention, unfused, kernel, collective, exchange, copy};
  const auto base = make_cost_model(cluster, {});
  std::vector<bool> mattered(faster.size(), false);
  for (std::size_t option = 0; option < faster.size(); ++option) {
    const auto model = make_cost_model(cluster, faster[option]);
    for (const auto& group : {strided(8, 1), strided(8, 8), strided(64, 1)}) {
      const PlacementId at = base->place(group).value();
      ASSERT_EQ(at, model->place(group).value());
      for (const Work& work : works) {
        std::vector<PlacementId> places;
        if (std::holds_alternative<Collective>(work)) places.push_back(at);
        const Time slow = base->price(work, places).value().duration;
        const Time fast = model->price(work, places).value().duration;
        EXPECT_LE(fast, slow) << "option " << option << " work " << work.index();
        if (fast < slow) mattered[option] = true;
      }
    }
  }
  for (const bool matters : mattered) EXPECT_TRUE(matters);
}

}  // namespace
}  // namespace foretrain
