// Experts on the host: the choice of experts for tokens, and the ways of their rows there and back.
//
// An expert has room for C rows of every rank, in the order of that rank's tokens: those that a
// rank sends lie [expert][C], and an exchange of equal parts takes them to their experts' ranks. A
// row that no token fills is zero. A routing map says of every (token, expert) what became of it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "executor/kernels.h"

namespace foretrain {
namespace {

/// Entries of a routing map.
constexpr std::uint8_t kNot = 0, kTaken = 1, kDropped = 2;

/// The experts of the layer and step in a drawn order.
std::vector<std::int64_t> drawn_order(const OpContext& context, std::int64_t experts) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(experts));
  std::iota(out.begin(), out.end(), std::int64_t{0});
  const std::uint64_t key = context.key("order of experts");
  for (std::int64_t i = experts - 1; i > 0; --i) {
    const auto drawn = uniform_at(key, i) * static_cast<double>(i + 1);
    std::swap(out[static_cast<std::size_t>(i)], out[static_cast<std::size_t>(drawn)]);
  }
  return out;
}

/// In turn: choice n of the tokens of the global batch, k each, goes to expert n mod E of the drawn
/// order, so that any n E choices in a row give every expert n.
/// Best: the k largest logits, the first of equal ones.
template <typename T>
class Chooser {
 public:
  Chooser(const Kernel& w, const OpContext& context)
      : x_to(w.rows_of),
        x_work(w),
        x_context(context),
        x_order(drawn_order(context, w.rows_of.experts)) {}

  /// Of local token r; good until the next call.
  const std::vector<std::int64_t>& of(std::int64_t r, const T* logits) {
    x_chosen = x_order;
    if (x_to.choice == ExpertChoice::kInTurn) {
      const std::int64_t token = x_context.global_token(x_work.split_over, x_work.rows, r);
      const std::int64_t turn = token * x_to.top_k % x_to.experts;
      std::rotate(x_chosen.begin(), x_chosen.begin() + turn, x_chosen.end());
    } else {
      std::sort(x_chosen.begin(), x_chosen.end(), [logits](std::int64_t a, std::int64_t b) {
        return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
      });
    }
    x_chosen.resize(static_cast<std::size_t>(x_to.top_k));
    return x_chosen;
  }

 private:
  const ExpertRows& x_to;
  const Kernel& x_work;
  const OpContext& x_context;
  std::vector<std::int64_t> x_order, x_chosen;
};

/// reads: logits; writes: scores, map. Scores are the softmax of the chosen logits, zero elsewhere.
/// A token beyond the room of an expert is dropped there.
template <typename T>
void route(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  const std::int64_t experts = w.rows_of.experts;
  Chooser<T> chooser(w, context);
  std::vector<std::int64_t> filled(static_cast<std::size_t>(experts));
  std::fill_n(x.out(0), w.rows * experts, T(0));
  std::fill_n(x.flags_out(1), w.rows * experts, kNot);
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* logits = x.in(0) + r * experts;
    T* scores = x.out(0) + r * experts;
    const std::vector<std::int64_t>& chosen = chooser.of(r, logits);
    T top = std::numeric_limits<T>::lowest();
    for (const std::int64_t e : chosen) top = std::max(top, logits[e]);
    T sum = 0;
    for (const std::int64_t e : chosen) sum += std::exp(logits[e] - top);
    for (const std::int64_t e : chosen) {
      // Chosen, so never zero.
      scores[e] = std::max(std::exp(logits[e] - top) / sum, std::numeric_limits<T>::min());
      const bool room = filled[static_cast<std::size_t>(e)] < w.rows_of.capacity;
      x.flags_out(1)[r * experts + e] = room ? kTaken : kDropped;
      if (room) ++filled[static_cast<std::size_t>(e)];
    }
  }
}

