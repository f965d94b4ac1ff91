// A fake of cublasLt: column-major products in loops, on the streams of the fake runtime.
#include <cublasLt.h>

#include <cstring>

#include "executor/cuda/storage.h"
#include "tests/execution/fake_cuda.h"

namespace fake = foretrain::fake;

namespace foretrain::fake {
namespace {

struct Matmul {
  cublasOperation_t first = CUBLAS_OP_N, second = CUBLAS_OP_N;
  bool bias = false;
  const void* bias_at = nullptr;
};
struct Layout {
  cudaDataType_t type = CUDA_R_32F;
  std::int64_t rows = 0, cols = 0, pitch = 0, stride = 0;
  std::int32_t batch = 1;
};

DType type_of(cudaDataType_t type) {
  return type == CUDA_R_16BF ? DType::kBf16 : type == CUDA_R_16F ? DType::kFp16 : DType::kFp32;
}

template <typename T>
T* at(void* data, const Layout& of, std::int64_t batch) {
  return static_cast<T*>(data) + batch * of.stride;
}
template <typename T>
const T* at(const void* data, const Layout& of, std::int64_t batch) {
  return static_cast<const T*>(data) + batch * of.stride;
}

/// d = alpha op(a) op(b) + beta d + a bias for each row.
template <typename In, typename Out>
void multiply(const Matmul& how, float alpha, const void* a, const Layout& la, const void* b,
              const Layout& lb, float beta, void* d, const Layout& ld) {
  const bool turned_a = how.first == CUBLAS_OP_T;
  const bool turned_b = how.second == CUBLAS_OP_T;
  const std::int64_t inner = turned_a ? la.rows : la.cols;
  if (inner != (turned_b ? lb.cols : lb.rows) || ld.rows != (turned_a ? la.cols : la.rows) ||
      ld.cols != (turned_b ? lb.rows : lb.cols)) {
    return fault("a product of matrices that do not fit");
  }
  const auto* const bias = static_cast<const Out*>(how.bias_at);
  for (std::int64_t n = 0; n < ld.batch; ++n) {
    const In* const first = at<In>(a, la, n);
    const In* const second = at<In>(b, lb, n);
    Out* const out = at<Out>(d, ld, n);
    for (std::int64_t j = 0; j < ld.cols; ++j) {
      for (std::int64_t i = 0; i < ld.rows; ++i) {
        float sum = 0;
        for (std::int64_t k = 0; k < inner; ++k) {
          sum += to_float(first[turned_a ? k + i * la.pitch : i + k * la.pitch]) *
                 to_float(second[turned_b ? j + k * lb.pitch : k + j * lb.pitch]);
        }
        Out& to = out[i + j * ld.pitch];
        float value = alpha * sum;
        if (beta != 0) value += beta * to_float(to);
        if (how.bias) value += to_float(bias[i]);
        to = stored<Out>(value);
      }
    }
  }
}

}  // namespace
}  // namespace foretrain::fake

// NOLINTBEGIN(readability-identifier-naming): the library's names
extern "C" {

std::size_t cublasLtGetVersion() { return 130000; }
const char* cublasLtGetStatusName(cublasStatus_t) { return "CUBLAS_STATUS_OF_THE_FAKE"; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* out) {
  fake::lives("handles", 1);
  fake::count("cublasLtCreate");
  *out = reinterpret_cast<cublasLtHandle_t>(new int(0));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  fake::lives("handles", -1);
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* out, cublasComputeType_t,
                                        cudaDataType_t) {
  *out = reinterpret_cast<cublasLtMatmulDesc_t>(new fake::Matmul());
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete reinterpret_cast<fake::Matmul*>(desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void* value, std::size_t bytes) {
  auto& how = *reinterpret_cast<fake::Matmul*>(desc);
  if (which == CUBLASLT_MATMUL_DESC_TRANSA) std::memcpy(&how.first, value, bytes);
  if (which == CUBLASLT_MATMUL_DESC_TRANSB) std::memcpy(&how.second, value, bytes);
  if (which == CUBLASLT_MATMUL_DESC_EPILOGUE) how.bias = true;
  if (which == CUBLASLT_MATMUL_DESC_BIAS_POINTER) std::memcpy(&how.bias_at, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* out, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t cols,
                                          std::int64_t pitch) {
  *out = reinterpret_cast<cublasLtMatrixLayout_t>(new fake::Layout{
      type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols), pitch, 0, 1});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<fake::Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t which,
                                                const void* value, std::size_t bytes) {
  auto& of = *reinterpret_cast<fake::Layout*>(layout);
  if (which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) std::memcpy(&of.batch, value, bytes);
  if (which == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) std::memcpy(&of.stride, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* out) {
  *out = reinterpret_cast<cublasLtMatmulPreference_t>(new int(0));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<int*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, std::size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t*, int* found) {
  const bool refused = reinterpret_cast<fake::Matmul*>(desc)->bias && fake::state().refuses_bias;
  fake::count(refused ? "heuristics that refused" : "heuristics");
  *found = refused ? 0 : 1;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t la, const void* b,
                              cublasLtMatrixLayout_t lb, const void* beta, const void*,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t*, void*, std::size_t,
                              cudaStream_t stream) {
  const auto how = *reinterpret_cast<fake::Matmul*>(desc);
  const auto of_a = *reinterpret_cast<fake::Layout*>(la);
  const auto of_b = *reinterpret_cast<fake::Layout*>(lb);
  const auto of_d = *reinterpret_cast<fake::Layout*>(ld);
  const float x = *static_cast<const float*>(alpha);
  const float y = *static_cast<const float*>(beta);
  fake::enqueue(stream, [=] {
    foretrain::with_type(fake::type_of(of_a.type), [&](auto in) {
      foretrain::with_type(fake::type_of(of_d.type), [&](auto out) {
        fake::multiply<typename decltype(in)::Type, typename decltype(out)::Type>(
            how, x, a, of_a, b, of_b, y, d, of_d);
      });
    });
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
