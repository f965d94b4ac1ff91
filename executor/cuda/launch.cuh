// The launcher of device_view.h on CUDA: functors become kernels on one stream.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "executor/cuda/device_view.h"
#include "executor/cuda/launch_support.h"

namespace foretrain::device {

/// A block of threads. Every thread of it calls sum, max and sync.
class BlockTeam {
 public:
  __device__ BlockTeam(float* shared, double* sums) : x_shared(shared), x_sums(sums) {}
  __device__ std::int64_t rank() const { return threadIdx.x; }
  __device__ std::int64_t size() const { return blockDim.x; }
  __device__ void sync() const { __syncthreads(); }
  __device__ float* shared() const { return x_shared; }
  template <typename V>
  __device__ V sum(V v) {
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffU, v, step);
    return over_warps(v, [](V a, V b) { return a + b; });
  }
  __device__ float max(float v) {
    for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffU, v, step));
    return over_warps(v, [](float a, float b) { return fmaxf(a, b); });
  }

 private:
  /// Of one number a warp, in the order of the warps.
  template <typename V, typename Of>
  __device__ V over_warps(V v, Of of) {
    __syncthreads();  // what the last call left has been read
    V* const slots = reinterpret_cast<V*>(x_sums);
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = v;
    __syncthreads();
    V out = slots[0];
    for (unsigned w = 1; w < blockDim.x / 32; ++w) out = of(out, slots[w]);
    return out;
  }

  float* x_shared;
  double* x_sums;
};

template <typename F>
__global__ void over_elements(std::int64_t n, F f) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += stride) {
    f(i);
  }
}

template <typename F>
__global__ void over_rows(std::int64_t n, F f) {
  extern __shared__ float shared[];
  __shared__ double sums[32];
  BlockTeam team(shared, sums);
  for (std::int64_t i = blockIdx.x; i < n; i += gridDim.x) {
    f(team, i);
    __syncthreads();  // the next one uses the same memory
  }
}

class CudaLauncher {
 public:
  CudaLauncher(LaunchSupport& support, cudaStream_t stream, std::size_t index)
      : x_support(support), x_stream(stream), x_index(index) {}

  template <typename F>
  void elements(std::int64_t n, const F& f) {
    constexpr int kThreads = 256;
    if (n <= 0) return;
    const std::int64_t blocks = std::min<std::int64_t>((n + kThreads - 1) / kThreads, 1 << 20);
    over_elements<F><<<static_cast<unsigned>(blocks), kThreads, 0, x_stream>>>(n, f);
    note("kernel over elements", cudaGetLastError());
  }
  template <typename F>
  void rows(std::int64_t n, const F& f, std::size_t floats = 0) {
    constexpr int kThreads = kMostWorkers;
    constexpr std::size_t kUsual = 48 << 10;
    if (n <= 0) return;
    const std::size_t bytes = floats * sizeof(float);
    if (bytes > kUsual - 1024) {
      note("memory of a block",
           cudaFuncSetAttribute(over_rows<F>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(bytes)));
    }
    const std::int64_t blocks = std::min<std::int64_t>(n, 1 << 20);
    over_rows<F><<<static_cast<unsigned>(blocks), kThreads, bytes, x_stream>>>(n, f);
    note("kernel over rows", cudaGetLastError());
  }
  void* scratch(std::size_t bytes) { return x_support.scratch(x_index, 0, bytes); }
  void* kept_scratch(std::size_t bytes) { return x_support.scratch(x_index, 1, bytes); }
  void clear(const Operand& x) {
    const auto bytes = static_cast<std::size_t>(bytes_of(x.buffer->dtype, x.count));
    note("clear", cudaMemsetAsync(x.data, 0, bytes, x_stream));
  }
  const float* rope_table(std::int64_t length, std::int64_t head_dim) {
    return x_support.rope_table(length, head_dim);
  }
  void product(const Product& p) { x_support.product(x_stream, x_index, p); }

 private:
  void note(const char* what, cudaError_t error) {
    if (error != cudaSuccess) {
      x_support.fail(std::string(what) + ": " + cudaGetErrorString(error));
    }
  }

  LaunchSupport& x_support;
  cudaStream_t x_stream;
  std::size_t x_index;
};

}  // namespace foretrain::device