/// reads: d scores (of all experts, or of a token's own in their order), scores, map. Of the
/// softmax p of the chosen: d logit_e = p_e (d p_e - sum_j p_j d p_j).
template <typename T>
void route_backward(const Kernel& w, const Operands<T>& x) {
  const std::int64_t experts = w.rows_of.experts;
  const std::int64_t width = x.reads[0].count / w.rows;
  std::vector<T> d(static_cast<std::size_t>(experts));
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* given = x.in(0) + r * width;
    const T* scores = x.in(1) + r * experts;
    const std::uint8_t* map = x.flags_in(2) + r * experts;
    T* out = x.out(0) + r * experts;
    T mean = 0;
    std::int64_t next = 0;
    for (std::int64_t e = 0; e < experts; ++e) {
      if (map[e] == kNot) continue;
      const std::int64_t at = width == experts ? e : next++;
      d[static_cast<std::size_t>(e)] = at < width ? given[at] : T(0);
      mean += scores[e] * d[static_cast<std::size_t>(e)];
    }
    for (std::int64_t e = 0; e < experts; ++e) {
      out[e] = map[e] == kNot ? T(0) : scores[e] * (d[static_cast<std::size_t>(e)] - mean);
    }
  }
}

template <typename T>
void count_tokens(const Kernel& w, const Operands<T>& x) {
  std::fill_n(x.ids_out(0), w.rows_of.experts, std::int64_t{0});
  for (std::int64_t i = 0; i < w.rows * w.rows_of.experts; ++i) {
    if (x.flags_in(0)[i] == kTaken) ++x.ids_out(0)[i % w.rows_of.experts];
  }
}

/// Calls visit(token, expert, row of [expert][C]) for every one that was taken.
template <typename Visit>
void each_row(const ExpertRows& to, const std::uint8_t* map, std::int64_t tokens, Visit visit) {
  std::vector<std::int64_t> filled(static_cast<std::size_t>(to.experts));
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t e = 0; e < to.experts; ++e) {
      if (map[t * to.experts + e] != kTaken) continue;
      const std::int64_t slot = filled[static_cast<std::size_t>(e)]++;
      if (slot < to.capacity) visit(t, e, e * to.capacity + slot);
    }
  }
}

template <typename T>
void clear(const Operands<T>& x) {
  for (std::size_t i = 0; i < x.writes.size(); ++i) {
    if (x.writes[i].buffer->dtype == DType::kFp32) {
      std::fill_n(x.out(i), x.writes[i].count, T(0));
    }
  }
}

/// reads: tokens, [scores], map; writes: rows, [probabilities].
template <typename T>
void permute(const Kernel& w, const Operands<T>& x) {
  clear(x);
  const std::int64_t experts = w.rows_of.experts;
  const std::uint8_t* map = x.flags_in(x.reads.size() - 1);
  const std::int64_t tokens = x.reads[0].count / w.cols;
  each_row(w.rows_of, map, tokens, [&](std::int64_t t, std::int64_t e, std::int64_t row) {
    std::copy_n(x.in(0) + t * w.cols, w.cols, x.out(0) + row * w.cols);
    if (x.writes.size() > 1) x.out(1)[row] = x.in(1)[t * experts + e];
  });
}

/// reads: rows, [d probabilities], map; writes: tokens, each the sum of its rows, [d scores of a
/// token's experts, those of dropped ones zero].
template <typename T>
void unpermute(const Kernel& w, const Operands<T>& x) {
  clear(x);
  const std::int64_t experts = w.rows_of.experts;
  const std::uint8_t* map = x.flags_in(x.reads.size() - 1);
  const std::int64_t tokens = x.writes[0].count / w.cols;
  each_row(w.rows_of, map, tokens, [&](std::int64_t t, std::int64_t e, std::int64_t row) {
    const T* in = x.in(0) + row * w.cols;
    T* out = x.out(0) + t * w.cols;
    for (std::int64_t c = 0; c < w.cols; ++c) out[c] += in[c];
    if (x.writes.size() < 2) return;
    const std::uint8_t* own = map + t * experts;
    const auto before = std::count_if(own, own + e, [](std::uint8_t m) { return m != kNot; });
    if (before < w.rows_of.top_k) x.out(1)[t * w.rows_of.top_k + before] = x.in(1)[row];
  });
}

/// Rows [source][expert][C] to [expert][source][C], or back: any number of operands.
template <typename T>
void sort_blocks(const Kernel& w, const Operands<T>& x) {
  const ExpertRows& to = w.rows_of;
  const bool back = w.kind == KernelKind::kUnpermute;
  for (std::size_t i = 0; i < x.writes.size(); ++i) {
    const std::int64_t block = x.reads[i].count / (to.sources * to.experts);
    for (std::int64_t s = 0; s < to.sources; ++s) {
      for (std::int64_t e = 0; e < to.experts; ++e) {
        const std::int64_t sent = (s * to.experts + e) * block;
        const std::int64_t sorted = (e * to.sources + s) * block;
        std::copy_n(x.in(i) + (back ? sorted : sent), block, x.out(i) + (back ? sent : sorted));
      }
    }
  }
}

