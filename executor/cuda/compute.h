// Work that computes, on any launcher (device_view.h): what the functors' headers put together.
#pragma once

#include "executor/cuda/activation_kernels.h"
#include "executor/cuda/attention_kernels.h"
#include "executor/cuda/context_kernels.h"
#include "executor/cuda/end_kernels.h"
#include "executor/cuda/expert_kernels.h"
#include "executor/cuda/norm_kernels.h"
#include "executor/cuda/update_kernels.h"

namespace foretrain::device {

/// The product of a Gemm. tf32 is what the Gemm asks for; everything else is as stored. Operands in
/// fp8 lie as the tensor cores take them, what is summed over one after another: Programs cast a
/// copy for each product, A [m, k] and B [n, k] whatever the layout of the Gemm is. Gradients, the
/// first operands of backward passes, are in e5m2.
inline Product product_of(const Gemm& w, const DeviceOperands& x) {
  Product out;
  out.transpose_a = w.transpose_a;
  out.transpose_b = w.transpose_b;
  out.m = w.m;
  out.n = w.n;
  out.k = w.k;
  out.batch = w.batch;
  out.in = w.in == DType::kTf32 ? DType::kTf32 : x.type_in(0);
  out.out = x.type_out(0);
  out.a = x.reads[0].data;
  out.b = x.reads[1].data;
  out.c = x.writes[0].data;
  out.bias = x.reads.size() > (w.accumulate ? 3U : 2U) ? x.reads[2].data : nullptr;
  out.lda = w.transpose_a ? w.m : w.k;
  out.ldb = w.transpose_b ? w.k : w.n;
  out.ldc = w.n;
  out.stride_a = w.m * w.k;
  out.stride_b = w.k * w.n;
  out.stride_c = w.m * w.n;
  out.beta = w.accumulate ? 1.0F : 0.0F;
  if (out.in == DType::kFp8) {
    out.transpose_a = false;
    out.transpose_b = true;
    out.lda = out.ldb = w.k;
    out.a_is_e5m2 = w.split_accumulator;
    out.fast_sums = !w.split_accumulator;
  }
  return out;
}

/// Products that are GEMMs of their own follow each other.
template <typename L>
void run_gemm(L& launcher, const Gemm& w, const DeviceOperands& x) {
  Product all = product_of(w, x);
  if (!w.apart) return launcher.product(all);
  const auto moved = [](const void* from, DType type, std::int64_t elements) {
    return static_cast<const std::byte*>(from) + bytes_of(type, elements);
  };
  all.batch = 1;
  for (std::int64_t b = 0; b < w.batch; ++b) {
    Product one = all;
    one.a = moved(all.a, all.in, b * all.stride_a);
    one.b = moved(all.b, all.in, b * all.stride_b);
    one.c = x.writes[0].data + bytes_of(all.out, b * all.stride_c);
    launcher.product(one);
  }
}

/// Gradients of parameters are added to where the op reads them too, else start from zero.
template <typename L>
void start_gradients(L& launcher, const Kernel& w, const DeviceOperands& x) {
  std::size_t first = x.writes.size();
  if (w.kind == KernelKind::kBiasGrad || w.kind == KernelKind::kPositionsGrad ||
      w.kind == KernelKind::kSquaredNorm) {
    first = 0;
  }
  if (w.kind == KernelKind::kLayerNormBackward || w.kind == KernelKind::kRmsNormBackward) first = 1;
  for (std::size_t i = first; i < x.writes.size(); ++i) {
    if (!x.reads_back(i)) launcher.clear(x.writes[i]);
  }
}

template <typename L>
void run_kernel(L& launcher, const Kernel& w, const OpContext& context, const DeviceOperands& x) {
  start_gradients(launcher, w, x);
  if (w.kind <= KernelKind::kEmbeddingBackward || w.kind == KernelKind::kPositionsAdd ||
      w.kind == KernelKind::kPositionsGrad ||
      (w.kind >= KernelKind::kLossMax && w.kind <= KernelKind::kLossBackward)) {
    return run_ends(launcher, w, context, x);
  }
  if (w.kind <= KernelKind::kNormGradientSums) return run_norm(launcher, w, context, x);
  if (w.kind <= KernelKind::kRelu2Backward) return run_activation(launcher, w, x);
  if (w.kind >= KernelKind::kPackKeys) return run_context(launcher, w, context, x);
  if (w.kind >= KernelKind::kRoute) return run_experts(launcher, w, context, x);
  run_update(launcher, w, context, x);
}

template <typename L>
void compute(L& launcher, const Work& work, const OpContext& context, const DeviceOperands& x) {
  if (const auto* gemm = std::get_if<Gemm>(&work)) {
    run_gemm(launcher, *gemm, x);
  } else if (const auto* attention = std::get_if<Attention>(&work)) {
    run_attention(launcher, *attention, context, x);
  } else if (const auto* kernel = std::get_if<Kernel>(&work)) {
    run_kernel(launcher, *kernel, context, x);
  }
}

}  // namespace foretrain::device
