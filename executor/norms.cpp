// LayerNorm, RMSNorm, RMSNorm of query and key heads, rotary positions.
#include <algorithm>
#include <cmath>

#include "executor/kernels.h"

namespace foretrain {
namespace {

/// Mean and reciprocal deviation of a row, or zero and the reciprocal root mean square.
template <typename T>
struct RowStatistics {
  T mean = 0, scale = 0;
};

template <typename T>
RowStatistics<T> layer_statistics(const T* in, std::int64_t cols) {
  double sum = 0;
  for (std::int64_t c = 0; c < cols; ++c) sum += in[c];
  const double mean = sum / static_cast<double>(cols);
  double square = 0;
  for (std::int64_t c = 0; c < cols; ++c) square += (in[c] - mean) * (in[c] - mean);
  const double scale = 1 / std::sqrt(square / static_cast<double>(cols) + kNormEpsilon);
  return {static_cast<T>(mean), static_cast<T>(scale)};
}

/// Reciprocal of the root mean square.
template <typename T>
T reciprocal_rms(const T* in, std::int64_t cols) {
  double square = 0;
  for (std::int64_t c = 0; c < cols; ++c) square += static_cast<double>(in[c]) * in[c];
  return static_cast<T>(1 / std::sqrt(square / static_cast<double>(cols) + kNormEpsilon));
}

/// From the sums over all `cols` columns: of the elements and of their squares (LayerNorm), or of
/// the latter.
template <typename T>
RowStatistics<T> summed_statistics(const T* sums, std::int64_t cols, bool centred) {
  const auto n = static_cast<double>(cols);
  const double mean = centred ? sums[0] / n : 0;
  const double square = sums[centred ? 1 : 0] / n - mean * mean;
  const double scale = 1 / std::sqrt(std::max(0.0, square) + kNormEpsilon);
  return {static_cast<T>(mean), static_cast<T>(scale)};
}

/// reads: x, [weight], [bias], [sums where the columns are cut].
template <typename T>
void norm(const Kernel& w, const OpContext& context, const Operands<T>& x, bool centred) {
  const bool cut = w.cols_split_over.valid();
  const std::int64_t of_all = w.cols * context.place(w.cols_split_over).size;
  const std::int64_t each = centred ? 2 : 1;
  const bool weighs = x.reads.size() > (cut ? 2 : 1);
  const T* weight = weighs ? x.in(1) : nullptr;
  const T* bias = x.reads.size() > (cut ? 3 : 2) ? x.in(2) : nullptr;
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* in = x.in(0) + r * w.cols;
    T* out = x.out(0) + r * w.cols;
    RowStatistics<T> row;
    if (cut) {
      row = summed_statistics(x.in(x.reads.size() - 1) + each * r, of_all, centred);
    } else if (centred) {
      row = layer_statistics(in, w.cols);
    } else {
      row.scale = reciprocal_rms(in, w.cols);
    }
    if (centred) x.out(1)[2 * r] = row.mean;
    x.out(1)[each * r + each - 1] = row.scale;
    for (std::int64_t c = 0; c < w.cols; ++c) {
      const T hat = (in[c] - row.mean) * row.scale;
      out[c] = (weighs ? hat * weight[c] : hat) + (bias != nullptr ? bias[c] : T(0));
    }
  }
}

/// One row of a norm's backward pass. With x^ = (x - mean) scale and g = d_y weight:
/// d_x = scale (g - mean(g) [LayerNorm only] - x^ mean(g x^)); d_weight += d_y x^; d_bias += d_y.
template <typename T>
struct NormRow {
  const T* d_y;
  const T* in;
  const T* weight;    ///< may be none: ones
  const T* residual;  ///< added to d_x; may be none
  T* d_x;
  T* d_weight;  ///< none without weights
  T* d_bias;    ///< may be none
  T mean, scale;
  bool centred;
};

/// Sums of g and of g x^.
struct GradientSums {
  double g = 0, dot = 0;
};
template <typename T>
GradientSums gradient_sums(const NormRow<T>& x, std::int64_t cols) {
  GradientSums out;
  for (std::int64_t c = 0; c < cols; ++c) {
    const T hat = (x.in[c] - x.mean) * x.scale;
    const T g = x.weight != nullptr ? x.d_y[c] * x.weight[c] : x.d_y[c];
    out.g += g;
    out.dot += static_cast<double>(g) * hat;
  }
  return out;
}

/// `sums` over all `of_all` columns, of which the row holds `cols`.
template <typename T>
void norm_row_backward(const NormRow<T>& x, std::int64_t cols, const GradientSums& sums,
                       std::int64_t of_all) {
  const T mean_g = x.centred ? static_cast<T>(sums.g / static_cast<double>(of_all)) : T(0);
  const T mean_dot = static_cast<T>(sums.dot / static_cast<double>(of_all));
  for (std::int64_t c = 0; c < cols; ++c) {
    const T hat = (x.in[c] - x.mean) * x.scale;
    if (x.d_weight != nullptr) x.d_weight[c] += x.d_y[c] * hat;
    if (x.d_bias != nullptr) x.d_bias[c] += x.d_y[c];
    const T g = x.weight != nullptr ? x.d_y[c] * x.weight[c] : x.d_y[c];
    const T d = x.scale * (g - mean_g - hat * mean_dot);
    x.d_x[c] = d + (x.residual != nullptr ? x.residual[c] : T(0));
  }
}

/// Row r of d_y, x, statistics.
template <typename T>
NormRow<T> row_of(const Kernel& w, const Operands<T>& x, std::int64_t r, bool centred) {
  NormRow<T> row{};
  row.d_y = x.in(0) + r * w.cols;
  row.in = x.in(1) + r * w.cols;
  row.mean = centred ? x.in(2)[2 * r] : T(0);
  row.scale = centred ? x.in(2)[2 * r + 1] : x.in(2)[r];
  row.centred = centred;
  return row;
}

template <typename T>
void norm_backward(const Kernel& w, const OpContext& context, const Operands<T>& x, bool centred) {
  // reads: d_y, x, statistics, [weight], [sums where the columns are cut], [residual], [gradients
  // that are added to]
  const bool cut = w.cols_split_over.valid();
  const std::int64_t of_all = w.cols * context.place(w.cols_split_over).size;
  const bool weighs = x.writes.size() > 1;
  const bool bias = x.writes.size() > 2;
  const std::size_t added = weighs && x.reads_back(1) ? x.writes.size() - 1 : 0;
  const std::size_t before = (cut ? 4 : 3) + (weighs ? 1U : 0U);
  const bool residual = x.reads.size() == before + 1 + added;
  for (std::int64_t r = 0; r < w.rows; ++r) {
    NormRow<T> row = row_of(w, x, r, centred);
    row.residual = residual ? x.in(before) + r * w.cols : nullptr;
    row.d_x = x.out(0) + r * w.cols;
    row.weight = weighs ? x.in(3) : nullptr;
    row.d_weight = weighs ? x.out(1) : nullptr;
    row.d_bias = bias ? x.out(2) : nullptr;
    GradientSums sums;
    if (!cut) {
      sums = gradient_sums(row, w.cols);
    } else if (centred) {
      sums = {x.in(4)[2 * r], x.in(4)[2 * r + 1]};
    } else {
      sums.dot = x.in(4)[r];
    }
    norm_row_backward(row, w.cols, sums, of_all);
  }
}

/// reads: x. writes: of every row the sums of the elements and of their squares (LayerNorm, two
/// columns), or of the squares.
template <typename T>
void norm_sums(const Kernel& w, const Operands<T>& x) {
  const bool centred = x.writes[0].count == 2 * w.rows;
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* in = x.in(0) + r * w.cols;
    double sum = 0;
    double square = 0;
    for (std::int64_t c = 0; c < w.cols; ++c) {
      sum += in[c];
      square += static_cast<double>(in[c]) * in[c];
    }
    if (centred) x.out(0)[2 * r] = static_cast<T>(sum);
    x.out(0)[centred ? 2 * r + 1 : r] = static_cast<T>(square);
  }
}

