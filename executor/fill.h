// Random content of buffers: every element is a function of a seed and its number, the same on a
// device and on the host, bit by bit, however many threads draw.
#pragma once

#include <variant>

#include "executor/cuda/storage.h"
#include "executor/random.h"
#include "sim/program/program.h"

namespace foretrain {

/// What a buffer is filled with: numbers of a real type (fp8: as e4m3) are normal with mean 0 and
/// deviation 1, or uniform in [0.25, 0.75]; whole numbers of eight bytes are uniform in
/// [0, vocabulary); bytes are 0 or 1.
struct Fill {
  std::uint64_t seed = 0;
  bool signed_normal = false;
  std::int64_t vocabulary = 1;

  /// A normal number is the sum of eight uniform ones of 16 bits, in whole numbers, so that no
  /// library's logarithm is in it; none is further from 0 than 4.9.
  FT_DEVICE float real(std::int64_t i) const {
    if (!signed_normal) {
      const auto bits = static_cast<float>(static_cast<std::int32_t>(word(i, 0) >> 40));
      return 0.25F + bits * 0x1.0p-25F;
    }
    constexpr std::int32_t kMean = 262140;                // 8 (2^16 - 1) / 2
    constexpr float kPerDeviation = 1.0F / 53509.92159F;  // sqrt(8 (2^32 - 1) / 12)
    std::int32_t sum = -kMean;
    for (int half = 0; half < 2; ++half) {
      const std::uint64_t bits = word(i, half);
      for (int lane = 0; lane < 64; lane += 16) {
        sum += static_cast<std::int32_t>(bits >> lane & 0xffffU);
      }
    }
    return static_cast<float>(sum) * kPerDeviation;
  }
  FT_DEVICE std::int64_t whole(std::int64_t i) const {
    return static_cast<std::int64_t>(word(i, 0) % static_cast<std::uint64_t>(vocabulary));
  }
  FT_DEVICE std::uint8_t flag(std::int64_t i) const {
    return static_cast<std::uint8_t>(word(i, 0) >> 63);
  }

 private:
  FT_DEVICE std::uint64_t word(std::int64_t i, int half) const {
    return mix(seed, static_cast<std::uint64_t>(2 * i + half));
  }
};

/// What elements of a slice of a logical tensor start with: each a function of the seed, of the
/// tensor's name and layer, and of its place in the whole tensor, so that every plan starts alike.
/// `count` elements from `at` on, of one buffer.
struct ParameterDraw {
  std::uint64_t key = 0;
  double deviation = 0;
  Init init = Init::kNormal;
  std::int64_t at = 0, count = 0;
  std::int64_t begin = 0;                     ///< number of the first one in its slice, row-major
  std::int64_t cols = 1;                      ///< of the slice
  std::int64_t first_row = 0, first_col = 0;  ///< of the slice in the tensor
  std::int64_t rows = 0, width = 0;           ///< of the tensor; what pads it is zero

  FT_DEVICE float real(std::int64_t i) const {
    const std::int64_t row = first_row + (begin + i) / cols;
    if (row >= rows) return 0;
    return of(row * width + first_col + (begin + i) % cols);
  }

 private:
  /// Of element `index` of the tensor.
  FT_DEVICE float of(std::int64_t index) const {
    if (init == Init::kOnes) return 1.0F;
    if (init == Init::kNormal) return static_cast<float>(deviation * normal_at(key, index));
    const double u = uniform_at(key, index);
    if (init == Init::kDecay) return static_cast<float>(std::log(1 + 15 * u));
    constexpr double kLeastStep = 0.001;  // softplus(b) = dt: b = dt + log(1 - exp(-dt))
    const double dt = kLeastStep * std::exp(u * std::log(100.0));
    return static_cast<float>(dt + std::log(-std::expm1(-dt)));
  }
};

/// What elements of memory become; a draw's are of its slice alone.
using Content = std::variant<Fill, ParameterDraw>;

}  // namespace foretrain
