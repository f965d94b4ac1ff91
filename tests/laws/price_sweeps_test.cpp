// Within one kernel and one alignment a price never falls when bytes or FLOPs grow, and none beats
// the device: sweeps of GEMMs and attention over every device and type.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "hardware/gemm_formula.h"
#include "hardware/local_cost.h"
#include "hardware/presets.h"

namespace foretrain {
namespace {

std::vector<DeviceSpec> all_devices() {
  std::vector<DeviceSpec> out;
  for (const std::string& name : device_preset_names()) {
    out.push_back(read_device(Json(name), "test", "").value());
  }
  return out;
}

/// From `step` to `most`, 4 % or a step apart.
std::vector<std::int64_t> sizes(std::int64_t step, std::int64_t most) {
  std::vector<std::int64_t> out;
  for (std::int64_t x = step; x <= most; x = std::max(x + step, x * 104 / 100 / step * step)) {
    out.push_back(x);
  }
  return out;
}

/// A sweep: the largest ratio by which a price is below that of less work.
class Sweep {
 public:
  explicit Sweep(double tolerance) : x_tolerance(tolerance) {}
  void next(double seconds, const std::string& what) {
    EXPECT_GE(seconds, x_before * (1 - x_tolerance)) << what;
    x_before = seconds;
  }

