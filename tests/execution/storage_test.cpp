// Do numbers survive the device's element types, and do masks equal the host's?
#include "executor/cuda/storage.h"

#include <gtest/gtest.h>

#include <cmath>

#include "executor/random.h"

namespace foretrain {
namespace {

TEST(Storage, EveryHalfComesBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Fp16 half{static_cast<std::uint16_t>(bits)};
    const Bf16 brain{static_cast<std::uint16_t>(bits)};
    if (!std::isnan(to_float(half))) {
      EXPECT_EQ(to_fp16(to_float(half)).bits, bits);
    }
    if (!std::isnan(to_float(brain))) {
      EXPECT_EQ(to_bf16(to_float(brain)).bits, bits);
    }
    EXPECT_EQ(std::isnan(to_float(half)), std::isnan(to_float(to_fp16(to_float(half)))));
    EXPECT_EQ(std::isnan(to_float(brain)), std::isnan(to_float(to_bf16(to_float(brain)))));
  }
}

TEST(Storage, KnownNumbers) {
  EXPECT_EQ(to_float(Fp16{0x3c00}), 1.0F);
  EXPECT_EQ(to_float(Fp16{0x0001}), 0x1.0p-24F);
  EXPECT_EQ(to_float(Fp16{0x7bff}), 65504.0F);
  EXPECT_EQ(to_float(Bf16{0x3f80}), 1.0F);
  EXPECT_EQ(to_fp16(65519.0F).bits, 0x7bff);
  EXPECT_EQ(to_fp16(65520.0F).bits, 0x7c00);
  EXPECT_EQ(to_fp16(-1e9F).bits, 0xfc00);
}

/// Halfway between two neighbours: the even one; a little beside: the nearer one.
template <typename T, typename To>
void expect_nearest(const To& to, std::uint32_t last) {
  for (std::uint32_t bits = 0; bits + 1 < last; ++bits) {
    const float low = to_float(T{static_cast<std::uint16_t>(bits)});
    const float high = to_float(T{static_cast<std::uint16_t>(bits + 1)});
    const float middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) continue;
    EXPECT_EQ(to(middle).bits, bits % 2 == 0 ? bits : bits + 1) << low;
    EXPECT_EQ(to(std::nextafter(middle, low)).bits, bits);
    EXPECT_EQ(to(std::nextafter(middle, high)).bits, bits + 1);
  }
}

TEST(Storage, RoundsToTheNearest) {
  expect_nearest<Fp16>(to_fp16, 0x7c00);
  expect_nearest<Bf16>(to_bf16, 0x7f80);
}

TEST(Storage, IntegerThresholdsDrawTheSameMasks) {
  for (const double rate : {0.0, 1e-9, 0.1, 0.25, 1.0 / 3, 0.5, 0.999999}) {
    const std::uint64_t threshold = threshold_of(rate);
    for (std::int64_t i = 0; i < 20'000; ++i) {
      ASSERT_EQ(bits_at(42, i) >= threshold, uniform_at(42, i) >= rate) << rate << " " << i;
    }
  }
}

}  // namespace
}  // namespace foretrain
