// The ways of tokens to their experts and back. Which row of an expert a token has is worked out
// first, into tables; then every row, or every token, is written by one team alone, so sums go in
// the order of experts.cpp.
#pragma once

#include "executor/cuda/route_kernels.h"

namespace foretrain::device {

struct SetIds {
  std::int64_t* ids;
  FT_DEVICE void operator()(std::int64_t i) const { ids[i] = -1; }
};

/// Of a routing map: which token a row is, and which row a token has at an expert; -1 where none.
struct MappedRows {
  const std::uint8_t* map;
  std::int64_t experts, capacity;
  std::int64_t* token_of;
  std::int64_t* row_of;  ///< [token][expert]
  FT_DEVICE bool takes(std::int64_t e, std::int64_t t) const {
    return map[t * experts + e] == kTaken;
  }
  FT_DEVICE void use(std::int64_t at, std::int64_t e, std::int64_t t, std::int64_t slot) const {
    if (slot >= capacity) return;
    const std::int64_t row = at * capacity + slot;
    if (token_of != nullptr) token_of[row] = t;
    if (row_of != nullptr) row_of[t * experts + e] = row;
  }
};

/// Of gathered tokens: those whose score of an expert of this rank is not zero.
struct PickedRows {
  const float* scores;
  std::int64_t all, own, capacity;  ///< experts of the layer; the first of this rank
  std::int64_t* token_of;
  FT_DEVICE bool takes(std::int64_t e, std::int64_t t) const {
    return scores[t * all + own + e] > 0.0F;
  }
  FT_DEVICE void use(std::int64_t at, std::int64_t, std::int64_t t, std::int64_t slot) const {
    if (slot < capacity) token_of[at * capacity + slot] = t;
  }
};

/// The rows of a token's experts, in their order: `top_k` of them, -1 where it was dropped.
struct RowsOfTokens {
  const std::uint8_t* map;
  const std::int64_t* row_of;
  std::int64_t* rows;
  std::int64_t experts, top_k;
  FT_DEVICE void operator()(std::int64_t t) const {
    std::int64_t next = 0;
    for (std::int64_t e = 0; e < experts && next < top_k; ++e) {
      if (map[t * experts + e] != kNot) rows[t * top_k + next++] = row_of[t * experts + e];
    }
    for (; next < top_k; ++next) rows[t * top_k + next] = -1;
  }
};

/// From which token a row is to [token][expert of this rank]: its row.
struct TurnPlaces {
  const std::int64_t* token_of;
  std::int64_t* row_of;
  std::int64_t tokens, experts, rows;  ///< rows of an expert
  FT_DEVICE void operator()(std::int64_t row) const {
    const std::int64_t t = token_of[row];
    if (t >= 0 && t < tokens) row_of[t * experts + row / rows] = row;
  }
};

/// A row: its token's, and the score that the token gives its expert.
template <typename T>
struct TakeRows {
  const T* in;
  const float* scores;
  const std::int64_t* token_of;
  T* out;
  float* probabilities;  ///< may be none
  std::int64_t tokens, cols, all, own, rows;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t row) const {
    const std::int64_t t = token_of[row];
    const bool none = t < 0 || t >= tokens;
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      out[row * cols + c] = none ? stored<T>(0.0F) : in[t * cols + c];
    }
    if (probabilities == nullptr || team.rank() != 0) return;
    probabilities[row] = none ? 0.0F : scores[t * all + own + row / rows];
  }
};

/// A token: the sum of its rows, `width` of them at most, and d scores from `first` on of `all`.
template <typename T>
struct SumRows {
  const T* in;
  const float* d_probabilities;
  const std::int64_t* rows;
  T* out;
  float* d_scores;  ///< may be none
  std::int64_t cols, width, all, first;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t t) const {
    const std::int64_t* const own = rows + t * width;
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      float sum = 0;
      for (std::int64_t j = 0; j < width; ++j) {
        if (own[j] >= 0) sum += to_float(in[own[j] * cols + c]);
      }
      out[t * cols + c] = stored<T>(sum);
    }
    if (d_scores == nullptr) return;
    for (std::int64_t e = team.rank(); e < all; e += team.size()) {
      const bool has = e >= first && e < first + width && own[e - first] >= 0;
      d_scores[t * all + e] = has ? d_probabilities[own[e - first]] : 0.0F;
    }
  }
};

/// [source][expert][block] to [expert][source][block], or back.
template <typename T>
struct SortBlocks {
  const T* in;
  T* out;
  std::int64_t sources, experts, block;
  bool back;
  FT_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t at = i / block;
    const std::int64_t outer = back ? experts : sources;
    const std::int64_t inner = back ? sources : experts;
    out[(at % inner * outer + at / inner) * block + i % block] = in[i];
  }
};

/// Ids that start as -1.
template <typename L>
std::int64_t* new_ids(L& launcher, std::int64_t* ids, std::int64_t count) {
  launcher.elements(count, SetIds{ids});
  return ids;
}
template <typename L>
std::int64_t* id_scratch(L& launcher, std::int64_t count) {
  return static_cast<std::int64_t*>(
      launcher.scratch(static_cast<std::size_t>(count) * sizeof(std::int64_t)));
}

