// Runs one host kernel in double on numbers of a test, and differentiates what a test writes out.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "executor/operands.h"

namespace foretrain {

using Numbers = std::vector<double>;

/// Normal numbers times `deviation`, others for every key.
Numbers drawn(std::uint64_t key, std::int64_t count, double deviation = 1);

/// The operands of one op. What it writes holds NaN before.
class KernelCall {
 public:
  KernelCall(std::vector<Numbers> reads, const std::vector<std::int64_t>& writes);
  const Operands<double>& operands() const { return x_operands; }
  const Numbers& written(std::size_t i) const { return x_writes[i]; }

 private:
  std::vector<Numbers> x_reads, x_writes;
  std::deque<Buffer> x_buffers;
  Operands<double> x_operands;
};

/// A microbatch of `sequences` of `length` tokens on one rank.
OpContext context_of(std::int64_t sequences, std::int64_t length);

/// What a kernel should compute, written out.
using Definition = std::function<Numbers(const std::vector<Numbers>& inputs)>;

/// Every number within `tolerance`.
void expect_near(const Numbers& found, const Numbers& expected, double tolerance);

/// Of the sum of what `of` gives times `d_out`: that `found` is the derivative by input `which`,
/// by central differences.
void expect_gradient(const Definition& of, const std::vector<Numbers>& inputs, std::size_t which,
                     const Numbers& d_out, const Numbers& found);

}  // namespace foretrain
