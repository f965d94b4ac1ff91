// Are cuDNN's graphs of attention well-formed? The library checks shapes, types and wiring without
// a device; which engine takes a graph, and its numbers, only a device can tell.
#include <gtest/gtest.h>

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

// Without a driver the handle is refused with a message.
TEST(CudnnGraph, SaysWhyItHasNoHandle) {
  const auto cudnn = Cudnn::create();
  if (cudnn.ok()) return;
  EXPECT_NE(cudnn.error().message.find("cuDNN: handle: CUDNN_STATUS_"), std::string::npos)
      << cudnn.error().message;
}

}  // namespace
}  // namespace foretrain
