// The steps of ring self-attention: products with one block of keys or values, softmax of whole
// rows. Scores, probabilities and their gradients are [sequence][head][query][key], keys in the
// order of the sequence; a block is [sequence][token][key-value head].
#include <algorithm>
#include <cmath>
#include <limits>

#include "executor/attention_place.h"
#include "executor/kernels.h"

namespace foretrain {
namespace {

template <typename T>
class StepRun {
 public:
  StepRun(const Attention& work, const OpContext& context, const Operands<T>& x)
      : x_w(work),
        x_x(x),
        x_place(work, context),
        x_scale(T(1) / std::sqrt(static_cast<T>(work.head_dim))),
        x_group(work.q_heads / work.kv_heads) {
    const Place members = context.place(context.batch.context);
    x_own = members.index * work.q_len;
    const bool of_all = work.part == ContextPart::kAll;
    const std::int64_t member =
        (members.index + members.size - work.hops % members.size) % members.size;
    x_column = of_all ? 0 : member * work.kv_len;
  }

  void run() {
    // The first block starts what others complete or add to; heads of a group add to all members'.
    const bool first = x_w.hops == 0;
    if (first && x_w.step != AttentionStep::kSoftmax) {
      std::fill_n(x_x.out(0), x_x.writes[0].count, T(0));
    }
    x_beta = first ? T(0) : T(1);
    for (std::int64_t b = 0; b < x_w.batch; ++b) {
      for (std::int64_t h = 0; h < x_w.q_heads; ++h) one_head(b, h);
    }
  }

 private:
  /// A matrix of one head: its first element, elements of a row.
  template <typename P>
  struct Matrix {
    P data;
    std::int64_t width;
  };

  void one_head(std::int64_t b, std::int64_t h) {
    switch (x_w.step) {
      case AttentionStep::kScores:
        return product(false, true, queries(x_x.in(0), b, h), block(x_x.in(1), b, h),
                       columns(x_x.out(0), x_x.writes[0], b, h), T(0));
      case AttentionStep::kProbabilityGradient:
        return product(false, true, rows(x_x.in(0), b, h), block(x_x.in(1), b, h),
                       columns(x_x.out(0), x_x.writes[0], b, h), T(0));
      case AttentionStep::kValues:
        return product(false, false, columns(x_x.in(0), x_x.reads[0], b, h), block(x_x.in(1), b, h),
                       rows(x_x.out(0), b, h), x_beta);
      case AttentionStep::kQueryGradient:
        return product(false, false, columns(x_x.in(0), x_x.reads[0], b, h), block(x_x.in(1), b, h),
                       queries(x_x.out(0), b, h), x_beta);
      case AttentionStep::kValueGradient:
        return of_all(columns(x_x.in(0), x_x.reads[0], b, h), rows(x_x.in(1), b, h), b, h);
      case AttentionStep::kKeyGradient:
        return of_all(columns(x_x.in(0), x_x.reads[0], b, h), queries(x_x.in(1), b, h), b, h);
      case AttentionStep::kSoftmax:
        return x_w.backward ? softmax_backward(b, h) : softmax(b, h);
      case AttentionStep::kWhole:
        return;
    }
  }

  /// Of packed qkv: a head's queries.
  template <typename P>
  Matrix<P> queries(P qkv, std::int64_t b, std::int64_t h) const {
    const std::int64_t width = (x_w.q_heads + 2 * x_w.kv_heads) * x_w.head_dim;
    const std::int64_t head = h / x_group * (x_group + 2) + h % x_group;
    return {qkv + b * x_w.q_len * width + head * x_w.head_dim, width};
  }
  /// Of the output of attention, or its gradient.
  template <typename P>
  Matrix<P> rows(P out, std::int64_t b, std::int64_t h) const {
    const std::int64_t width = x_w.q_heads * x_w.head_dim;
    return {out + b * x_w.q_len * width + h * x_w.head_dim, width};
  }
  /// Of a member's keys or values.
  template <typename P>
  Matrix<P> block(P keys, std::int64_t b, std::int64_t h) const {
    const std::int64_t width = x_w.kv_heads * x_w.head_dim;
    return {keys + b * x_w.kv_len * width + h / x_group * x_w.head_dim, width};
  }
  /// Of scores and the like, the columns of this op's keys.
  template <typename P>
  Matrix<P> columns(P scores, const Operand& all, std::int64_t b, std::int64_t h) const {
    const std::int64_t width = all.count / (x_w.batch * x_w.q_heads * x_w.q_len);
    return {scores + (b * x_w.q_heads + h) * x_w.q_len * width + x_column, width};
  }

