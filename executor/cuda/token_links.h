// Rows of the same token in order, found by sorting: in blocks, then by merging sorted runs. Every
// row finds its own place, so there is one result however many workers there are.
#pragma once

#include <utility>

#include "executor/cuda/device_view.h"

namespace foretrain::device {

inline constexpr std::int64_t kSortedBlock = 256;

struct TokenOrder {
  const std::int64_t* tokens;
  FT_DEVICE bool before(std::int32_t a, std::int32_t b) const {
    return tokens[a] < tokens[b] || (tokens[a] == tokens[b] && a < b);
  }
};

/// Sorts every block of rows.
struct SortTokens {
  TokenOrder order;
  std::int32_t* to;
  std::int64_t rows;
  FT_DEVICE void operator()(std::int64_t r) const {
    const std::int64_t begin = r / kSortedBlock * kSortedBlock;
    const std::int64_t end = begin + kSortedBlock < rows ? begin + kSortedBlock : rows;
    const auto row = static_cast<std::int32_t>(r);
    std::int64_t place = begin;
    for (std::int64_t q = begin; q < end; ++q) {
      place += order.before(static_cast<std::int32_t>(q), row) ? 1 : 0;
    }
    to[place] = row;
  }
};

/// Merges two neighbouring sorted runs: a row stands behind those of the other that come before it.
struct MergeTokens {
  TokenOrder order;
  const std::int32_t* from;
  std::int32_t* to;
  std::int64_t rows, run;
  FT_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t begin = i / (2 * run) * 2 * run;
    const std::int64_t middle = begin + run < rows ? begin + run : rows;
    const std::int64_t end = middle + run < rows ? middle + run : rows;
    const bool in_first = i < middle;
    const std::int64_t other = in_first ? middle : begin;
    std::int64_t low = other;
    std::int64_t high = in_first ? end : middle;
    while (low < high) {
      const std::int64_t at = (low + high) / 2;
      if (order.before(from[at], from[i])) {
        low = at + 1;
      } else {
        high = at;
      }
    }
    to[begin + (i - (in_first ? begin : middle)) + (low - other)] = from[i];
  }
};

/// The rows before and after with the same token, -1 where there is none.
struct LinkTokens {
  const std::int64_t* tokens;
  const std::int32_t* order;
  std::int32_t* before;
  std::int32_t* next;
  std::int64_t rows;
  FT_DEVICE std::int32_t same(std::int64_t at, std::int32_t row) const {
    return at >= 0 && at < rows && tokens[order[at]] == tokens[row] ? order[at] : -1;
  }
  FT_DEVICE void operator()(std::int64_t i) const {
    const std::int32_t row = order[i];
    before[row] = same(i - 1, row);
    next[row] = same(i + 1, row);
  }
};

/// Arrays of `rows` that `link_tokens` needs: the two results, and two to sort in.
inline constexpr std::int64_t kLinkArrays = 4;

/// Fills the first two of `memory` with the row before and the row after.
template <typename L>
void link_tokens(L& launcher, const std::int64_t* tokens, std::int64_t rows, std::int32_t* memory) {
  std::int32_t* from = memory + 2 * rows;
  std::int32_t* to = memory + 3 * rows;
  launcher.elements(rows, SortTokens{{tokens}, from, rows});
  for (std::int64_t run = kSortedBlock; run < rows; run *= 2) {
    launcher.elements(rows, MergeTokens{{tokens}, from, to, rows, run});
    std::swap(from, to);
  }
  launcher.elements(rows, LinkTokens{tokens, from, memory, memory + rows, rows});
}

}  // namespace foretrain::device
