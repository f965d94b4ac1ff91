// LayerNorm, RMSNorm, RMSNorm of query and key heads, rotary positions. The mathematics is
// norms.cpp's; sums are in fp32 and over a team.
#pragma once

#include <cmath>

#include "executor/cuda/column_sums.h"
#include "executor/cuda/token_places.h"

namespace foretrain::device {

inline constexpr float kEpsilon = static_cast<float>(kNormEpsilon);

/// Sums over all columns where a rank holds some of them: of every row its elements and their
/// squares (LayerNorm) or the latter; of a backward pass g and g x^, or the latter.
struct RowSums {
  const float* data = nullptr;  ///< none: the rank holds all columns
  std::int64_t of_all = 0;      ///< columns
  bool centred = false;
  FT_DEVICE bool given() const { return data != nullptr; }
  FT_DEVICE float first(std::int64_t r) const { return centred ? data[2 * r] : 0.0F; }
  FT_DEVICE float second(std::int64_t r) const { return centred ? data[2 * r + 1] : data[r]; }
  FT_DEVICE float mean(std::int64_t r) const { return first(r) / static_cast<float>(of_all); }
  /// Reciprocal deviation, or reciprocal root mean square.
  FT_DEVICE float scale(std::int64_t r) const {
    const auto n = static_cast<double>(of_all);
    const double mean = static_cast<double>(first(r)) / n;
    const double square = static_cast<double>(second(r)) / n - mean * mean;
    return static_cast<float>(1.0 / std::sqrt((square > 0 ? square : 0.0) + kNormEpsilon));
  }
};
inline RowSums sums_of(const Kernel& w, const OpContext& context, const DeviceOperands& x,
                       std::size_t operand, bool centred) {
  if (!w.cols_split_over.valid()) return {nullptr, w.cols, centred};
  return {x.in<float>(operand), w.cols * context.place(w.cols_split_over).size, centred};
}

template <typename T>
struct LayerNorm {
  const T* in;
  const T* weight;
  const T* bias;
  T* out;
  float* statistics;
  std::int64_t cols;
  RowSums sums;
  template <typename Team>
  FT_DEVICE float mean_of(Team& team, std::int64_t r) const {
    if (sums.given()) return sums.mean(r);
    float sum = 0;
    for (std::int64_t c = team.rank(); c < cols; c += team.size())
      sum += to_float(in[r * cols + c]);
    return team.sum(sum) / static_cast<float>(cols);
  }
  template <typename Team>
  FT_DEVICE float scale_of(Team& team, std::int64_t r, float mean) const {
    if (sums.given()) return sums.scale(r);
    float square = 0;
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      const float d = to_float(in[r * cols + c]) - mean;
      square += d * d;
    }
    return 1.0F / std::sqrt(team.sum(square) / static_cast<float>(cols) + kEpsilon);
  }
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    const T* row = in + r * cols;
    const float mean = mean_of(team, r);
    const float scale = scale_of(team, r, mean);
    if (team.rank() == 0) {
      statistics[2 * r] = mean;
      statistics[2 * r + 1] = scale;
    }
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      const float b = bias != nullptr ? to_float(bias[c]) : 0.0F;
      out[r * cols + c] = stored<T>((to_float(row[c]) - mean) * scale * to_float(weight[c]) + b);
    }
  }
};

/// Reciprocal of the root mean square.
template <typename Team, typename T>
FT_DEVICE float reciprocal_rms(Team& team, const T* in, std::int64_t cols) {
  float square = 0;
  for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
    square += to_float(in[c]) * to_float(in[c]);
  }
  return 1.0F / std::sqrt(team.sum(square) / static_cast<float>(cols) + kEpsilon);
}

template <typename T>
struct RmsNorm {
  const T* in;
  const T* weight;
  T* out;
  float* statistics;
  std::int64_t cols;
  RowSums sums;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    const float scale = sums.given() ? sums.scale(r) : reciprocal_rms(team, in + r * cols, cols);
    if (team.rank() == 0) statistics[r] = scale;
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      out[r * cols + c] = stored<T>(to_float(in[r * cols + c]) * scale * to_float(weight[c]));
    }
  }
};