  /// C = op(A) op(B) + beta C.
  void product(bool ta, bool tb, Matrix<const T*> a, Matrix<const T*> b, Matrix<T*> c, T beta) {
    // To scores from heads (tb), to heads from scores, to keys from queries (ta).
    const std::int64_t m = ta ? x_part : x_w.q_len;
    const std::int64_t n = tb ? x_w.kv_len : x_w.head_dim;
    const std::int64_t k = ta ? x_w.q_len : tb ? x_w.head_dim : x_w.kv_len;
    multiply(Matrices<T>{ta, tb, m, n, k, a.data, b.data, c.data, a.width, b.width, c.width, T(1),
                         beta});
  }
  /// [member][sequence][token][key-value head], a member after another; heads of a group add up.
  void of_all(Matrix<const T*> scores, Matrix<const T*> heads, std::int64_t b, std::int64_t h) {
    const std::int64_t width = x_w.kv_heads * x_w.head_dim;
    x_part = x_w.q_len;
    for (std::int64_t first = 0; first < x_w.kv_len; first += x_part) {
      T* out = x_x.out(0) + (first * x_w.batch + b * x_part) * width + h / x_group * x_w.head_dim;
      product(true, false, {scores.data + first, scores.width}, heads, {out, width}, T(1));
    }
  }

  std::int64_t line(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return ((b * x_w.q_heads + h) * x_w.q_len + i) * x_w.kv_len;
  }
  T keep_scale() const { return static_cast<T>(1.0 / (1.0 - x_w.dropout)); }

  /// reads: scores; writes: probabilities, [the mask, dropped probabilities].
  void softmax(std::int64_t b, std::int64_t h) {
    const T tilt = x_w.alibi ? x_place.slope<T>(h) : T(0);
    for (std::int64_t i = 0; i < x_w.q_len; ++i) {
      const std::int64_t at = line(b, h, i);
      const std::int64_t query = x_own + i;
      const T* scores = x_x.in(0) + at;
      T* out = x_x.out(0) + at;
      const std::int64_t seen = x_w.causal ? query + 1 : x_w.kv_len;
      T top = -std::numeric_limits<T>::infinity();
      for (std::int64_t j = 0; j < seen; ++j) {
        out[j] = x_scale * scores[j] + tilt * static_cast<T>(j - query);
        top = std::max(top, out[j]);
      }
      T sum = 0;
      for (std::int64_t j = 0; j < seen; ++j) sum += out[j] = std::exp(out[j] - top);
      for (std::int64_t j = 0; j < seen; ++j) out[j] /= sum;
      std::fill(out + seen, out + x_w.kv_len, T(0));
      if (x_w.dropout > 0) drop(b, h, i);
    }
  }
  void drop(std::int64_t b, std::int64_t h, std::int64_t i) {
    const std::int64_t at = line(b, h, i);
    for (std::int64_t j = 0; j < x_w.kv_len; ++j) {
      const bool kept = x_place.kept(b, h, x_own + i, j);
      x_x.flags_out(1)[at + j] = kept ? 1 : 0;
      x_x.out(2)[at + j] = kept ? x_x.out(0)[at + j] * keep_scale() : T(0);
    }
  }

  /// reads: d P, P, [the mask]; writes: d S.
  void softmax_backward(std::int64_t b, std::int64_t h) {
    for (std::int64_t i = 0; i < x_w.q_len; ++i) {
      const std::int64_t at = line(b, h, i);
      const T* p = x_x.in(1) + at;
      T* d = x_x.out(0) + at;
      T dot = 0;
      for (std::int64_t j = 0; j < x_w.kv_len; ++j) {
        T g = x_x.in(0)[at + j];
        if (x_w.dropout > 0) g = x_x.flags_in(2)[at + j] != 0 ? g * keep_scale() : T(0);
        d[j] = g;
        dot += g * p[j];
      }
      for (std::int64_t j = 0; j < x_w.kv_len; ++j) d[j] = p[j] * (d[j] - dot) * x_scale;
    }
  }

  const Attention& x_w;
  const Operands<T>& x_x;
  AttentionPlace x_place;
  T x_scale, x_beta = 0;
  std::int64_t x_group, x_own = 0, x_column = 0, x_part = 0;
};

}  // namespace

template <typename T>
void run_attention_step(const Attention& work, const OpContext& context, const Operands<T>& x) {
  StepRun<T>(work, context, x).run();
}

template void run_attention_step(const Attention&, const OpContext&, const Operands<float>&);
template void run_attention_step(const Attention&, const OpContext&, const Operands<double>&);

}  // namespace foretrain