/// reads: d_y, x, statistics, weight. writes: sums of g and g x^ (LayerNorm), or of g x^.
template <typename T>
void norm_gradient_sums(const Kernel& w, const Operands<T>& x) {
  const bool centred = x.writes[0].count == 2 * w.rows;
  for (std::int64_t r = 0; r < w.rows; ++r) {
    NormRow<T> row = row_of(w, x, r, centred);
    row.weight = x.in(3);
    const GradientSums sums = gradient_sums(row, w.cols);
    if (centred) x.out(0)[2 * r] = static_cast<T>(sums.g);
    x.out(0)[centred ? 2 * r + 1 : r] = static_cast<T>(sums.dot);
  }
}

/// How a row of qkv is cut: for each key-value head `group` queries, a key, a value.
struct Heads {
  std::int64_t groups = 0, group = 0, width = 0;
};
Heads heads_of(std::int64_t elements, std::int64_t tokens, std::int64_t rotated_heads,
               std::int64_t head_dim) {
  const std::int64_t width = elements / tokens;
  const std::int64_t kv = width / head_dim - rotated_heads;
  return {kv, (rotated_heads - kv) / kv, width};
}

/// A token's queries and keys, which are normed one by one. Their weights are those of one head for
/// all, those of each head, or none.
template <typename T>
class NormedHeads {
 public:
  /// `weights`: the first operand of them.
  NormedHeads(const Kernel& w, const OpContext& context, const Operands<T>& x, std::size_t weights)
      : x_x(x), x_dim(w.cols), x_weights(weights), x_tokens(context.tokens()) {
    x_heads = heads_of(x.reads[0].count, x_tokens, w.rows / x_tokens, x_dim);
    x_weighs = x.reads.size() > weights + 1;
  }