/// reads: tokens, [scores], map or places; writes: rows, [probabilities].
template <typename L>
void take_rows(L& launcher, const Kernel& w, const DeviceOperands& x, const std::int64_t* token_of,
               std::int64_t own, std::int64_t rows) {
  const std::int64_t tokens = x.reads[0].count / w.cols;
  const bool scored = x.writes.size() > 1;
  with_type(x.type_in(0), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    launcher.rows(x.writes[0].count / w.cols,
                  TakeRows<T>{x.in<T>(0), scored ? x.in<float>(1) : nullptr, token_of, x.out<T>(0),
                              scored ? x.out<float>(1) : nullptr, tokens, w.cols,
                              scored ? x.reads[1].count / tokens : 1, own, rows});
  });
}

/// reads: rows, [d probabilities], map or places; writes: tokens, [d scores].
template <typename L>
void sum_rows(L& launcher, const Kernel& w, const DeviceOperands& x, const std::int64_t* rows,
              std::int64_t width, std::int64_t first) {
  const std::int64_t tokens = x.writes[0].count / w.cols;
  const bool scored = x.writes.size() > 1;
  with_type(x.type_in(0), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    launcher.rows(tokens, SumRows<T>{x.in<T>(0), scored ? x.in<float>(1) : nullptr, rows,
                                     x.out<T>(0), scored ? x.out<float>(1) : nullptr, w.cols, width,
                                     scored ? x.writes[1].count / tokens : 0, first});
  });
}

template <typename L>
void permute(L& launcher, const Kernel& w, const DeviceOperands& x) {
  const ExpertRows& to = w.rows_of;
  const std::int64_t rows = x.writes[0].count / w.cols;
  std::int64_t* const token_of = new_ids(launcher, id_scratch(launcher, rows), rows);
  in_order(launcher,
           MappedRows{x.in<std::uint8_t>(x.reads.size() - 1), to.experts, to.capacity, token_of,
                      nullptr},
           to.experts, 1, x.reads[0].count / w.cols);
  take_rows(launcher, w, x, token_of, 0, to.capacity);
}

template <typename L>
void unpermute(L& launcher, const Kernel& w, const DeviceOperands& x) {
  const ExpertRows& to = w.rows_of;
  const std::int64_t tokens = x.writes[0].count / w.cols;
  const auto* const map = x.in<std::uint8_t>(x.reads.size() - 1);
  std::int64_t* const rows = id_scratch(launcher, tokens * (to.top_k + to.experts));
  std::int64_t* const row_of = new_ids(launcher, rows + tokens * to.top_k, tokens * to.experts);
  in_order(launcher, MappedRows{map, to.experts, to.capacity, nullptr, row_of}, to.experts, 1,
           tokens);
  launcher.elements(tokens, RowsOfTokens{map, row_of, rows, to.experts, to.top_k});
  sum_rows(launcher, w, x, rows, to.top_k, 0);
}

/// Any number of operands.
template <typename L>
void sort_blocks(L& launcher, const Kernel& w, const DeviceOperands& x) {
  const ExpertRows& to = w.rows_of;
  for (std::size_t i = 0; i < x.writes.size(); ++i) {
    with_type(x.type_in(i), [&](auto tag) {
      using T = typename decltype(tag)::Type;
      const std::int64_t count = x.reads[i].count;
      launcher.elements(count, SortBlocks<T>{x.in<T>(i), x.out<T>(i), to.sources, to.experts,
                                             count / (to.sources * to.experts),
                                             w.kind == KernelKind::kUnpermute});
    });
  }
}

template <typename L>
void pick(L& launcher, const Kernel& w, const OpContext& context, const DeviceOperands& x) {
  const ExpertRows& to = w.rows_of;
  const std::int64_t tokens = x.reads[0].count / w.cols;
  const std::int64_t own = context.place(w.split_over).index * to.experts;
  std::int64_t* const token_of = new_ids(launcher, x.out<std::int64_t>(2), x.writes[2].count);
  in_order(launcher,
           PickedRows{x.in<float>(1), x.reads[1].count / tokens, own, to.capacity, token_of},
           to.experts, to.sources, tokens / to.sources);
  take_rows(launcher, w, x, token_of, own, to.sources * to.capacity);
}

template <typename L>
void put_back(L& launcher, const Kernel& w, const OpContext& context, const DeviceOperands& x) {
  const ExpertRows& to = w.rows_of;
  const std::int64_t tokens = x.writes[0].count / w.cols;
  std::int64_t* const row_of =
      new_ids(launcher, id_scratch(launcher, tokens * to.experts), tokens * to.experts);
  launcher.elements(x.reads.back().count, TurnPlaces{x.in<std::int64_t>(x.reads.size() - 1), row_of,
                                                     tokens, to.experts, to.sources * to.capacity});
  sum_rows(launcher, w, x, row_of, to.experts, context.place(w.split_over).index * to.experts);
}

/// By what says where rows go: places of gathered tokens, a routing map, or their order alone.
template <typename L>
void run_experts(L& launcher, const Kernel& w, const OpContext& context, const DeviceOperands& x) {
  if (w.kind < KernelKind::kPermute) return run_route(launcher, w, context, x);
  const bool there = w.kind == KernelKind::kPermute;
  const DType last = x.type_in(x.reads.size() - 1);
  if (x.type_out(x.writes.size() - 1) == DType::kInt64) return pick(launcher, w, context, x);
  if (last == DType::kInt64) {
    if (!there) return put_back(launcher, w, context, x);
    return take_rows(launcher, w, x, x.in<std::int64_t>(1), 0, 1);
  }
  if (last != DType::kUint8) return sort_blocks(launcher, w, x);
  there ? permute(launcher, w, x) : unpermute(launcher, w, x);
}

}  // namespace foretrain::device
