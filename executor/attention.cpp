// Attention by blocks of queries; the scores of one block are the only ones stored (but in the
// unfused form, which keeps them all).
#include <algorithm>
#include <cmath>
#include <limits>

#include "executor/kernels.h"

namespace foretrain {
namespace {

constexpr std::int64_t kBlock = 64;  ///< queries

template <typename T>
class AttentionRun {
 public:
  AttentionRun(const Attention& work, const OpContext& context, const Operands<T>& x)
      : x_w(work),
        x_x(x),
        x_group(work.q_heads / work.kv_heads),
        x_width((work.q_heads + 2 * work.kv_heads) * work.head_dim),
        x_out_width(work.q_heads * work.head_dim),
        x_scale(T(1) / std::sqrt(static_cast<T>(work.head_dim))),
        x_unfused(work.kernel == AttentionKernel::kUnfused),
        x_key(context.key("attention dropout")),
        x_first_sequence(context.first_sequence()) {
    const Place place = context.place(work.heads_split_over);
    x_first_head = place.index * work.q_heads;
    x_all_heads = place.size * work.q_heads;
    const auto block = static_cast<std::size_t>(kBlock * work.kv_len);
    x_p.resize(block);
    x_dropped.resize(block);
    x_dp.resize(block);
  }

  void forward() {
    each_head([this](std::int64_t b, std::int64_t h) {
      for (std::int64_t q = 0; q < x_w.q_len; q += kBlock) forward_block(b, h, q);
    });
  }

  void backward() {
    std::fill_n(x_x.out(0), x_w.batch * x_w.q_len * x_width, T(0));
    each_head([this](std::int64_t b, std::int64_t h) {
      for (std::int64_t q = 0; q < x_w.q_len; q += kBlock) backward_block(b, h, q);
    });
  }

 private:
  template <typename Visit>
  void each_head(Visit visit) {
    for (std::int64_t b = 0; b < x_w.batch; ++b) {
      for (std::int64_t h = 0; h < x_w.q_heads; ++h) visit(b, h);
    }
  }

  // Where a head lies in a row of qkv: queries of its group, then the group's key and value.
  std::int64_t q_at(std::int64_t h) const {
    return (h / x_group * (x_group + 2) + h % x_group) * x_w.head_dim;
  }
  std::int64_t k_at(std::int64_t h) const {
    return (h / x_group * (x_group + 2) + x_group) * x_w.head_dim;
  }
  std::int64_t v_at(std::int64_t h) const { return k_at(h) + x_w.head_dim; }

  /// A block of queries and the keys that any of them sees.
  struct Range {
    std::int64_t batch = 0, head = 0, q = 0, rows = 0, k = 0, keys = 0;
  };
  Range range(std::int64_t b, std::int64_t h, std::int64_t q) const {
    Range r{b, h, q, std::min(kBlock, x_w.q_len - q), 0, 0};
    const std::int64_t end = x_w.causal ? q + r.rows : x_w.kv_len;
    r.k = x_w.window > 0 ? std::max<std::int64_t>(0, q - x_w.window + 1) : 0;
    r.keys = end - r.k;
    return r;
  }
  bool seen(std::int64_t query, std::int64_t key) const {
    if (x_w.causal && key > query) return false;
    return x_w.window == 0 || key > query - x_w.window;
  }
  /// 2^(-8 (h + 1) / H), Press et al. 2022.
  T slope(std::int64_t h) const {
    const auto heads = static_cast<T>(x_all_heads);
    return std::exp2(T(-8) * static_cast<T>(x_first_head + h + 1) / heads);
  }

  /// C = alpha op(A) op(B) + beta C on pieces of rows of `lda`, ... elements.
  void product(bool ta, bool tb, std::int64_t m, std::int64_t n, std::int64_t k, const T* a,
               std::int64_t lda, const T* b, std::int64_t ldb, T* c, std::int64_t ldc, T alpha,
               T beta) {
    multiply(Matrices<T>{ta, tb, m, n, k, a, b, c, lda, ldb, ldc, alpha, beta});
  }