  /// Calls visit(element that a head begins at, whether it is a query, a key or a value: 0, 1, 2,
  /// the first element of its weights).
  template <typename Visit>
  void each(Visit visit) const {
    for (std::int64_t at = 0; at < x_tokens * x_heads.width; at += x_dim) {
      const std::int64_t place = at % x_heads.width / x_dim;
      const std::int64_t group = place / (x_heads.group + 2);
      const std::int64_t within = place % (x_heads.group + 2);
      const int what = within < x_heads.group ? 0 : within > x_heads.group ? 2 : 1;
      const std::int64_t head = what == 0 ? group * x_heads.group + within : group;
      const bool own = x_weighs && what < 2 && count(what) > x_dim;
      visit(at, what, own ? head * x_dim : 0);
    }
  }
  bool weighs() const { return x_weighs; }
  const T* weight(int what) const {
    return x_weighs ? x_x.in(x_weights + static_cast<std::size_t>(what)) : nullptr;
  }

 private:
  std::int64_t count(int what) const {
    return x_x.reads[x_weights + static_cast<std::size_t>(what)].count;
  }

  const Operands<T>& x_x;
  std::int64_t x_dim;
  std::size_t x_weights;
  std::int64_t x_tokens;
  Heads x_heads;
  bool x_weighs = false;
};

template <typename T>
void head_norm(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  const std::int64_t d = w.cols;
  const NormedHeads<T> heads(w, context, x, 1);
  heads.each([&](std::int64_t at, int what, std::int64_t first) {
    const T* in = x.in(0) + at;
    T* out = x.out(0) + at;
    if (what == 2) return void(std::copy_n(in, d, out));
    const T scale = reciprocal_rms(in, d);
    const T* weight = heads.weight(what);
    for (std::int64_t c = 0; c < d; ++c) {
      out[c] = weight != nullptr ? in[c] * scale * weight[first + c] : in[c] * scale;
    }
  });
}

