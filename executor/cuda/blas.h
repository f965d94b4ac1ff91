// Products by cuBLASLt.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "executor/cuda/device_view.h"
#include "sim/base/result.h"

namespace foretrain {

/// The name of a cuBLAS status; its number where it has none.
std::string text_of(cublasStatus_t status);

/// One handle; algorithms are asked for once a shape. Types: fp32 (tf32 where the product says so),
/// bf16, fp16, added up in fp32; C of the type of A and B or fp32. fp8 with one scale an operand: A
/// [m, k] in e4m3 or e5m2, B [n, k] in e4m3, C in bf16, fp16 or fp32; devices of capability 8.9 and
/// above, extents that are multiples of 16. kUnsupported where the library has no algorithm; a
/// product with a bias that it refused once it is not asked for again.
class Blas {
 public:
  static Result<std::unique_ptr<Blas>> create();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;
  Blas(Blas&&) = delete;
  Blas& operator=(Blas&&) = delete;
  ~Blas();

  static constexpr std::size_t kWorkspace = 32 << 20;
  /// `workspace`: kWorkspace bytes that only this stream uses.
  Status multiply(const Product& product, void* workspace, cudaStream_t stream);

 private:
  Blas() = default;
  struct Plan;
  /// Of a shape: how, or why not.
  struct Entry {
    std::unique_ptr<Plan> plan;
    std::optional<Error> refused;
  };
  /// Everything but addresses; of these the alignment.
  using Shape = std::tuple<std::array<std::int64_t, 10>, std::array<int, 11>>;
  static Shape shape_of(const Product& product);
  Status make(const Product& product, Entry& out);

  cublasLtHandle_t x_handle = nullptr;
  std::map<Shape, Entry> x_plans;
};

}  // namespace foretrain