/// Element (r, c) of what is summed up to the gradient of a norm's weight.
template <typename T>
struct WeightColumn {
  const T* d_y;
  const T* in;
  const float* statistics;
  std::int64_t cols;
  bool centred;
  FT_DEVICE float operator()(std::int64_t r, std::int64_t c) const {
    const float mean = centred ? statistics[2 * r] : 0.0F;
    const float scale = centred ? statistics[2 * r + 1] : statistics[r];
    return to_float(d_y[r * cols + c]) * (to_float(in[r * cols + c]) - mean) * scale;
  }
};

/// d x of one row: see NormRow of norms.cpp. `d_x` may be `d_y`.
template <typename T>
struct RowBackward {
  const T* d_y;
  const T* in;
  const T* weight;
  const T* residual;
  T* d_x;
  float mean, scale;
  bool centred;
  /// Of g = d_y weight and of g x^.
  struct Sums {
    float g, dot;
  };
  template <typename Team>
  FT_DEVICE Sums sums(Team& team, std::int64_t cols) const {
    float sum = 0;
    float dot = 0;
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      const float g = to_float(d_y[c]) * to_float(weight[c]);
      sum += g;
      dot += g * (to_float(in[c]) - mean) * scale;
    }
    if (centred) sum = team.sum(sum);
    return {sum, team.sum(dot)};
  }
  /// The row holds `cols` of `of_all` columns.
  template <typename Team>
  FT_DEVICE void run(Team& team, std::int64_t cols, const Sums& all, std::int64_t of_all) const {
    const float mean_g = centred ? all.g / static_cast<float>(of_all) : 0.0F;
    const float mean_dot = all.dot / static_cast<float>(of_all);
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      const float hat = (to_float(in[c]) - mean) * scale;
      const float d = scale * (to_float(d_y[c]) * to_float(weight[c]) - mean_g - hat * mean_dot);
      d_x[c] = stored<T>(d + (residual != nullptr ? to_float(residual[c]) : 0.0F));
    }
  }
};

template <typename T>
struct NormBackward {
  const T* d_y;
  const T* in;
  const float* statistics;
  const T* weight;
  const T* residual;
  T* d_x;
  std::int64_t cols;
  bool centred;
  RowSums sums;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    const std::int64_t at = r * cols;
    const RowBackward<T> row{d_y + at,
                             in + at,
                             weight,
                             residual != nullptr ? residual + at : nullptr,
                             d_x + at,
                             centred ? statistics[2 * r] : 0.0F,
                             centred ? statistics[2 * r + 1] : statistics[r],
                             centred};
    if (sums.given()) {
      row.run(team, cols, {sums.first(r), sums.second(r)}, sums.of_all);
    } else {
      row.run(team, cols, row.sums(team, cols), cols);
    }
  }
};

/// What a norm of cut columns sums, over the local ones.
template <typename T>
struct NormSums {
  const T* in;
  float* out;
  std::int64_t cols;
  bool centred;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    float sum = 0;
    float square = 0;
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      const float v = to_float(in[r * cols + c]);
      sum += v;
      square += v * v;
    }
    sum = team.sum(sum);
    square = team.sum(square);
    if (team.rank() != 0) return;
    if (centred) out[2 * r] = sum;
    out[centred ? 2 * r + 1 : r] = square;
  }
};
/// And its backward pass.
template <typename T>
struct NormGradientSums {
  const T* d_y;
  const T* in;
  const float* statistics;
  const T* weight;
  float* out;
  std::int64_t cols;
  bool centred;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    const RowBackward<T> row{d_y + r * cols,
                             in + r * cols,
                             weight,
                             nullptr,
                             nullptr,
                             centred ? statistics[2 * r] : 0.0F,
                             centred ? statistics[2 * r + 1] : statistics[r],
                             centred};
    const auto sums = row.sums(team, cols);
    if (team.rank() != 0) return;
    if (centred) out[2 * r] = sums.g;
    out[centred ? 2 * r + 1 : r] = sums.dot;
  }
};

/// How a row of qkv is cut: for each key-value head `group` queries, a key, a value.
struct Heads {
  std::int64_t group = 0, width = 0, dim = 0;
  /// 0 query, 1 key, 2 value: the head that begins at element `at`.
  FT_DEVICE int kind(std::int64_t at) const {
    const std::int64_t place = at % width / dim % (group + 2);
    return place < group ? 0 : place == group ? 1 : 2;
  }
};
inline Heads heads_of(std::int64_t elements, std::int64_t tokens, std::int64_t rotated,
                      std::int64_t dim) {
  const std::int64_t width = elements / tokens;
  const std::int64_t kv = width / dim - rotated;
  return {(rotated - kv) / kv, width, dim};
}