template <typename T>
void head_norm_backward(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  // reads: d_qkv, qkv, [query weight, key weight], gradients; writes: d_qkv, gradients
  const std::int64_t d = w.cols;
  const NormedHeads<T> heads(w, context, x, 2);
  std::vector<T> d_y(static_cast<std::size_t>(d));
  heads.each([&](std::int64_t at, int what, std::int64_t first) {
    if (what == 2 && x.in(0) != x.out(0)) std::copy_n(x.in(0) + at, d, x.out(0) + at);
    if (what == 2) return;
    std::copy_n(x.in(0) + at, d, d_y.data());
    NormRow<T> row{};
    row.d_y = d_y.data();
    row.in = x.in(1) + at;
    row.d_x = x.out(0) + at;
    if (heads.weighs()) {
      row.weight = heads.weight(what) + first;
      row.d_weight = x.out(static_cast<std::size_t>(what) + 1) + first;
    }
    row.scale = reciprocal_rms(row.in, d);
    norm_row_backward(row, d, gradient_sums(row, d), d);
  });
}

/// Of the first d elements of every query and key, pairs (i, i + d/2) turn by position /
/// base^(2i/d) (Su et al. 2021, in the order of GPT-NeoX); backward turns back.
template <typename T>
void rope(const Kernel& w, const OpContext& context, const Operands<T>& x, double direction) {
  const std::int64_t d = w.head_dim;
  const std::int64_t half = turned_of(w) / 2;
  const std::int64_t length = context.batch.length;
  const Heads heads = heads_of(x.reads[0].count, w.rows, w.cols / d, d);
  std::vector<T> cosine(static_cast<std::size_t>(length * half));
  std::vector<T> sine(cosine.size());
  for (std::int64_t i = 0; i < half; ++i) {
    const double rate = std::pow(kRopeBase, -static_cast<double>(i) / static_cast<double>(half));
    for (std::int64_t t = 0; t < length; ++t) {
      const double angle = static_cast<double>(t) * rate;
      cosine[static_cast<std::size_t>(t * half + i)] = static_cast<T>(std::cos(angle));
      sine[static_cast<std::size_t>(t * half + i)] = static_cast<T>(direction * std::sin(angle));
    }
  }
  if (x.in(0) != x.out(0)) std::copy_n(x.in(0), w.rows * heads.width, x.out(0));
  for (std::int64_t at = 0; at < w.rows * heads.width; at += d) {
    if (at % heads.width / d % (heads.group + 2) > heads.group) continue;
    const std::int64_t position = context.token(GroupSlot(), w.rows, at / heads.width).position;
    const auto angles = static_cast<std::size_t>(position * half);
    T* head = x.out(0) + at;
    for (std::int64_t i = 0; i < half; ++i) {
      const T c = cosine[angles + static_cast<std::size_t>(i)];
      const T s = sine[angles + static_cast<std::size_t>(i)];
      const T a = head[i];
      const T b = head[i + half];
      head[i] = a * c - b * s;
      head[i + half] = a * s + b * c;
    }
  }
}

}  // namespace

template <typename T>
void run_norm(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  switch (w.kind) {
    case KernelKind::kLayerNorm:
      return norm(w, context, x, true);
    case KernelKind::kLayerNormBackward:
      return norm_backward(w, context, x, true);
    case KernelKind::kRmsNorm:
      return x.writes.size() > 1 ? norm(w, context, x, false) : head_norm(w, context, x);
    case KernelKind::kRmsNormBackward:
      return x.writes.size() == 2 || (x.writes.size() == 1 && x.reads.size() > 2)
                 ? norm_backward(w, context, x, false)
                 : head_norm_backward(w, context, x);
    case KernelKind::kNormSums:
      return norm_sums(w, x);
    case KernelKind::kNormGradientSums:
      return norm_gradient_sums(w, x);
    case KernelKind::kRope:
      return rope(w, context, x, 1);
    default:
      return rope(w, context, x, -1);
  }
}

template void run_norm(const Kernel&, const OpContext&, const Operands<float>&);
template void run_norm(const Kernel&, const OpContext&, const Operands<double>&);

}  // namespace foretrain
