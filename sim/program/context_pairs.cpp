#include "sim/program/context_pairs.h"

#include <algorithm>

namespace foretrain {
namespace {

/// Pairs of the queries before position x: the integral of min(x, window).
double pairs_before(double x, double window) {
  return x < window ? x * x / 2 : window * x - window * window / 2;
}

}  // namespace

bool windows_gathered(const Attention& work) {
  return work.part == ContextPart::kAll && work.window > 0 && work.window < whole_length(work);
}

ContextPairs gathered_pairs(const Attention& work) {
  const std::int64_t length = whole_length(work);
  const std::int64_t members = length / work.q_len;
  const double chunk = static_cast<double>(work.q_len) / 2;
  const auto window = static_cast<double>(work.window);
  const auto of_chunk = [chunk, window](std::int64_t i) {
    const double first = static_cast<double>(i) * chunk;
    return pairs_before(first + chunk, window) - pairs_before(first, window);
  };
  ContextPairs out;
  out.mean = pairs_before(static_cast<double>(length), window) / static_cast<double>(members);
  for (std::int64_t i = 0; i < members; ++i) {
    out.most = std::max(out.most, of_chunk(i) + of_chunk(2 * members - 1 - i));
  }
  return out;
}

}  // namespace foretrain
