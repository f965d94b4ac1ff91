// Typed access to operands in a device's memory, for the code that picks functors.
#pragma once

#include "executor/cuda/storage.h"
#include "executor/operands.h"

namespace foretrain {

inline std::size_t bytes_of(const Operand& x) {
  return static_cast<std::size_t>(bytes_of(x.buffer->dtype, x.count));
}
inline bool is_on_device(const Operand& x) { return x.buffer->memory == Memory::kDevice; }

/// The operands of one op. Addresses are the device's: host code hands them on, nothing more.
struct DeviceOperands {
  std::vector<Operand> reads, writes;

  DType type_in(std::size_t i) const { return reads[i].buffer->dtype; }
  DType type_out(std::size_t i) const { return writes[i].buffer->dtype; }
  bool reads_back(std::size_t i) const {
    return std::any_of(reads.begin(), reads.end(),
                       [&](const Operand& read) { return read.data == writes[i].data; });
  }
  template <typename T>
  const T* in(std::size_t i) const {
    return reinterpret_cast<const T*>(reads[i].data);
  }
  template <typename T>
  T* out(std::size_t i) const {
    return reinterpret_cast<T*>(writes[i].data);
  }
};

/// C = alpha op(A) op(B) + beta C + bias of C's columns, row-major, `batch` times. Leading
/// dimensions and strides in elements.
struct Product {
  bool transpose_a = false, transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  DType in = DType::kFp32, out = DType::kFp32;
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;  ///< of the type of C; may be none
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;
  float alpha = 1, beta = 0;
  // Of fp8: which of the two types A is in (B is in e4m3), one scale for each operand, in memory of
  // the device, and whether sums stay in the tensor cores, with fewer bits.
  bool a_is_e5m2 = false, fast_sums = false;
  const float* scale_a = nullptr;
  const float* scale_b = nullptr;
};

/// What code that picks functors needs of a device, besides
///   elements(n, functor): functor(i) for every i < n,
///   rows(n, functor, floats): functor(team, i) for every i < n; `floats` of memory for a team,
///   product(Product), scratch(bytes): this stream's, until the next call,
///   clear(operand): zeros,
///   rope_table(length, head_dim): cosine and sine, [length][head_dim / 2][2].
/// A team is as many workers as the device likes, up to kMostWorkers: rank(), size(), sum(v),
/// max(v), sync(), shared(). The host's has one worker.
inline constexpr std::int64_t kMostWorkers = 256;
struct SoloTeam {
  float* memory = nullptr;
  static std::int64_t rank() { return 0; }
  static std::int64_t size() { return 1; }
  template <typename V>
  static V sum(V v) {
    return v;
  }
  static float max(float v) { return v; }
  static void sync() {}
  float* shared() const { return memory; }
};

}  // namespace foretrain
