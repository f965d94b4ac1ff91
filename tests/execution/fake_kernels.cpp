// The kernels of the CUDA backend as loops, on the streams of the fake runtime.
#include <cmath>

#include "executor/cuda/compute.h"
#include "executor/cuda/fill_kernels.h"
#include "executor/cuda/launch_support.h"
#include "tests/execution/fake_cuda.h"

namespace foretrain::device {
namespace {

class FakeLauncher {
 public:
  FakeLauncher(LaunchSupport& support, cudaStream_t stream, std::size_t index)
      : x_support(support), x_stream(stream), x_index(index) {}
  template <typename F>
  void elements(std::int64_t n, const F& f) {
    launch([n, f] {
      for (std::int64_t i = 0; i < n; ++i) f(i);
    });
  }
  template <typename F>
  void rows(std::int64_t n, const F& f, std::size_t floats = 0) {
    launch([n, f, floats] {
      std::vector<float> memory(floats, std::nanf(""));
      SoloTeam team{memory.data()};
      for (std::int64_t i = 0; i < n; ++i) f(team, i);
    });
  }
  void* scratch(std::size_t bytes) { return x_support.scratch(x_index, 0, bytes); }
  void* kept_scratch(std::size_t bytes) { return x_support.scratch(x_index, 1, bytes); }
  void clear(const Operand& x) {
    cudaMemsetAsync(x.data, 0, static_cast<std::size_t>(bytes_of(x.buffer->dtype, x.count)),
                    x_stream);
  }
  const float* rope_table(std::int64_t length, std::int64_t head_dim) {
    return x_support.rope_table(length, head_dim);
  }
  void product(const Product& p) { x_support.product(x_stream, x_index, p); }

 private:
  /// As after `<<<>>>`: an error that a call before has left is taken for the kernel's.
  void launch(std::function<void()> work) {
    fake::enqueue(x_stream, std::move(work));
    if (cudaGetLastError() != cudaSuccess) x_support.fail("kernel: an error of before");
  }

  LaunchSupport& x_support;
  cudaStream_t x_stream;
  std::size_t x_index;
};

}  // namespace

void compute_on_cuda(cudaStream_t stream, std::size_t index, LaunchSupport& support,
                     const Work& work, const OpContext& context, const DeviceOperands& x) {
  FakeLauncher launcher(support, stream, index);
  compute(launcher, work, context, x);
}

void add_bias_on_cuda(cudaStream_t stream, std::size_t index, LaunchSupport& support,
                      const Product& p) {
  fake::count("add_bias_on_cuda");
  FakeLauncher launcher(support, stream, index);
  with_type(p.out, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    T* const c = static_cast<T*>(p.c);
    launcher.rows(p.batch * p.m, BiasAdd<T>{c, static_cast<const T*>(p.bias), c, p.n});
  });
}

void fill_on_cuda(cudaStream_t stream, LaunchSupport& support, std::byte* to, DType type,
                  std::int64_t count, const Content& content) {
  FakeLauncher launcher(support, stream, 0);
  fill_random(launcher, to, type, count, content);
}

}  // namespace foretrain::device
