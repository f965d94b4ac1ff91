#include "executor/cuda/compute.h"
#include "executor/cuda/launch.cuh"

namespace foretrain::device {

// Compiled in files of their own.
extern template void run_activation(CudaLauncher&, const Kernel&, const DeviceOperands&);
extern template void run_norm(CudaLauncher&, const Kernel&, const OpContext&,
                              const DeviceOperands&);
extern template void run_ends(CudaLauncher&, const Kernel&, const OpContext&,
                              const DeviceOperands&);
extern template void run_context(CudaLauncher&, const Kernel&, const OpContext&,
                                 const DeviceOperands&);
extern template void run_experts(CudaLauncher&, const Kernel&, const OpContext&,
                                 const DeviceOperands&);
extern template void run_update(CudaLauncher&, const Kernel&, const OpContext&,
                                const DeviceOperands&);
extern template void run_attention(CudaLauncher&, const Attention&, const OpContext&,
                                   const DeviceOperands&);

void compute_on_cuda(cudaStream_t stream, std::size_t index, LaunchSupport& support,
                     const Work& work, const OpContext& context, const DeviceOperands& x) {
  CudaLauncher launcher(support, stream, index);
  compute(launcher, work, context, x);
}

void add_bias_on_cuda(cudaStream_t stream, std::size_t index, LaunchSupport& support,
                      const Product& p) {
  CudaLauncher launcher(support, stream, index);
  with_type(p.out, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    T* const c = static_cast<T*>(p.c);
    launcher.rows(p.batch * p.m, BiasAdd<T>{c, static_cast<const T*>(p.bias), c, p.n});
  });
}

}  // namespace foretrain::device