template <typename T>
struct HeadNorm {
  const T* in;
  const T* query_weight;
  const T* key_weight;
  T* out;
  Heads heads;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t head) const {
    const std::int64_t at = head * heads.dim;
    const int kind = heads.kind(at);
    const T* weight = kind == 0 ? query_weight : key_weight;
    const float scale = reciprocal_rms(team, in + at, heads.dim);
    for (std::int64_t c = team.rank(); c < heads.dim; c += team.size()) {
      out[at + c] =
          kind == 2 ? in[at + c] : stored<T>(to_float(in[at + c]) * scale * to_float(weight[c]));
    }
  }
};

/// One fp32 for each head: its scale.
template <typename T>
struct HeadScale {
  const T* in;
  float* scales;
  std::int64_t dim;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t head) const {
    const float scale = reciprocal_rms(team, in + head * dim, dim);
    if (team.rank() == 0) scales[head] = scale;
  }
};
template <typename T>
struct HeadColumn {
  const T* d_y;
  const T* in;
  const float* scales;
  Heads heads;
  int kind;
  FT_DEVICE float operator()(std::int64_t head, std::int64_t c) const {
    const std::int64_t at = head * heads.dim;
    if (heads.kind(at) != kind) return 0;
    return to_float(d_y[at + c]) * to_float(in[at + c]) * scales[head];
  }
};
template <typename T>
struct HeadNormBackward {
  const T* in;
  const T* query_weight;
  const T* key_weight;
  T* d_x;  ///< holds d y
  Heads heads;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t head) const {
    const std::int64_t at = head * heads.dim;
    const int kind = heads.kind(at);
    if (kind == 2) return;
    const float scale = reciprocal_rms(team, in + at, heads.dim);
    const RowBackward<T> row{d_x + at, in + at,  kind == 0 ? query_weight : key_weight,
                             nullptr,  d_x + at, 0.0F,
                             scale,    false};
    row.run(team, heads.dim, row.sums(team, heads.dim), heads.dim);
  }
};

template <typename T>
struct Rope {
  T* qkv;
  const float* table;
  TokenPlaces places;
  float direction;
  Heads heads;
  std::int64_t half;  ///< of what turns in a head
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t row) const {
    const float* angles = table + places.position(row) * half * 2;
    for (std::int64_t p = team.rank(); p < heads.width / heads.dim * half; p += team.size()) {
      const std::int64_t head = p / half;
      const std::int64_t i = p % half;
      if (heads.kind(head * heads.dim) == 2) continue;
      T* const at = qkv + row * heads.width + head * heads.dim + i;
      const float c = angles[2 * i];
      const float s = direction * angles[2 * i + 1];
      const float a = to_float(at[0]);
      const float b = to_float(at[half]);
      at[0] = stored<T>(a * c - b * s);
      at[half] = stored<T>(a * s + b * c);
    }
  }
};

template <typename L>
void norm_backward(L& launcher, const Kernel& w, const OpContext& context, const DeviceOperands& x,
                   bool centred) {
  // reads: d_y, x, statistics, weight, [sums where the columns are cut], [residual], [gradients
  // that are added to]
  const std::size_t before = w.cols_split_over.valid() ? 5 : 4;
  const std::size_t added = x.reads_back(1) ? x.writes.size() - 1 : 0;
  with_types(x.type_out(0), x.type_out(1), [&](auto work, auto gradients) {
    using T = typename decltype(work)::Type;
    using G = typename decltype(gradients)::Type;
    const auto* const statistics = x.in<float>(2);
    sum_columns(launcher, w.rows, w.cols,
                WeightColumn<T>{x.in<T>(0), x.in<T>(1), statistics, w.cols, centred}, x.out<G>(1));
    if (x.writes.size() > 2) {
      sum_columns(launcher, w.rows, w.cols, PlainColumn<T>{x.in<T>(0), w.cols}, x.out<G>(2));
    }
    launcher.rows(
        w.rows, NormBackward<T>{x.in<T>(0), x.in<T>(1), statistics, x.in<T>(3),
                                x.reads.size() == before + 1 + added ? x.in<T>(before) : nullptr,
                                x.out<T>(0), w.cols, centred, sums_of(w, context, x, 4, centred)});
  });
}

