// Products by oneDNN, in a library of their own: only runs that ask for it load it.
#include <cpuid.h>
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>

#include <cstring>
#include <unordered_map>
#include <vector>

#include "executor/onednn_module.h"

namespace foretrain {
namespace {

using dnnl::memory;

dnnl::engine& cpu() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

/// The upper half of each number, rounded to nearest even.
void round_to_bf16(const float* from, std::int64_t rows, std::int64_t cols, std::int64_t ld,
                   std::vector<std::uint16_t>& out) {
  out.resize(static_cast<std::size_t>(rows * cols));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, from + r * ld + c, sizeof bits);
      bits += 0x7fffU + ((bits >> 16) & 1U);
      out[static_cast<std::size_t>(r * cols + c)] = static_cast<std::uint16_t>(bits >> 16);
    }
  }
}

/// Rows and columns as the product reads them, from memory that is packed as it is stored.
memory::desc packed(std::int64_t rows, std::int64_t cols, bool transposed) {
  return {{rows, cols},
          memory::data_type::bf16,
          transposed ? memory::dims{1, rows} : memory::dims{cols, 1}};
}

void multiply_fp32(const Matrices<float>& x) {
  omp_set_num_threads(1);  // of this thread: ranks and streams are the parallelism here
  dnnl_sgemm(x.transpose_a ? 'T' : 'N', x.transpose_b ? 'T' : 'N', x.m, x.n, x.k, x.alpha, x.a,
             x.lda, x.b, x.ldb, x.beta, x.c, x.ldc);
}

void multiply_bf16(const Matrices<float>& x) {
  omp_set_num_threads(1);
  thread_local std::vector<std::uint16_t> a;
  thread_local std::vector<std::uint16_t> b;
  round_to_bf16(x.a, x.transpose_a ? x.k : x.m, x.transpose_a ? x.m : x.k, x.lda, a);
  round_to_bf16(x.b, x.transpose_b ? x.n : x.k, x.transpose_b ? x.k : x.n, x.ldb, b);
  const memory::desc c({x.m, x.n}, memory::data_type::f32, {x.ldc, 1});
  dnnl::primitive_attr attributes;
  if (x.alpha != 1) attributes.set_output_scales(0, {x.alpha});
  if (x.beta != 0) {
    dnnl::post_ops sum;
    sum.append_sum(x.beta);
    attributes.set_post_ops(sum);
  }
  const memory::desc left = packed(x.m, x.k, x.transpose_a);
  const memory::desc right = packed(x.k, x.n, x.transpose_b);
  const dnnl::matmul::primitive_desc chosen(dnnl::matmul::desc(left, right, c), attributes, cpu());
  dnnl::stream stream(cpu());
  dnnl::matmul(chosen).execute(stream, {{DNNL_ARG_SRC, memory(left, cpu(), a.data())},
                                        {DNNL_ARG_WEIGHTS, memory(right, cpu(), b.data())},
                                        {DNNL_ARG_DST, memory(c, cpu(), x.c)}});
  stream.wait();
}

/// Intel's manual, CPUID leaf 7: subleaf 1 EAX bit 5 is AVX512_BF16, subleaf 0 EDX bit 22 AMX-BF16.
bool multiplies_bf16() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 5 & 1U) != 0) return true;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 22 & 1U) != 0;
}

/// Whether the library computes bf16 at all here, fast or not.
bool computes_bf16() {
  try {
    const memory::desc c({8, 8}, memory::data_type::f32, {8, 1});
    const dnnl::matmul::primitive_desc tried(
        dnnl::matmul::desc(packed(8, 8, false), packed(8, 8, false), c), dnnl::primitive_attr(),
        cpu());
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
}

}  // namespace
}  // namespace foretrain

extern "C" void foretrain_open_onednn(foretrain::OneDnn& out) {
  const dnnl_version_t* version = dnnl_version();
  out.name = "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) +
             "." + std::to_string(version->patch);
  out.multiply_fp32 = foretrain::multiply_fp32;
  out.has_bf16 = foretrain::multiplies_bf16();
  if (foretrain::computes_bf16()) out.multiply_bf16 = foretrain::multiply_bf16;
}
