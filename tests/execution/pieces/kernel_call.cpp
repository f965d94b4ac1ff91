#include "tests/execution/pieces/kernel_call.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <utility>

namespace foretrain {

Numbers drawn(std::uint64_t key, std::int64_t count, double deviation) {
  Numbers out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back(deviation * normal_at(key, i));
  return out;
}

KernelCall::KernelCall(std::vector<Numbers> reads, const std::vector<std::int64_t>& writes)
    : x_reads(std::move(reads)) {
  for (const std::int64_t count : writes) {
    x_writes.emplace_back(static_cast<std::size_t>(count),
                          std::numeric_limits<double>::quiet_NaN());
  }
  const auto operand = [this](Numbers& values, BufferKind kind) {
    Buffer& buffer = x_buffers.emplace_back();
    buffer.dtype = DType::kFp32;
    buffer.kind = kind;
    buffer.count = std::ssize(values);
    return Operand{reinterpret_cast<std::byte*>(values.data()), buffer.count, 0, &buffer};
  };
  for (Numbers& values : x_reads) {
    x_operands.reads.push_back(operand(values, BufferKind::kActivations));
  }
  for (Numbers& values : x_writes) {
    x_operands.writes.push_back(operand(values, BufferKind::kActivations));
  }
}

OpContext context_of(std::int64_t sequences, std::int64_t length) {
  static const std::vector<Place> kPlaces;
  OpContext out;
  out.batch.sequences = sequences;
  out.batch.length = length;
  out.batch.vocabulary = 1;
  out.microbatch = 0;
  out.places = &kPlaces;
  return out;
}

void expect_near(const Numbers& found, const Numbers& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], tolerance) << "element " << i;
  }
}

void expect_gradient(const Definition& of, const std::vector<Numbers>& inputs, std::size_t which,
                     const Numbers& d_out, const Numbers& found) {
  constexpr double kDistance = 1e-5;
  const auto sum = [&](const std::vector<Numbers>& at) {
    const Numbers out = of(at);
    return std::inner_product(out.begin(), out.end(), d_out.begin(), 0.0);
  };
  Numbers slopes;
  std::vector<Numbers> moved = inputs;
  for (double& value : moved[which]) {
    const double start = value;
    value = start + kDistance;
    const double above = sum(moved);
    value = start - kDistance;
    slopes.push_back((above - sum(moved)) / (2 * kDistance));
    value = start;
  }
  SCOPED_TRACE("gradient of input " + std::to_string(which));
  expect_near(found, slopes, 1e-7);
}

}  // namespace foretrain
