#include <dlfcn.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <type_traits>

#include "executor/kernels.h"
#include "executor/onednn_module.h"
#include "sim/base/check.h"

#ifdef FORETRAIN_OPENBLAS
#include <cblas.h>
#endif

namespace foretrain {
namespace {

template <typename T>
void plain_loops(const Matrices<T>& x) {
  for (std::int64_t i = 0; i < x.m; ++i) {
    T* row = x.c + i * x.ldc;
    for (std::int64_t j = 0; j < x.n; ++j) row[j] = x.beta == T(0) ? T(0) : x.beta * row[j];
    for (std::int64_t l = 0; l < x.k; ++l) {
      const T a = x.alpha * (x.transpose_a ? x.a[l * x.lda + i] : x.a[i * x.lda + l]);
      for (std::int64_t j = 0; j < x.n; ++j) {
        row[j] += a * (x.transpose_b ? x.b[j * x.ldb + l] : x.b[l * x.ldb + j]);
      }
    }
  }
}

#ifdef FORETRAIN_OPENBLAS
blasint size(std::int64_t v) { return static_cast<blasint>(v); }
CBLAS_TRANSPOSE flag(bool transpose) { return transpose ? CblasTrans : CblasNoTrans; }

struct OpenBlas {
  decltype(&cblas_sgemm) sgemm = nullptr;
  decltype(&cblas_dgemm) dgemm = nullptr;
  decltype(&openblas_set_num_threads) set_threads = nullptr;
  std::string name;
};

std::optional<OpenBlas> load_open_blas() {
  // Ranks and streams are the parallelism here: the library need not make threads of its own.
  setenv("OPENBLAS_NUM_THREADS", "1", 0);
  void* library = nullptr;
  for (const char* name : {"libopenblas.so.0", FORETRAIN_OPENBLAS}) {
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) return std::nullopt;
  OpenBlas out;
  const auto find = [library](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  decltype(&openblas_get_config) config = nullptr;
  const bool whole = find(out.sgemm, "cblas_sgemm") && find(out.dgemm, "cblas_dgemm") &&
                     find(out.set_threads, "openblas_set_num_threads") &&
                     find(config, "openblas_get_config");
  if (!whole) return std::nullopt;
  out.name = config();
  return out;
}

/// Loaded when it is first asked for: a process that multiplies nothing pays for none of it. Null
/// where the library that the build found is not on this machine.
const OpenBlas* open_blas_library() {
  static const std::optional<OpenBlas> only = load_open_blas();
  return only ? &*only : nullptr;
}

void open_blas(const Matrices<float>& x) {
  const OpenBlas* const blas = open_blas_library();
  if (blas == nullptr) return plain_loops(x);
  blas->sgemm(CblasRowMajor, flag(x.transpose_a), flag(x.transpose_b), size(x.m), size(x.n),
              size(x.k), x.alpha, x.a, size(x.lda), x.b, size(x.ldb), x.beta, x.c, size(x.ldc));
}
void blas(const Matrices<double>& x) {
  const OpenBlas* const blas = open_blas_library();
  if (blas == nullptr) return plain_loops(x);
  blas->dgemm(CblasRowMajor, flag(x.transpose_a), flag(x.transpose_b), size(x.m), size(x.n),
              size(x.k), x.alpha, x.a, size(x.lda), x.b, size(x.ldb), x.beta, x.c, size(x.ldc));
}
bool has_open_blas() { return open_blas_library() != nullptr; }
std::string open_blas_name() { return has_open_blas() ? open_blas_library()->name : "plain loops"; }
#else
void open_blas(const Matrices<float>& x) { plain_loops(x); }
void blas(const Matrices<double>& x) { plain_loops(x); }
std::string open_blas_name() { return "plain loops"; }
bool has_open_blas() { return false; }
#endif

/// What multiplies fp32 in this process.
struct Chosen {
  Multiply multiply = open_blas;
  std::string name = open_blas_name();
};
Chosen& chosen() {
  static Chosen only;
  return only;
}
void blas(const Matrices<float>& x) { chosen().multiply(x); }

Status choose_onednn(bool bf16) {
  FT_ASSIGN(const OneDnn module, open_onednn());
  if (!bf16) {
    chosen() = {module.multiply_fp32, module.name};
    return ok_status();
  }
  if (!module.has_bf16 || module.multiply_bf16 == nullptr) {
    return unsupported(
        "--blas onednn-bf16: this processor has neither AVX512_BF16 nor AMX-BF16, "
        "so " +
        module.name + " cannot multiply bf16 fast; use --blas onednn");
  }
  chosen() = {module.multiply_bf16, module.name + ", bf16"};
  return ok_status();
}

}  // namespace

Status choose_blas(const std::string& name) {
  if (name == "onednn" || name == "onednn-bf16") return choose_onednn(name == "onednn-bf16");
  if (name == "plain") {
    chosen() = {plain_loops<float>, "plain loops"};
    return ok_status();
  }
  if (name == "openblas" && !has_open_blas()) {
    return input_error(
        "--blas openblas: there is no OpenBLAS; install libopenblas-dev and build again, or use "
        "--blas plain");
  }
  if (!name.empty() && name != "openblas") {
    return input_error("--blas: found \"" + name +
                       "\"; accepted: openblas, onednn, onednn-bf16, plain");
  }
  chosen() = Chosen{};
  return ok_status();
}

template <typename T>
void multiply(const Matrices<T>& x) {
  if (x.m > 0 && x.n > 0) blas(x);
}

std::string blas_name() { return chosen().name; }

void use_one_blas_thread() {
#ifdef FORETRAIN_OPENBLAS
  if (has_open_blas()) open_blas_library()->set_threads(1);
#endif
}

namespace {

/// The columns of y = x W^T lie in arrays of their own: those of the result, or of A of a gradient.
/// A product for each.
template <typename T>
void run_blocks(const Gemm& w, const Operands<T>& x) {
  std::int64_t before = 0;
  for (const std::int64_t columns : w.columns.blocks) {
    Matrices<T> one{w.transpose_a, w.transpose_b, w.m, w.n, w.k, x.in(0), x.in(1), x.out(0)};
    if (w.transpose_a) {  // d W = d y^T x: rows of it
      one.m = columns;
      one.a += before * w.k;
      one.c += before * w.n;
    } else if (w.transpose_b) {  // y = x W^T
      one.n = columns;
      one.b += before * w.k;
      one.c += before * w.m;
    } else {  // d x = d y W: a sum
      one.k = columns;
      one.a += before * w.m;
      one.b += before * w.n;
    }
    one.lda = w.transpose_a ? one.m : one.k;
    one.ldb = w.transpose_b ? one.k : one.n;
    one.ldc = one.n;
    const bool adds = w.accumulate || (!w.transpose_a && !w.transpose_b && before > 0);
    one.beta = adds ? T(1) : T(0);
    multiply(one);
    before += columns;
  }
}

}  // namespace

template <typename T>
void run_gemm(const Gemm& w, const Operands<T>& x) {
  if (!w.columns.blocks.empty()) return run_blocks(w, x);
  const bool bias = x.reads.size() > (w.accumulate ? 3U : 2U);
  const bool weighs = x.reads.size() > (w.accumulate ? 4U : 3U);  // by a number of each row
  const std::int64_t own = bias ? x.reads[2].count / w.n : 1;     // biases: one, or of each product
  T* c = x.out(0);
  for (std::int64_t b = 0; b < w.batch; ++b) {
    T* block = c + b * w.m * w.n;
    if (bias) {
      const T* columns = x.in(2) + (own > 1 ? b * w.n : 0);
      for (std::int64_t i = 0; i < w.m; ++i) {
        const T scale = weighs ? x.in(3)[b * w.m + i] : T(1);
        for (std::int64_t j = 0; j < w.n; ++j) {
          block[i * w.n + j] = scale * columns[j] + (w.accumulate ? block[i * w.n + j] : T(0));
        }
      }
    }
    Matrices<T> matrices;
    matrices.transpose_a = w.transpose_a;
    matrices.transpose_b = w.transpose_b;
    matrices.m = w.m;
    matrices.n = w.n;
    matrices.k = w.k;
    matrices.a = x.in(0) + b * w.m * w.k;
    matrices.b = x.in(1) + b * w.k * w.n;
    matrices.c = block;
    matrices.lda = w.transpose_a ? w.m : w.k;
    matrices.ldb = w.transpose_b ? w.k : w.n;
    matrices.ldc = w.n;
    matrices.beta = w.accumulate || bias ? T(1) : T(0);
    multiply(matrices);
  }
}

template void multiply(const Matrices<float>&);
template void multiply(const Matrices<double>&);
template void run_gemm(const Gemm&, const Operands<float>&);
template void run_gemm(const Gemm&, const Operands<double>&);

}  // namespace foretrain
