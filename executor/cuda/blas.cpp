#include "executor/cuda/blas.h"

#include <algorithm>
#include <array>
#include <string>

namespace foretrain {
namespace {

cudaDataType_t type_of(DType type) {
  if (type == DType::kFp8) return CUDA_R_8F_E4M3;
  return type == DType::kBf16 ? CUDA_R_16BF : type == DType::kFp16 ? CUDA_R_16F : CUDA_R_32F;
}

/// The largest power of two up to 256 that divides an address.
int alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  int out = 256;
  while (address % static_cast<unsigned>(out) != 0) out /= 2;
  return out;
}

Status check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return ok_status();
  return input_error(std::string("cuBLASLt: ") + what + ": " + text_of(status));
}

/// A row-major matrix of rows x cols is a column-major one of cols x rows.
Status make_layout(cublasLtMatrixLayout_t& out, cudaDataType_t type, std::int64_t rows,
                   std::int64_t cols, std::int64_t pitch, std::int64_t batch, std::int64_t stride) {
  FT_TRY(check(cublasLtMatrixLayoutCreate(&out, type, static_cast<std::uint64_t>(cols),
                                          static_cast<std::uint64_t>(rows), pitch),
               "layout"));
  const auto count = static_cast<std::int32_t>(batch);
  FT_TRY(check(cublasLtMatrixLayoutSetAttribute(out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                sizeof count),
               "batch"));
  return check(cublasLtMatrixLayoutSetAttribute(out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                &stride, sizeof stride),
               "stride");
}

}  // namespace

std::string text_of(cublasStatus_t status) {
  const char* const name = cublasLtGetStatusName(status);
  return name == nullptr ? "status " + std::to_string(static_cast<int>(status)) : name;
}

/// Row-major C = op(A) op(B) is column-major C' = op(B)' op(A)': the first operand is B.
struct Blas::Plan {
  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  Plan(Plan&&) = delete;
  Plan& operator=(Plan&&) = delete;
  ~Plan() {
    if (first != nullptr) cublasLtMatrixLayoutDestroy(first);
    if (second != nullptr) cublasLtMatrixLayoutDestroy(second);
    if (result != nullptr) cublasLtMatrixLayoutDestroy(result);
    if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
  }

  Status describe(const Product& p) {
    const bool tf32 = p.in == DType::kTf32;
    FT_TRY(
        check(cublasLtMatmulDescCreate(
                  &operation, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
              "operation"));
    const cublasOperation_t of_first = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t of_second = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    FT_TRY(set(CUBLASLT_MATMUL_DESC_TRANSA, of_first));
    FT_TRY(set(CUBLASLT_MATMUL_DESC_TRANSB, of_second));
    if (p.bias != nullptr) {
      FT_TRY(set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
      FT_TRY(set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(p.out)));
      FT_TRY(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias));
    }
    if (p.in == DType::kFp8) FT_TRY(describe_fp8(p));
    FT_TRY(make_layout(first, type_of(p.in), p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n,
                       p.ldb, p.batch, p.stride_b));
    FT_TRY(make_layout(second, p.a_is_e5m2 ? CUDA_R_8F_E5M2 : type_of(p.in),
                       p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.lda, p.batch,
                       p.stride_a));
    return make_layout(result, type_of(p.out), p.m, p.n, p.ldc, p.batch, p.stride_c);
  }

  /// The first operand of the library's product is B.
  Status describe_fp8(const Product& p) const {
    const std::int8_t fast = p.fast_sums ? 1 : 0;
    FT_TRY(set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast));
    return set_scales(p);
  }

  Status set_scales(const Product& p) const {
    FT_TRY(set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.scale_b));
    return set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.scale_a);
  }

  template <typename Value>
  Status set(cublasLtMatmulDescAttributes_t attribute, const Value& value) const {
    return check(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value),
                 "attribute of the operation");
  }

  Status choose(cublasLtHandle_t handle, const Product& p) {
    cublasLtMatmulPreference_t preference = nullptr;
    FT_TRY(check(cublasLtMatmulPreferenceCreate(&preference), "preference"));
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value);
    };
    // Operands lie at any element of larger buffers.
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
           static_cast<std::uint32_t>(alignment_of(p.b)));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
           static_cast<std::uint32_t>(alignment_of(p.a)));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
           static_cast<std::uint32_t>(alignment_of(p.c)));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
           static_cast<std::uint32_t>(alignment_of(p.c)));
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, operation, first, second, result, result, preference, 1, &found, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    const bool none = status == CUBLAS_STATUS_NOT_SUPPORTED;
    if (!none) FT_TRY(check(status, "heuristic"));
    if (none || count == 0) {
      return unsupported("cuBLASLt has no algorithm for a product " + std::to_string(p.m) + "x" +
                         std::to_string(p.n) + "x" + std::to_string(p.k) + " " +
                         std::string(name_of(p.in)) + "->" + std::string(name_of(p.out)));
    }
    algorithm = found.algo;
    return ok_status();
  }

  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

Result<std::unique_ptr<Blas>> Blas::create() {
  std::unique_ptr<Blas> out(new Blas());
  FT_TRY(check(cublasLtCreate(&out->x_handle), "handle"));
  return out;
}

Blas::~Blas() {
  x_plans.clear();
  if (x_handle != nullptr) cublasLtDestroy(x_handle);
}

Blas::Shape Blas::shape_of(const Product& p) {
  return {{p.m, p.n, p.k, p.batch, p.lda, p.ldb, p.ldc, p.stride_a, p.stride_b, p.stride_c},
          {p.transpose_a ? 1 : 0, p.transpose_b ? 1 : 0, static_cast<int>(p.in),
           static_cast<int>(p.out), p.bias != nullptr ? alignment_of(p.bias) : 0,
           p.beta != 0 ? 1 : 0, alignment_of(p.a), alignment_of(p.b), alignment_of(p.c),
           p.a_is_e5m2 ? 1 : 0, p.fast_sums ? 1 : 0}};
}

Status Blas::make(const Product& p, Entry& out) {
  auto made = std::make_unique<Plan>();
  FT_TRY(made->describe(p));
  FT_TRY(made->choose(x_handle, p));
  out.plan = std::move(made);
  return ok_status();
}

Status Blas::multiply(const Product& p, void* workspace, cudaStream_t stream) {
  if (p.m <= 0 || p.n <= 0 || p.k <= 0) return ok_status();
  Entry& entry = x_plans[shape_of(p)];
  if (entry.refused) return *entry.refused;
  Status done = entry.plan == nullptr ? make(p, entry) : ok_status();
  if (done.ok() && p.bias != nullptr) {
    done = entry.plan->set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  }
  if (done.ok() && p.in == DType::kFp8) done = entry.plan->set_scales(p);
  if (done.ok()) {
    const Plan& plan = *entry.plan;
    done = check(cublasLtMatmul(x_handle, plan.operation, &p.alpha, p.b, plan.first, p.a,
                                plan.second, &p.beta, p.c, plan.result, p.c, plan.result,
                                &plan.algorithm, workspace, kWorkspace, stream),
                 "product");
  }
  if (!done.ok() && p.bias != nullptr) entry.refused = done.error();
  return done;
}

}  // namespace foretrain