 private:
  double x_tolerance;
  double x_before = 0;
};

constexpr DType kTypes[] = {DType::kFp32, DType::kTf32, DType::kBf16, DType::kFp16,
                            DType::kFp8,  DType::kFp4,  DType::kInt8};

Gemm product(std::int64_t m, std::int64_t n, std::int64_t k, int pass, DType type) {
  Gemm out{m, n, k, 1, pass == 2, pass == 0};
  out.in = type;
  out.out = pass == 2 ? DType::kFp32 : DType::kBf16;
  out.accumulate = pass == 2;
  return out;
}

void expect_physical(const DeviceSpec& device, const Gemm& work, const Cost& cost) {
  const double busy = (cost.duration - cost.latency).seconds();
  const double flops = flops_of(Work{work});
  EXPECT_LE(flops / 1e12, busy * peak_tflops(device, work.in) * 1.0001) << device.name;
  const auto m = static_cast<double>(work.m), n = static_cast<double>(work.n),
             k = static_cast<double>(work.k), batch = static_cast<double>(work.batch);
  const double bytes = batch * (bits_of(work.in) / 8.0 * (m * k + n * k) +
                                bits_of(work.out) / 8.0 * m * n * (work.accumulate ? 2 : 1));
  EXPECT_LE(bytes / 1e9, busy * device.memory_gb_per_s * 1.0001)
      << device.name << " " << work.m << "x" << work.n << "x" << work.k;
}

// The law alone, and with samples: those of one table contradict each other, and their corrections
// fade by steps of 256 where tiles are of 128, which lets 1 % through.
TEST(PriceSweeps, GemmsNeverFall) {
  for (const DeviceSpec& device : all_devices()) {
    const bool sampled = device.architecture == Architecture::kAmpere ||
                         device.architecture == Architecture::kBlackwell;
    for (const DType type : kTypes) {
      if (!gemm_cost(device, product(1024, 1024, 1024, 0, type), nullptr).ok()) continue;
      const double tolerance = sampled && bits_of(type) == 16 ? 0.015 : 1e-6;
      for (int pass = 0; pass < 3; ++pass) {
        for (const std::int64_t a : {64, 576, 1024, 4096, 14336}) {
          for (const std::int64_t b : {512, 4096, 7168}) {
            const std::vector<std::function<Gemm(std::int64_t)>> ways = {
                [&](std::int64_t x) { return product(x, a, b, pass, type); },
                [&](std::int64_t x) { return product(a, x, b, pass, type); },
                [&](std::int64_t x) { return product(a, b, x, pass, type); }};
            for (const auto& way : ways) {
              Sweep sweep(tolerance);
              for (const std::int64_t x : sizes(64, 40000)) {
                const Gemm work = way(x);
                const Cost cost = gemm_cost(device, work, nullptr).value();
                sweep.next(cost.duration.seconds(),
                           device.name + " " + std::string(name_of(type)) + " pass " +
                               std::to_string(pass) + " " + std::to_string(work.m) + "x" +
                               std::to_string(work.n) + "x" + std::to_string(work.k));
                expect_physical(device, work, cost);
              }
            }
            // From two products on: samples are of single ones.
            Sweep sweep(1e-6);
            for (std::int64_t batch = 2; batch <= 64; ++batch) {
              Gemm work = product(a, b, 512, pass, type);
              work.batch = batch;
              sweep.next(gemm_cost(device, work, nullptr).value().duration.seconds(),
                         device.name + " batch " + std::to_string(batch));
            }
          }
        }
      }
    }
  }
}

Attention heads_of(AttentionKernel kernel, bool backward, bool causal, DType type) {
  Attention out;
  out.kernel = kernel;
  out.backward = backward;
  out.causal = causal;
  out.dtype = type;
  out.q_heads = out.kv_heads = 16;
  out.q_len = out.kv_len = 4096;
  out.head_dim = 128;
  return out;
}

/// FLOPs that the mask leaves, over the device's peak.
void expect_below_peak(const DeviceSpec& device, const Attention& work, const Cost& cost) {
  const double busy = (cost.duration - cost.latency).seconds();
  EXPECT_LE(flops_of(Work{work}) / 1e12, busy * peak_tflops(device, work.dtype)) << device.name;
}

using Change = std::function<void(Attention&, std::int64_t)>;
struct Growth {
  const char* what;
  std::vector<std::int64_t> sizes;
  Change change;
};

std::vector<Growth> growths() {
  std::vector<std::int64_t> few;
  for (std::int64_t x = 1; x <= 160; ++x) few.push_back(x);
  return {
      {"length", sizes(8, 140000), [](Attention& a, std::int64_t x) { a.q_len = a.kv_len = x; }},
      {"length of 2 heads", sizes(8, 140000),
       [](Attention& a, std::int64_t x) {
         a.q_len = a.kv_len = x;
         a.q_heads = a.kv_heads = 2;
       }},
      {"queries", sizes(8, 40000),
       [](Attention& a, std::int64_t x) {
         a.q_len = x;
         a.causal = false;
       }},
      {"keys", sizes(8, 40000),
       [](Attention& a, std::int64_t x) {
         a.kv_len = x;
         a.causal = false;
       }},
      {"heads", few, [](Attention& a, std::int64_t x) { a.q_heads = a.kv_heads = x; }},
      {"batch of 512", few,
       [](Attention& a, std::int64_t x) {
         a.batch = x;
         a.q_len = a.kv_len = 512;
       }},
      {"width", sizes(8, 320), [](Attention& a, std::int64_t x) { a.head_dim = x; }},
      {"width of values", sizes(8, 256),
       [](Attention& a, std::int64_t x) {
         a.head_dim = 256;
         a.value_dim = x;
       }},
      {"window", sizes(64, 4096), [](Attention& a, std::int64_t x) { a.window = x; }},
  };
}

TEST(PriceSweeps, AttentionNeverFalls) {
  for (const DeviceSpec& device : all_devices()) {
    const DType type = device.bf16_tflops > 0 ? DType::kBf16 : DType::kFp16;
    for (const AttentionKernel kernel :
         {AttentionKernel::kFlash, AttentionKernel::kCudnn, AttentionKernel::kUnfused,
          AttentionKernel::kFlash2, AttentionKernel::kFlash1, AttentionKernel::kTriton}) {
      for (const bool backward : {false, true}) {
        for (const bool causal : {false, true}) {
          const Attention base = heads_of(kernel, backward, causal, type);
          if (!attention_cost(device, base, nullptr).ok()) continue;
          for (const Growth& growth : growths()) {
            Sweep sweep(1e-6);
            for (const std::int64_t x : growth.sizes) {
              Attention work = base;
              growth.change(work, x);
              const Cost cost = attention_cost(device, work, nullptr).value();
              sweep.next(cost.duration.seconds(), device.name + " " + std::string(name_of(kernel)) +
                                                      " " + growth.what + " " + std::to_string(x));
              expect_below_peak(device, work, cost);
            }
          }
        }
      }
    }
  }
}

// A causal mask is no dearer than none, a window no dearer than the mask without it: also where
// blocks are few, so that the longest of them sets the time.
TEST(PriceSweeps, AMaskCostsNothing) {
  for (const DeviceSpec& device : all_devices()) {
    const DType type = device.bf16_tflops > 0 ? DType::kBf16 : DType::kFp16;
    for (const AttentionKernel kernel : {AttentionKernel::kFlash, AttentionKernel::kCudnn}) {
      for (const bool backward : {false, true}) {
        for (const std::int64_t heads : {2, 8, 33}) {
          for (const std::int64_t length : {128, 194, 513, 1024, 2048, 8192}) {
            Attention work = heads_of(kernel, backward, false, type);
            work.q_heads = work.kv_heads = heads;
            work.q_len = work.kv_len = length;
            if (!attention_cost(device, work, nullptr).ok()) continue;
            const auto takes = [&device](const Attention& a) {
              return attention_cost(device, a, nullptr).value().duration;
            };
            const Time full = takes(work);
            work.causal = true;
            const Time causal = takes(work);
            EXPECT_LE(causal, full) << device.name << " " << heads << " " << length;
            for (const std::int64_t window : {4, 64, 200}) {
              work.window = window;
              EXPECT_LE(takes(work), causal) << device.name << " " << length << " " << window;
            }
          }
        }
      }
    }
  }
}

// A hundred and twenty-eight tokens are one block of queries, eight more begin another: BERT's
// backward on A100 grew cheaper by it.
TEST(PriceSweeps, ASecondBlockOfQueriesIsNoCheaper) {
  const DeviceSpec device = read_device(Json("a100-sxm-80gb"), "test", "").value();
  const auto seconds = [&device](std::int64_t length) {
    Attention work = heads_of(AttentionKernel::kFlash, true, false, DType::kFp16);
    work.batch = 8;
    work.head_dim = 64;
    work.q_len = work.kv_len = length;
    return attention_cost(device, work, nullptr).value().duration.seconds();
  };
  EXPECT_LE(seconds(128), seconds(136));
  EXPECT_LE(seconds(256), seconds(264));
  EXPECT_LT(seconds(136), 1.2 * seconds(128));
}

// Heads are padded to the next width that a kernel is made for, no further.
TEST(PriceSweeps, HeadsArePaddedToTheKernels) {
  const DeviceSpec device = read_device(Json("h100-sxm-80gb"), "test", "").value();
  const auto seconds = [&device](std::int64_t width) {
    Attention work = heads_of(AttentionKernel::kCudnn, false, false, DType::kBf16);
    work.head_dim = width;
    return attention_cost(device, work, nullptr).value().duration.seconds();
  };
  EXPECT_DOUBLE_EQ(seconds(72), seconds(96));
  EXPECT_LT(seconds(96), 0.95 * seconds(128));
  EXPECT_LT(seconds(64), 0.95 * seconds(72));
  EXPECT_DOUBLE_EQ(seconds(40), seconds(64));
}

// Queries wider than values: where scores are stored one of two products is narrower forward, two
// of four backward, and no pass over the scores is.
TEST(PriceSweeps, StoredScoresMultiplyValuesAsWideAsTheyAre) {
  const DeviceSpec device = read_device(Json("gb200-186gb"), "test", "").value();
  for (const bool backward : {false, true}) {
    const auto microseconds = [&](std::int64_t keys, std::int64_t values) {
      Attention work = heads_of(AttentionKernel::kUnfused, backward, false, DType::kBf16);
      work.q_len = work.kv_len = 4096;
      work.head_dim = keys;
      work.value_dim = values;
      return attention_cost(device, work, nullptr).value().duration.us();
    };
    const double wide = microseconds(256, 256), narrow = microseconds(128, 128);
    EXPECT_LT(narrow, wide);
    EXPECT_NEAR(microseconds(256, 128), (wide + narrow) / 2, 0.05 * wide) << backward;
  }
}

// An odd sample (4096 x 4096 x 7168 on B200, 1.4 times the law) makes no larger product cheaper.
TEST(PriceSweeps, AnOddSampleFades) {
  const DeviceSpec device = read_device(Json("b200-sxm-180gb"), "test", "").value();
  const auto seconds = [&device](std::int64_t k) {
    return gemm_cost(device, product(4096, 4096, k, 0, DType::kBf16), nullptr)
        .value()
        .duration.seconds();
  };
  EXPECT_LE(seconds(7168), seconds(7200));
  EXPECT_LE(seconds(7200), seconds(7424));
  EXPECT_LE(seconds(7136), seconds(7168));
}

}  // namespace
}  // namespace foretrain
