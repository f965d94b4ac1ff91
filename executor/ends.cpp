// The ends of a model on the host: token and position tables, the loss over a vocabulary that may
// be cut.
#include <algorithm>
#include <cmath>
#include <limits>

#include "executor/kernels.h"

namespace foretrain {
namespace {

/// The local rows of a table that is cut along the vocabulary.
struct Slice {
  std::int64_t first = 0, count = 0;
  bool has(std::int64_t id) const { return id >= first && id < first + count; }
};
Slice slice_of(const Kernel& w, const OpContext& context, std::int64_t local) {
  return {context.place(w.split_over).index * local, local};
}

template <typename T>
void embedding(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  const Slice slice = slice_of(w, context, x.reads[0].count / w.cols);
  const std::int64_t* tokens = x.ids(1);
  for (std::int64_t r = 0; r < w.rows; ++r) {
    T* out = x.out(0) + r * w.cols;
    if (slice.has(tokens[r])) {
      std::copy_n(x.in(0) + (tokens[r] - slice.first) * w.cols, w.cols, out);
    } else {
      std::fill_n(out, w.cols, T(0));
    }
  }
}

template <typename T>
void embedding_backward(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  const Slice slice = slice_of(w, context, x.writes[0].count / w.cols);
  const std::int64_t* tokens = x.ids(1);
  for (std::int64_t r = 0; r < w.rows; ++r) {
    if (!slice.has(tokens[r])) continue;
    const T* d = x.in(0) + r * w.cols;
    T* row = x.out(0) + (tokens[r] - slice.first) * w.cols;
    for (std::int64_t c = 0; c < w.cols; ++c) row[c] += d[c];
  }
}

/// Position of local row r in its sequence.
std::int64_t position(const Kernel& w, const OpContext& context, std::int64_t r) {
  return context.token(w.split_over, w.rows, r).position;
}

template <typename T>
void positions_add(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* in = x.in(0) + r * w.cols;
    const T* row = x.in(1) + position(w, context, r) * w.cols;
    T* out = x.out(0) + r * w.cols;
    for (std::int64_t c = 0; c < w.cols; ++c) out[c] = in[c] + row[c];
  }
}

template <typename T>
void positions_gradient(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* d = x.in(0) + r * w.cols;
    T* row = x.out(0) + position(w, context, r) * w.cols;
    for (std::int64_t c = 0; c < w.cols; ++c) row[c] += d[c];
  }
}

/// Local columns that are no padding.
std::int64_t real_columns(const Kernel& w, const OpContext& context) {
  const std::int64_t first = slice_of(w, context, w.cols).first;
  return std::clamp<std::int64_t>(context.batch.vocabulary - first, 0, w.cols);
}

/// A logit as the loss takes it: with a soft cap c, which `value` is, c tanh(logit / c).
template <typename T>
T capped(const Kernel& w, T logit) {
  if (w.value == 0) return logit;
  const T cap = static_cast<T>(w.value);
  return cap * std::tanh(logit / cap);
}

template <typename T>
void loss_max(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  const std::int64_t columns = real_columns(w, context);
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* in = x.in(0) + r * w.cols;
    // Lower than any logit, yet a number: a rank may hold nothing but padding.
    T top = std::numeric_limits<T>::lowest();
    for (std::int64_t c = 0; c < columns; ++c) top = std::max(top, in[c]);
    x.out(0)[r] = columns > 0 ? capped(w, top) : top;
  }
}

template <typename T>
void loss_sum_exp(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  // reads: logits, maximum, labels; writes: exponentials, sums, target's logit less the maximum
  const Slice slice = slice_of(w, context, w.cols);
  const std::int64_t columns = real_columns(w, context);
  const std::int64_t* labels = x.ids(2);
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* in = x.in(0) + r * w.cols;
    T* out = x.out(0) + r * w.cols;
    const T top = x.in(1)[r];
    T sum = 0;
    for (std::int64_t c = 0; c < columns; ++c) sum += out[c] = std::exp(capped(w, in[c]) - top);
    std::fill(out + columns, out + w.cols, T(0));
    x.out(1)[r] = sum;
    const bool here = slice.has(labels[r]);
    x.out(2)[r] = here ? capped(w, in[labels[r] - slice.first]) - top : T(0);
  }
}

template <typename T>
void loss_mean(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  double sum = 0;
  for (std::int64_t r = 0; r < w.rows; ++r) {
    sum += std::log(static_cast<double>(x.in(1)[r])) - static_cast<double>(x.in(0)[r]);
  }
  *x.out(0) += static_cast<T>(sum / static_cast<double>(context.global_tokens()));
}

template <typename T>
void loss_shift(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  // reads: sums, the maximum that they are less, another, targets, labels; writes: sums less the
  // other, targets likewise where they are local. Without the last two reads sums alone.
  const bool targets = x.writes.size() > 1;
  const Slice slice = slice_of(w, context, w.cols);
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T up = x.in(1)[r] - x.in(2)[r];
    x.out(0)[r] = x.in(0)[r] * std::exp(up);
    if (targets) x.out(1)[r] = slice.has(x.ids(4)[r]) ? x.in(3)[r] + up : T(0);
  }
}

template <typename T>
void loss_input_gradient(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  // reads: exponentials times the output matrix, its rows of the labels, sums
  const T share = T(1) / static_cast<T>(context.global_tokens());
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T scale = share / x.in(2)[r];
    for (std::int64_t i = r * w.cols; i < (r + 1) * w.cols; ++i) {
      x.out(0)[i] = x.in(0)[i] * scale - x.in(1)[i] * share;
    }
  }
}

template <typename T>
void loss_backward(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  const Slice slice = slice_of(w, context, w.cols);
  const std::int64_t* labels = x.ids(2);
  const T share = T(1) / static_cast<T>(context.global_tokens());
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* e = x.in(0) + r * w.cols;
    T* out = x.out(0) + r * w.cols;
    const T scale = share / x.in(1)[r];
    for (std::int64_t c = 0; c < w.cols; ++c) out[c] = e[c] * scale;
    if (slice.has(labels[r])) out[labels[r] - slice.first] -= share;
    if (w.value == 0) continue;
    // Of a capped logit z, which is the logarithm of its exponential and the maximum: 1 - (z/c)^2.
    const T top = x.in(3)[r];
    for (std::int64_t c = 0; c < w.cols; ++c) {
      const T z = e[c] > T(0) ? (std::log(e[c]) + top) / static_cast<T>(w.value) : T(1);
      out[c] *= T(1) - z * z;
    }
  }
}

}  // namespace

template <typename T>
void run_ends(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  switch (w.kind) {
    case KernelKind::kEmbedding:
      return embedding(w, context, x);
    case KernelKind::kEmbeddingBackward:
      return embedding_backward(w, context, x);
    case KernelKind::kPositionsAdd:
      return positions_add(w, context, x);
    case KernelKind::kPositionsGrad:
      return positions_gradient(w, context, x);
    case KernelKind::kLossMax:
      return loss_max(w, context, x);
    case KernelKind::kLossSumExp:
      return loss_sum_exp(w, context, x);
    case KernelKind::kLossMean:
      return loss_mean(w, context, x);
    case KernelKind::kLossShift:
      return loss_shift(w, context, x);
    case KernelKind::kLossInput:
      return loss_input_gradient(w, context, x);
    default:
      return loss_backward(w, context, x);
  }
}

template void run_ends(const Kernel&, const OpContext&, const Operands<float>&);
template void run_ends(const Kernel&, const OpContext&, const Operands<double>&);

}  // namespace foretrain
