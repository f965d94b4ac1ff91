// Random content of buffers: every element is a function of a seed and its number, the same on a
// device and on the host, bit by bit, however many threads draw.
#pragma once

#include "executor/cuda/storage.h"
#include "executor/random.h"

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

}  // namespace foretrain
