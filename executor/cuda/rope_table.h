// Cosines and sines of rotary positions, computed on the host as norms.cpp does.
#pragma once

#include <cmath>
#include <vector>

#include "executor/operands.h"

namespace foretrain {

/// [length][rotary_dim / 2][cosine, sine].
inline std::vector<float> make_rope_table(std::int64_t length, std::int64_t rotary_dim) {
  std::vector<float> out;
  for (std::int64_t t = 0; t < length; ++t) {
    for (std::int64_t i = 0; i < rotary_dim / 2; ++i) {
      const double rate =
          std::pow(kRopeBase, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
      const double angle = static_cast<double>(t) * rate;
      out.push_back(static_cast<float>(std::cos(angle)));
      out.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return out;
}

}  // namespace foretrain