/// Of the tokens of all ranks, those that chose one of this rank's experts. reads: tokens, scores;
/// writes: rows, probabilities, places: which token a row is, -1 where none.
template <typename T>
void pick(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  clear(x);
  const ExpertRows& to = w.rows_of;
  std::fill_n(x.ids_out(2), x.writes[2].count, std::int64_t{-1});
  const std::int64_t tokens = x.reads[0].count / w.cols;
  const std::int64_t experts = x.reads[1].count / tokens;
  const std::int64_t own = context.place(w.split_over).index * to.experts;
  for (std::int64_t e = 0; e < to.experts; ++e) {
    for (std::int64_t s = 0; s < to.sources; ++s) {
      std::int64_t row = (e * to.sources + s) * to.capacity;
      const std::int64_t end = row + to.capacity;
      const std::int64_t last = (s + 1) * (tokens / to.sources);
      for (std::int64_t t = s * (tokens / to.sources); t < last && row < end; ++t) {
        const T score = x.in(1)[t * experts + own + e];
        if (score <= T(0)) continue;
        std::copy_n(x.in(0) + t * w.cols, w.cols, x.out(0) + row * w.cols);
        x.out(1)[row] = score;
        x.ids_out(2)[row++] = t;
      }
    }
  }
}

/// The same rows of another array. reads: tokens, places; writes: rows.
template <typename T>
void pick_again(const Kernel& w, const Operands<T>& x) {
  clear(x);
  const std::int64_t tokens = x.reads[0].count / w.cols;
  for (std::int64_t row = 0; row < x.reads[1].count; ++row) {
    const std::int64_t t = x.ids(1)[row];
    if (t < 0 || t >= tokens) continue;
    std::copy_n(x.in(0) + t * w.cols, w.cols, x.out(0) + row * w.cols);
  }
}

/// And back. reads: rows, [d probabilities], places; writes: tokens, [d scores of all experts].
template <typename T>
void put_back(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  clear(x);
  const ExpertRows& to = w.rows_of;
  const std::int64_t tokens = x.writes[0].count / w.cols;
  const std::int64_t own = context.place(w.split_over).index * to.experts;
  const std::int64_t* places = x.ids(x.reads.size() - 1);
  for (std::int64_t row = 0; row < x.reads.back().count; ++row) {
    const std::int64_t t = places[row];
    if (t < 0 || t >= tokens) continue;
    const T* in = x.in(0) + row * w.cols;
    T* out = x.out(0) + t * w.cols;
    for (std::int64_t c = 0; c < w.cols; ++c) out[c] += in[c];
    if (x.writes.size() < 2) continue;
    const std::int64_t e = own + row / (to.sources * to.capacity);
    x.out(1)[t * (x.writes[1].count / tokens) + e] = x.in(1)[row];
  }
}

bool is_ids(const Operand& operand) { return operand.buffer->dtype == DType::kInt64; }

/// By what says where rows go: places of gathered tokens, a routing map, or their order alone.
template <typename T>
void move_rows(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  const bool there = w.kind == KernelKind::kPermute;
  if (is_ids(x.writes.back())) return pick(w, context, x);
  if (is_ids(x.reads.back())) return there ? pick_again(w, x) : put_back(w, context, x);
  if (x.reads.back().buffer->dtype == DType::kUint8) return there ? permute(w, x) : unpermute(w, x);
  sort_blocks(w, x);
}

}  // namespace

template <typename T>
void run_experts(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  switch (w.kind) {
    case KernelKind::kRoute:
      return route(w, context, x);
    case KernelKind::kRouteBackward:
      return route_backward(w, x);
    case KernelKind::kExpertCounts:
      return count_tokens(w, x);
    default:
      return move_rows(w, context, x);
  }
}

template void run_experts(const Kernel&, const OpContext&, const Operands<float>&);
template void run_experts(const Kernel&, const OpContext&, const Operands<double>&);

}  // namespace foretrain
