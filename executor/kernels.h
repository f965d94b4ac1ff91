// Host kernels: every Work of the IR that computes. Operands stand in docs/reference/programs.md.
//
// Left out: bf16 and fp16 storage, more than one thread for one op.
#pragma once

#include <string>

#include "executor/operands.h"
#include "sim/base/result.h"

namespace foretrain {

/// C = alpha op(A) op(B) + beta C, row-major, leading dimensions in elements. C is not read when
/// beta is 0. float: by the library that was chosen; double: OpenBLAS where the build found it,
/// else a plain loop.
template <typename T>
struct Matrices {
  bool transpose_a = false, transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0;
  const T* a = nullptr;
  const T* b = nullptr;
  T* c = nullptr;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  T alpha = 1, beta = 0;
};
template <typename T>
void multiply(const Matrices<T>& x);

using Multiply = void (*)(const Matrices<float>&);

/// What multiplies fp32 from now on, in the whole process: "openblas", "plain" (a loop), "onednn",
/// or "onednn-bf16" (operands rounded to bf16, on processors that multiply bf16); "" is OpenBLAS
/// where the build found it, else the loop. To be called before any rank runs. Says what is
/// missing.
Status choose_blas(const std::string& name);

/// Of what was chosen: "OpenBLAS 0.3.21 ...", "oneDNN 2.6.3", "oneDNN 2.6.3, bf16" or
/// "plain loops".
std::string blas_name();
/// One thread for each rank: ranks and streams are the parallelism here.
void use_one_blas_thread();

template <typename T>
void run_gemm(const Gemm& work, const Operands<T>& x);
template <typename T>
void run_attention(const Attention& work, const OpContext& context, const Operands<T>& x);
/// One step of it.
template <typename T>
void run_attention_step(const Attention& work, const OpContext& context, const Operands<T>& x);
template <typename T>
void run_kernel(const Kernel& work, const OpContext& context, const Operands<T>& x);

// By file; `run_kernel` picks.
template <typename T>
void run_norm(const Kernel& work, const OpContext& context, const Operands<T>& x);
template <typename T>
void run_activation(const Kernel& work, const Operands<T>& x);
template <typename T>
void run_ends(const Kernel& work, const OpContext& context, const Operands<T>& x);
template <typename T>
void run_context(const Kernel& work, const OpContext& context, const Operands<T>& x);
template <typename T>
void run_experts(const Kernel& work, const OpContext& context, const Operands<T>& x);
template <typename T>
void run_update(const Kernel& work, const OpContext& context, const Operands<T>& x);

}  // namespace foretrain
