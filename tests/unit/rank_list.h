// Ranks at equal distances.
#pragma once

#include <vector>

#include "sim/program/program.h"

namespace foretrain {

/// `count` ranks from `first` on, `stride` apart.
inline std::vector<RankId> ranks(int first, int count, int stride) {
  std::vector<RankId> out;
  for (int i = 0; i < count; ++i) out.emplace_back(first + i * stride);
  return out;
}

}  // namespace foretrain
