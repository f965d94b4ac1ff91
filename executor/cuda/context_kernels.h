// What context parallelism moves between pieces of attention. The mathematics is
// context_rows.cpp's.
#pragma once

#include <cmath>

#include "executor/cuda/token_places.h"

namespace foretrain::device {

/// How a row of packed qkv is cut: `groups` key-value heads, each its queries, then its key and
/// value; numbers of elements.
struct PackedRow {
  std::int64_t groups = 1, queries = 0, keys = 0;
  /// Where element i of rows of keys alone, or of queries alone, lies in packed rows.
  FT_DEVICE std::int64_t key_at(std::int64_t i) const {
    return i / keys * (queries + keys) + queries + i % keys;
  }
  FT_DEVICE std::int64_t query_at(std::int64_t i) const {
    return i / queries * (queries + keys) + i % queries;
  }
};
/// `keys`: elements of a token's keys and values.
inline PackedRow packed_row(std::int64_t width, std::int64_t keys, std::int64_t head_dim) {
  const std::int64_t groups = keys / (2 * head_dim);
  return {groups, (width - keys) / groups, 2 * head_dim};
}

template <typename T>
struct PackKeys {
  const T* in;
  T* out;
  PackedRow row;
  FT_DEVICE void operator()(std::int64_t i) const { out[i] = in[row.key_at(i)]; }
};
template <typename T>
struct UnpackKeys {
  const T* in;
  T* out;
  PackedRow row;
  FT_DEVICE void operator()(std::int64_t i) const { out[row.key_at(i)] = in[i]; }
};
template <typename T>
struct AddQueries {
  const T* queries;
  T* out;
  PackedRow row;
  FT_DEVICE void operator()(std::int64_t i) const {
    T& to = out[row.query_at(i)];
    to = stored<T>(to_float(to) + to_float(queries[i]));
  }
};

/// A token: with M = log(e^L + e^l), out = e^(L - M) out + e^(l - M) part, and L = M. In place.
template <typename T>
struct MergeParts {
  const T* out;
  const float* log_sums;
  const T* part;
  const float* part_log_sums;
  T* result;
  float* result_log_sums;
  std::int64_t cols, heads, length;  ///< length: of a sequence's part
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t row) const {
    float* const shares = team.shared();
    for (std::int64_t h = team.rank(); h < heads; h += team.size()) {
      const std::int64_t at = (row / length * heads + h) * length + row % length;
      const float own = log_sums[at];
      const float other = part_log_sums[at];
      const float top = own > other ? own : other;
      const float sum = top + std::log(std::exp(own - top) + std::exp(other - top));
      shares[2 * h] = std::exp(own - sum);
      shares[2 * h + 1] = std::exp(other - sum);
      result_log_sums[at] = sum;
    }
    team.sync();
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      const float* const of = shares + 2 * (c / (cols / heads));
      const std::int64_t i = row * cols + c;
      result[i] = stored<T>(of[0] * to_float(out[i]) + of[1] * to_float(part[i]));
    }
  }
};

/// Rows [token][part of the heads] to [part][token], or back.
template <typename T>
struct SplitHeads {
  const T* in;
  T* out;
  std::int64_t rows, cols, parts;
  bool back;
  FT_DEVICE void operator()(std::int64_t by_tokens) const {
    const std::int64_t width = cols / parts;
    const std::int64_t c = by_tokens % cols;
    const std::int64_t by_parts = (c / width * rows + by_tokens / cols) * width + c % width;
    out[back ? by_tokens : by_parts] = in[back ? by_parts : by_tokens];
  }
};

/// Rows [sequence][position] to [member][sequence][its tokens], or back.
template <typename T>
struct SplitSequence {
  const T* in;
  T* out;
  std::int64_t cols, batch, length, members;  ///< length: of what the members hold together
  TokenPlaces places;
  bool back;
  FT_DEVICE void operator()(std::int64_t cut) const {
    const std::int64_t part = length / members;
    const std::int64_t row = cut / cols;
    const std::int64_t member = row / (batch * part);
    const std::int64_t i = row % (batch * part);
    const std::int64_t position = places.in_part(i % part, member);
    const std::int64_t whole = (i / part * length + position) * cols + cut % cols;
    out[back ? whole : cut] = in[back ? cut : whole];
  }
};

template <typename T, typename L>
void move_keys(L& launcher, const Kernel& w, const DeviceOperands& x) {
  const bool packs = w.kind == KernelKind::kPackKeys;
  const std::int64_t width = (packs ? x.reads[0].count : x.writes[0].count) / w.rows;
  if (w.kind == KernelKind::kAddQueries) {
    const PackedRow row = packed_row(width, width - w.cols, w.head_dim);
    return launcher.elements(w.rows * w.cols, AddQueries<T>{x.in<T>(1), x.out<T>(0), row});
  }
  const PackedRow row = packed_row(width, w.cols, w.head_dim);
  if (packs) {
    launcher.elements(w.rows * w.cols, PackKeys<T>{x.in<T>(0), x.out<T>(0), row});
  } else {
    launcher.elements(w.rows * w.cols, UnpackKeys<T>{x.in<T>(0), x.out<T>(0), row});
  }
}

template <typename T, typename L>
void merge_parts(L& launcher, const Kernel& w, const OpContext& context, const DeviceOperands& x) {
  const std::int64_t heads = w.cols / w.head_dim;
  launcher.rows(w.rows,
                MergeParts<T>{x.in<T>(0), x.in<float>(1), x.in<T>(2), x.in<float>(3), x.out<T>(0),
                              x.out<float>(1), w.cols, heads, w.rows / context.batch.sequences},
                static_cast<std::size_t>(2 * heads));
}

template <typename L>
void run_context(L& launcher, const Kernel& w, const OpContext& context, const DeviceOperands& x) {
  const std::int64_t members = context.among_parts(w.split_over).size;
  with_type(x.type_out(0), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (w.kind <= KernelKind::kAddQueries) return move_keys<T>(launcher, w, x);
    if (w.kind == KernelKind::kMergeAttention) return merge_parts<T>(launcher, w, context, x);
    if (w.kind <= KernelKind::kJoinHeads) {
      return launcher.elements(w.rows * w.cols,
                               SplitHeads<T>{x.in<T>(0), x.out<T>(0), w.rows, w.cols, members,
                                             w.kind == KernelKind::kJoinHeads});
    }
    const std::int64_t batch = context.batch.sequences;
    TokenPlaces places;
    places.members = members;
    places.whole = w.rows / batch;
    launcher.elements(w.rows * w.cols,
                      SplitSequence<T>{x.in<T>(0), x.out<T>(0), w.cols, batch, places.whole,
                                       members, places, w.kind == KernelKind::kJoinSequence});
  });
}

}  // namespace foretrain::device
