// Sums of columns in a fixed order: parts of the rows first, then the parts, then what was there.
#pragma once

#include "executor/cuda/device_view.h"

namespace foretrain::device {

template <typename T>
struct PlainColumn {
  const T* in;
  std::int64_t cols;
  FT_DEVICE float operator()(std::int64_t r, std::int64_t c) const {
    return to_float(in[r * cols + c]);
  }
};

/// Worker (part, block of columns): `of(r, c)` over the rows of a part.
inline constexpr std::int64_t kColumnBlock = 256;
template <typename Of>
struct ColumnPart {
  Of of;
  std::int64_t rows, cols, part_rows, blocks;
  float* parts;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t at) const {
    const std::int64_t part = at / blocks;
    const std::int64_t first = at % blocks * kColumnBlock;
    const std::int64_t last = first + kColumnBlock < cols ? first + kColumnBlock : cols;
    const std::int64_t begin = part * part_rows;
    const std::int64_t end = begin + part_rows < rows ? begin + part_rows : rows;
    for (std::int64_t c = first + team.rank(); c < last; c += team.size()) {
      float sum = 0;
      for (std::int64_t r = begin; r < end; ++r) sum += of(r, c);
      parts[part * cols + c] = sum;
    }
  }
};

template <typename G>
struct AddParts {
  const float* parts;
  std::int64_t count, cols;
  G* out;
  FT_DEVICE void operator()(std::int64_t c) const {
    float sum = 0;
    for (std::int64_t p = 0; p < count; ++p) sum += parts[p * cols + c];
    out[c] = stored<G>(to_float(out[c]) + sum);
  }
};

template <typename L, typename Of, typename G>
void sum_columns(L& launcher, std::int64_t rows, std::int64_t cols, const Of& of, G* out) {
  constexpr std::int64_t kMostParts = 64;
  if (rows <= 0 || cols <= 0) return;
  const std::int64_t part_rows = std::max<std::int64_t>(16, (rows + kMostParts - 1) / kMostParts);
  const std::int64_t count = (rows + part_rows - 1) / part_rows;
  const std::int64_t blocks = (cols + kColumnBlock - 1) / kColumnBlock;
  auto* const parts =
      static_cast<float*>(launcher.scratch(static_cast<std::size_t>(count * cols) * sizeof(float)));
  launcher.rows(count * blocks, ColumnPart<Of>{of, rows, cols, part_rows, blocks, parts});
  launcher.elements(cols, AddParts<G>{parts, count, cols, out});
}

}  // namespace foretrain::device