  /// x_p = scores of the block, -infinity where masked.
  void scores(const T* qkv, const Range& r) {
    product(false, true, r.rows, r.keys, x_w.head_dim, row(qkv, r.batch, r.q) + q_at(r.head),
            x_width, row(qkv, r.batch, r.k) + k_at(r.head), x_width, x_p.data(), r.keys, x_scale,
            T(0));
    const T tilt = x_w.alibi ? slope(r.head) : T(0);
    for (std::int64_t i = 0; i < r.rows; ++i) {
      T* line = x_p.data() + i * r.keys;
      for (std::int64_t j = 0; j < r.keys; ++j) {
        if (!seen(r.q + i, r.k + j)) {
          line[j] = -std::numeric_limits<T>::infinity();
        } else if (x_w.alibi) {
          line[j] += tilt * static_cast<T>(r.k + j - r.q - i);
        }
      }
    }
  }
  const T* row(const T* qkv, std::int64_t b, std::int64_t i) const {
    return qkv + (b * x_w.q_len + i) * x_width;
  }
  std::int64_t out_at(const Range& r) const {
    return (r.batch * x_w.q_len + r.q) * x_out_width + r.head * x_w.head_dim;
  }
  std::int64_t statistic(const Range& r, std::int64_t i) const {
    return (r.batch * x_w.q_heads + r.head) * x_w.q_len + r.q + i;
  }
  bool kept(const Range& r, std::int64_t i, std::int64_t j) const {
    const std::int64_t head = (x_first_sequence + r.batch) * x_all_heads + x_first_head + r.head;
    return uniform_at(x_key, (head * x_w.q_len + r.q + i) * x_w.kv_len + r.k + j) >= x_w.dropout;
  }
  T keep_scale() const { return static_cast<T>(1.0 / (1.0 - x_w.dropout)); }

  void forward_block(std::int64_t b, std::int64_t h, std::int64_t q) {
    const Range r = range(b, h, q);
    scores(x_x.in(0), r);
    for (std::int64_t i = 0; i < r.rows; ++i) {
      T* line = x_p.data() + i * r.keys;
      const T top = *std::max_element(line, line + r.keys);
      T sum = 0;
      for (std::int64_t j = 0; j < r.keys; ++j) sum += line[j] = std::exp(line[j] - top);
      for (std::int64_t j = 0; j < r.keys; ++j) line[j] /= sum;
      if (!x_unfused) x_x.out(1)[statistic(r, i)] = top + std::log(sum);
    }
    const T* p = drop(r);
    if (x_unfused) keep_scores(r);
    product(false, false, r.rows, x_w.head_dim, r.keys, p, r.keys, row(x_x.in(0), b, r.k) + v_at(h),
            x_width, x_x.out(0) + out_at(r), x_out_width, T(1), T(0));
  }

  /// Probabilities after dropout.
  const T* drop(const Range& r) {
    if (x_w.dropout <= 0) return x_p.data();
    for (std::int64_t i = 0; i < r.rows; ++i) {
      for (std::int64_t j = 0; j < r.keys; ++j) {
        const std::int64_t at = i * r.keys + j;
        x_dropped[static_cast<std::size_t>(at)] =
            kept(r, i, j) ? x_p[static_cast<std::size_t>(at)] * keep_scale() : T(0);
      }
    }
    return x_dropped.data();
  }

  /// Unfused: the whole rows, zeros where nothing is seen.
  void keep_scores(const Range& r) {
    for (std::int64_t i = 0; i < r.rows; ++i) {
      const std::int64_t line = statistic(r, i) * x_w.kv_len;
      std::fill_n(x_x.out(1) + line, x_w.kv_len, T(0));
      std::copy_n(x_p.data() + i * r.keys, r.keys, x_x.out(1) + line + r.k);
      if (x_w.dropout <= 0) continue;
      std::fill_n(x_x.flags_out(2) + line, x_w.kv_len, std::uint8_t{0});
      std::fill_n(x_x.out(3) + line, x_w.kv_len, T(0));
      std::copy_n(x_dropped.data() + i * r.keys, r.keys, x_x.out(3) + line + r.k);
      for (std::int64_t j = 0; j < r.keys; ++j) {
        x_x.flags_out(2)[line + r.k + j] = kept(r, i, j) ? 1 : 0;
      }
    }
  }

