// Are cuDNN's graphs of attention well-formed? The library checks shapes, types and wiring without
// a device; which engine takes a graph, and its numbers, only a device can tell.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "executor/cuda/cudnn_api.h"
#include "executor/cuda/cudnn_attention.h"
#include "tests/execution/device_plans.h"

namespace foretrain {
namespace {

Attention attention(std::int64_t q_heads, std::int64_t kv_heads, bool backward, bool causal) {
  Attention out;
  out.backward = backward;
  out.batch = 3;
  out.q_heads = q_heads;
  out.kv_heads = kv_heads;
  out.q_len = out.kv_len = 256;
  out.head_dim = 64;
  out.causal = causal;
  out.kernel = AttentionKernel::kCudnn;
  return out;
}

// Forward: product, scale; mask 4; max, minus, exp, sum, ln, add, over; product. Backward: sums 3;
// product, scale, minus, exp; mask 4; turned, product; product, minus, times, scale; turned,
// product; keys turned, product, copy; with grouped heads two sums over heads more.
TEST(CudnnGraph, FinishesWithoutADevice) {
  for (const DType type : {DType::kBf16, DType::kFp16}) {
    for (const bool causal : {true, false}) {
      for (const std::int64_t kv_heads : {8, 2, 1}) {
        for (const bool backward : {false, true}) {
          Attention work = attention(8, kv_heads, backward, causal);
          work.dtype = type;
          const auto made = build_cudnn_attention(work, nullptr);
          ASSERT_TRUE(made.ok()) << made.error().message << "\n" << text_of(Work{work});
          const std::size_t mask = causal ? 4 : 0;
          const std::size_t more = kv_heads < 8 ? 2 : 0;
          EXPECT_EQ(made.value()->graph.operations(), (backward ? 18 + more : 10) + mask);
          EXPECT_EQ(made.value()->runs, kv_heads == 8 ? 1 : 3);
        }
      }
    }
  }
}

// The graph is checked: keys of another length do not multiply.
TEST(CudnnGraph, WrongShapesAreFound) {
  ASSERT_TRUE(open_cudnn().ok());
  CudnnGraph graph;
  const auto a = graph.tensor({1, 1, 16, 64}, {1024, 1024, 64, 1}, CUDNN_DATA_HALF);
  const auto b = graph.tensor({1, 1, 32, 16}, {512, 512, 16, 1}, CUDNN_DATA_HALF);
  graph.matmul(a, b, graph.between({1, 1, 16, 16}));
  const Status status = graph.finish(nullptr);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("cuDNN: matmul"), std::string::npos)
      << status.error().message;
}

/// As cuDNN writes what it has read from a device of that capability.
std::string device_json(int capability, int sms, int shared_bytes) {
  const auto text = [](const char* name, std::int64_t value) {
    return "\"" + std::string(name) + "\":" + std::to_string(value);
  };
  std::string out = "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64]";
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, std::int64_t>>{
           {"regsPerBlock", 65536},
           {"multiProcessorCount", sms},
           {"warpSize", 32},
           {"maxSharedMemoryPerBlock", 49152},
           {"maxSharedMemoryPerBlockOptin", shared_bytes},
           {"reservedSharedMemoryPerBlock", 1024},
           {"maxRegistersPerSM", 65536},
           {"maxCtasPerSM", 32},
           {"maxThreadsPerBlock", 1024},
           {"maxThreadsPerSM", 2048},
           {"pciDeviceId", 0},
           {"isTccDriver", 0},
           {"supportCoopLaunch", 1},
           {"totalGlobalMem", std::int64_t{80} << 30},
           {"smClockRateKHz", 1980000},
           {"memClockRateKHz", 2619000},
           {"l2CacheSize", 52428800},
           {"cudaDeviceId", 0},
           {"deviceVer", 10 * capability},
           {"driverVer", 13000}}) {
    out += "," + text(name, value);
  }
  return out + ",\"deviceName\":\"described\"}";
}

/// Why no device can be described; the library wants a driver's library, if only the toolkit's
/// stub.
std::string why_no_description() {
  static const std::string why = [] {
    if (!open_cudnn().ok()) return std::string("no cuDNN");
    if (cudnn_api().get_version() < 90700) return std::string("cuDNN before 9.7");
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) != nullptr) return std::string();
    const std::string stub = FORETRAIN_STUB_OF_DRIVER;
    if (stub.empty()) return std::string("no driver, nor the toolkit's stub of it");
    return dlopen(stub.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr ? "" : std::string(dlerror());
  }();
  return why;
}

/// Engines that the heuristic has for it.
void expect_engines(Attention work, const std::string& device) {
  SCOPED_TRACE(text_of(Work{work}) + " on " + device);
  const auto made = build_cudnn_attention(work, nullptr);
  ASSERT_TRUE(made.ok()) << made.error().message;
  const auto engines = made.value()->graph.engines(device);
  ASSERT_TRUE(engines.ok()) << engines.error().message;
  EXPECT_GT(engines.value(), 0);
}

// Our graphs are those of fused attention to the library, whatever the shape.
TEST(CudnnGraph, AnH100HasEnginesForIt) {
  if (const std::string why = why_no_description(); !why.empty()) GTEST_SKIP() << why;
  const std::string h100 = device_json(90, 132, 232448);
  for (const bool backward : {false, true}) {
    for (const bool causal : {true, false}) {
      for (const std::int64_t kv_heads : {8, 2}) {
        for (const std::int64_t dim : {24, 64, 128}) {
          for (const std::int64_t length : {96, 1024, 4096}) {
            Attention work = attention(8, kv_heads, backward, causal);
            work.q_len = work.kv_len = length;
            work.head_dim = dim;
            expect_engines(work, h100);
          }
        }
      }
    }
  }
}

TEST(CudnnGraph, OtherDevicesHaveEnginesForIt) {
  if (const std::string why = why_no_description(); !why.empty()) GTEST_SKIP() << why;
  for (const bool backward : {false, true}) {
    const Attention work = attention(8, 8, backward, true);
    expect_engines(work, device_json(80, 108, 166912));
    expect_engines(work, device_json(100, 148, 232448));
    expect_engines(work, device_json(120, 170, 101376));
  }
}

// The heuristic refuses what no engine takes, heads that are no multiple of 8, and devices of which
// it is not told all.
TEST(CudnnGraph, TheHeuristicTellsWhatItDoesNotKnow) {
  if (const std::string why = why_no_description(); !why.empty()) GTEST_SKIP() << why;
  Attention work = attention(8, 8, false, true);
  EXPECT_FALSE(build_cudnn_attention(work, nullptr).value()->graph.engines("{}").ok());
  work.head_dim = 20;
  const auto engines =
      build_cudnn_attention(work, nullptr).value()->graph.engines(device_json(90, 132, 232448));
  EXPECT_TRUE(!engines.ok() || engines.value() == 0);
}

// Without a driver the handle is refused with a message.
TEST(CudnnGraph, SaysWhyItHasNoHandle) {
  const auto cudnn = Cudnn::create();
  if (cudnn.ok()) return;
  EXPECT_NE(cudnn.error().message.find("cuDNN: handle: CUDNN_STATUS_"), std::string::npos)
      << cudnn.error().message;
}

}  // namespace
}  // namespace foretrain