template <typename L>
void head_norm(L& launcher, const Kernel& w, const OpContext& context, const DeviceOperands& x) {
  const std::int64_t tokens = context.tokens();
  const Heads heads = heads_of(x.reads[0].count, tokens, w.rows / tokens, w.cols);
  const std::int64_t all = x.reads[0].count / heads.dim;
  if (w.kind == KernelKind::kRmsNorm) {
    return with_type(x.type_out(0), [&](auto tag) {
      using T = typename decltype(tag)::Type;
      launcher.rows(all, HeadNorm<T>{x.in<T>(0), x.in<T>(1), x.in<T>(2), x.out<T>(0), heads});
    });
  }
  // reads: d_qkv, qkv, query weight, key weight, gradients; writes: d_qkv, gradients
  with_types(x.type_out(0), x.type_out(1), [&](auto work, auto gradients) {
    using T = typename decltype(work)::Type;
    using G = typename decltype(gradients)::Type;
    auto* const scales =
        static_cast<float*>(launcher.kept_scratch(static_cast<std::size_t>(all) * sizeof(float)));
    launcher.rows(all, HeadScale<T>{x.in<T>(1), scales, heads.dim});
    for (const int kind : {0, 1}) {
      sum_columns(launcher, all, heads.dim,
                  HeadColumn<T>{x.in<T>(0), x.in<T>(1), scales, heads, kind},
                  x.out<G>(kind == 0 ? 1 : 2));
    }
    launcher.rows(all, HeadNormBackward<T>{x.in<T>(1), x.in<T>(2), x.in<T>(3), x.out<T>(0), heads});
  });
}

template <typename L>
void norm_sums(L& launcher, const Kernel& w, const DeviceOperands& x) {
  const bool centred = x.writes[0].count == 2 * w.rows;
  with_type(x.type_in(0), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (w.kind == KernelKind::kNormSums) {
      launcher.rows(w.rows, NormSums<T>{x.in<T>(0), x.out<float>(0), w.cols, centred});
    } else {
      launcher.rows(w.rows, NormGradientSums<T>{x.in<T>(0), x.in<T>(1), x.in<float>(2), x.in<T>(3),
                                                x.out<float>(0), w.cols, centred});
    }
  });
}

template <typename L>
void run_norm(L& launcher, const Kernel& w, const OpContext& context, const DeviceOperands& x) {
  if (w.kind == KernelKind::kRope || w.kind == KernelKind::kRopeBackward) {
    const Heads heads = heads_of(x.reads[0].count, w.rows, w.cols / w.head_dim, w.head_dim);
    const float* const table = launcher.rope_table(context.batch.length, turned_of(w));
    const float direction = w.kind == KernelKind::kRope ? 1.0F : -1.0F;
    return with_type(x.type_out(0), [&](auto tag) {
      using T = typename decltype(tag)::Type;
      launcher.rows(w.rows, Rope<T>{x.out<T>(0), table, token_places(context, GroupSlot(), w.rows),
                                    direction, heads, turned_of(w) / 2});
    });
  }
  if (w.kind >= KernelKind::kNormSums) return norm_sums(launcher, w, x);
  const bool rms = w.kind == KernelKind::kRmsNorm || w.kind == KernelKind::kRmsNormBackward;
  const bool backward =
      w.kind == KernelKind::kLayerNormBackward || w.kind == KernelKind::kRmsNormBackward;
  if (rms && x.writes.size() == (backward ? 3U : 1U)) return head_norm(launcher, w, context, x);
  if (backward) return norm_backward(launcher, w, context, x, !rms);
  const RowSums sums = sums_of(w, context, x, x.reads.size() - 1, !rms);
  const std::size_t least = sums.given() ? 3 : 2;
  with_type(x.type_out(0), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (rms) {
      launcher.rows(w.rows,
                    RmsNorm<T>{x.in<T>(0), x.in<T>(1), x.out<T>(0), x.out<float>(1), w.cols, sums});
    } else {
      launcher.rows(w.rows, LayerNorm<T>{x.in<T>(0), x.in<T>(1),
                                         x.reads.size() > least ? x.in<T>(2) : nullptr, x.out<T>(0),
                                         x.out<float>(1), w.cols, sums});
    }
  });
}

}  // namespace foretrain::device