  /// x_p and x_dropped as forward had them. Reads are d_out, qkv, out, what forward kept.
  const T* probabilities(const Range& r) {
    if (x_unfused) {
      for (std::int64_t i = 0; i < r.rows; ++i) {
        const std::int64_t line = statistic(r, i) * x_w.kv_len + r.k;
        std::copy_n(x_x.in(3) + line, r.keys, x_p.data() + i * r.keys);
        if (x_w.dropout <= 0) continue;
        std::copy_n(x_x.in(5) + line, r.keys, x_dropped.data() + i * r.keys);
      }
      return x_w.dropout > 0 ? x_dropped.data() : x_p.data();
    }
    scores(x_x.in(1), r);
    for (std::int64_t i = 0; i < r.rows; ++i) {
      T* line = x_p.data() + i * r.keys;
      const T lse = x_x.in(3)[statistic(r, i)];
      for (std::int64_t j = 0; j < r.keys; ++j) line[j] = std::exp(line[j] - lse);
    }
    return drop(r);
  }

  bool kept_then(const Range& r, std::int64_t i, std::int64_t j) const {
    if (!x_unfused) return kept(r, i, j);
    return x_x.flags_in(4)[statistic(r, i) * x_w.kv_len + r.k + j] != 0;
  }

  void backward_block(std::int64_t b, std::int64_t h, std::int64_t q) {
    const Range r = range(b, h, q);
    const T* qkv = x_x.in(1);
    T* d_qkv = x_x.out(0);
    const T* d_out = x_x.in(0) + out_at(r);
    const std::int64_t d = x_w.head_dim;
    const T* p = probabilities(r);
    T* d_keys = d_qkv + (b * x_w.kv_len + r.k) * x_width;
    product(true, false, r.keys, d, r.rows, p, r.keys, d_out, x_out_width, d_keys + v_at(h),
            x_width, T(1), T(1));
    product(false, true, r.rows, r.keys, d, d_out, x_out_width, row(qkv, b, r.k) + v_at(h), x_width,
            x_dp.data(), r.keys, T(1), T(0));
    const T* out = x_x.in(2) + out_at(r);
    for (std::int64_t i = 0; i < r.rows; ++i) {
      T dot = 0;
      for (std::int64_t c = 0; c < d; ++c)
        dot += d_out[i * x_out_width + c] * out[i * x_out_width + c];
      for (std::int64_t j = 0; j < r.keys; ++j) {
        const auto at = static_cast<std::size_t>(i * r.keys + j);
        T g = x_dp[at];
        if (x_w.dropout > 0) g = kept_then(r, i, j) ? g * keep_scale() : T(0);
        x_dp[at] = x_p[at] * (g - dot) * x_scale;
      }
    }
    product(false, false, r.rows, d, r.keys, x_dp.data(), r.keys, row(qkv, b, r.k) + k_at(h),
            x_width, d_qkv + (b * x_w.q_len + r.q) * x_width + q_at(h), x_width, T(1), T(1));
    product(true, false, r.keys, d, r.rows, x_dp.data(), r.keys, row(qkv, b, r.q) + q_at(h),
            x_width, d_keys + k_at(h), x_width, T(1), T(1));
  }

  const Attention& x_w;
  const Operands<T>& x_x;
  std::int64_t x_group, x_width, x_out_width;
  T x_scale;
  bool x_unfused;
  std::uint64_t x_key;
  std::int64_t x_first_sequence, x_first_head = 0, x_all_heads = 0;
  std::vector<T> x_p, x_dropped, x_dp;
};

}  // namespace

template <typename T>
void run_attention(const Attention& work, const OpContext& context, const Operands<T>& x) {
  AttentionRun<T> run(work, context, x);
  work.backward ? run.backward() : run.forward();
}

template void run_attention(const Attention&, const OpContext&, const Operands<float>&);
template void run_attention(const Attention&, const OpContext&, const Operands<double>&);

}  // namespace foretrain
