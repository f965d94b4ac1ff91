// Attention in both forms: flash tiles of ours; unfused with batched products and a softmax.
#pragma once

#include "executor/cuda/flash_kernels.h"

namespace foretrain::device {

/// Row of stored scores (scaled) to probabilities, in place; with dropout the mask and what is
/// left.
template <typename T>
struct Softmax {
  AttentionShape s;
  T* p;
  std::uint8_t* flags;
  T* dropped;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t at) const {
    const std::int64_t query = at % s.q_len;
    const std::int64_t h = at / s.q_len % s.q_heads;
    const std::int64_t b = at / s.q_len / s.q_heads;
    T* const line = p + at * s.kv_len;
    float top = kMasked;
    for (std::int64_t j = team.rank(); j < s.kv_len; j += team.size()) {
      const float v = s.sees(query, j) ? s.tilted(to_float(line[j]), h, query, j) : kMasked;
      top = v > top ? v : top;
    }
    top = team.max(top);
    float sum = 0;
    for (std::int64_t j = team.rank(); j < s.kv_len; j += team.size()) {
      if (s.sees(query, j)) sum += std::exp(s.tilted(to_float(line[j]), h, query, j) - top);
    }
    sum = team.sum(sum);
    for (std::int64_t j = team.rank(); j < s.kv_len; j += team.size()) {
      float v = 0;
      if (s.sees(query, j)) v = std::exp(s.tilted(to_float(line[j]), h, query, j) - top) / sum;
      line[j] = stored<T>(v);
      if (flags == nullptr) continue;
      const bool kept = s.sees(query, j) && s.kept(b, h, query, j);
      flags[at * s.kv_len + j] = kept ? 1 : 0;
      dropped[at * s.kv_len + j] = stored<T>(kept ? v * s.keep_scale : 0.0F);
    }
  }
};

/// Row of d (dropped) probabilities to d scores, in place; of one sequence.
template <typename T>
struct SoftmaxBackward {
  AttentionShape s;
  std::int64_t sequence;
  const T* p;
  const std::uint8_t* flags;
  const float* dots;
  T* g;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t at) const {
    const std::int64_t row = sequence * s.q_heads * s.q_len + at;
    for (std::int64_t j = team.rank(); j < s.kv_len; j += team.size()) {
      float d = to_float(g[at * s.kv_len + j]);
      if (flags != nullptr) d = flags[row * s.kv_len + j] != 0 ? d * s.keep_scale : 0.0F;
      const float v = to_float(p[row * s.kv_len + j]);
      g[at * s.kv_len + j] = stored<T>(v * (d - dots[row]) * s.scale);
    }
  }
};

/// A product for every key-value head of one sequence, for member `member` of each group.
template <typename T>
struct HeadProducts {
  AttentionShape s;
  DType type;
  std::int64_t sequence, member;

  std::int64_t head_stride() const { return (s.group + 2) * s.dim; }
  std::int64_t score_stride() const { return s.group * s.q_len * s.kv_len; }
  std::int64_t out_stride() const { return s.group * s.dim; }
  std::int64_t out_at() const { return sequence * s.q_len * s.out_width + member * s.dim; }
  std::int64_t qkv_at() const { return sequence * s.q_len * s.width; }
  std::int64_t query_at() const { return qkv_at() + member * s.dim; }
  std::int64_t key_at() const { return qkv_at() + s.group * s.dim; }
  std::int64_t value_at() const { return key_at() + s.dim; }
  std::int64_t score_at() const { return (sequence * s.q_heads + member) * s.q_len * s.kv_len; }

  Product base() const {
    Product out;
    out.batch = s.kv_heads;
    out.in = out.out = type;
    return out;
  }
  /// rows x keys = scale left right^T, both rows of heads.
  Product scores(const T* left, std::int64_t lda, std::int64_t stride, const T* right, T* to,
                 float scale) const {
    Product out = base();
    out.transpose_b = true;
    out.m = s.q_len;
    out.n = s.kv_len;
    out.k = s.dim;
    out.a = left;
    out.lda = lda;
    out.stride_a = stride;
    out.b = right;
    out.ldb = s.width;
    out.stride_b = head_stride();
    out.c = to;
    out.ldc = s.kv_len;
    out.stride_c = score_stride();
    out.alpha = scale;
    return out;
  }
  /// Rows of heads = op(scores) right.
  Product mixed(bool turned, const T* left, const T* right, std::int64_t ldb, std::int64_t stride_b,
                T* to, std::int64_t ldc, std::int64_t stride_c) const {
    Product out = base();
    out.transpose_a = turned;
    out.m = turned ? s.kv_len : s.q_len;
    out.n = s.dim;
    out.k = turned ? s.q_len : s.kv_len;
    out.a = left;
    out.lda = s.kv_len;
    out.stride_a = score_stride();
    out.b = right;
    out.ldb = ldb;
    out.stride_b = stride_b;
    out.c = to;
    out.ldc = ldc;
    out.stride_c = stride_c;
    return out;
  }
};

template <typename T, typename L>
void unfused_forward(L& launcher, const AttentionShape& s, DType type, const DeviceOperands& x) {
  const T* const qkv = x.in<T>(0);
  T* const p = x.out<T>(1);
  std::uint8_t* const flags = s.drops ? x.out<std::uint8_t>(2) : nullptr;
  T* const dropped = s.drops ? x.out<T>(3) : nullptr;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t g = 0; g < s.group; ++g) {
      const HeadProducts<T> heads{s, type, b, g};
      launcher.product(heads.scores(qkv + heads.query_at(), s.width, heads.head_stride(),
                                    qkv + heads.key_at(), p + heads.score_at(), s.scale));
    }
  }
  launcher.rows(s.batch * s.q_heads * s.q_len, Softmax<T>{s, p, flags, dropped});
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t g = 0; g < s.group; ++g) {
      const HeadProducts<T> heads{s, type, b, g};
      launcher.product(heads.mixed(false, (s.drops ? dropped : p) + heads.score_at(),
                                   qkv + heads.value_at(), s.width, heads.head_stride(),
                                   x.out<T>(0) + heads.out_at(), s.out_width, heads.out_stride()));
    }
  }
}

/// reads: d out, qkv, out, probabilities, [mask, dropped probabilities].
template <typename T, typename L>
void unfused_backward(L& launcher, const AttentionShape& s, DType type, const DeviceOperands& x) {
  const T* const d_out = x.in<T>(0);
  const T* const qkv = x.in<T>(1);
  const T* const p = x.in<T>(3);
  const std::uint8_t* const flags = s.drops ? x.in<std::uint8_t>(4) : nullptr;
  const T* const dropped = s.drops ? x.in<T>(5) : p;
  T* const d_qkv = x.out<T>(0);
  const std::int64_t rows = s.batch * s.q_heads * s.q_len;
  const std::int64_t square = s.q_heads * s.q_len * s.kv_len;  // of a sequence
  auto* const dots =
      static_cast<float*>(launcher.scratch(static_cast<std::size_t>(rows) * sizeof(float)));
  auto* const d_p =
      static_cast<T*>(launcher.kept_scratch(static_cast<std::size_t>(square) * sizeof(T)));
  launcher.rows(rows, OutDot<T>{s, d_out, x.in<T>(2), dots});
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t g = 0; g < s.group; ++g) {
      const HeadProducts<T> heads{s, type, b, g};
      launcher.product(heads.scores(d_out + heads.out_at(), s.out_width, heads.out_stride(),
                                    qkv + heads.value_at(), d_p + heads.score_at() - b * square,
                                    1.0F));
    }
    launcher.rows(s.q_heads * s.q_len, SoftmaxBackward<T>{s, b, p, flags, dots, d_p});
    for (std::int64_t g = 0; g < s.group; ++g) {
      const HeadProducts<T> heads{s, type, b, g};
      const T* const d_scores = d_p + heads.score_at() - b * square;
      Product values =
          heads.mixed(true, dropped + heads.score_at(), d_out + heads.out_at(), s.out_width,
                      heads.out_stride(), d_qkv + heads.value_at(), s.width, heads.head_stride());
      Product keys =
          heads.mixed(true, d_scores, qkv + heads.query_at(), s.width, heads.head_stride(),
                      d_qkv + heads.key_at(), s.width, heads.head_stride());
      values.beta = keys.beta = g > 0 ? 1.0F : 0.0F;
      launcher.product(values);
      launcher.product(keys);
      launcher.product(heads.mixed(false, d_scores, qkv + heads.key_at(), s.width,
                                   heads.head_stride(), d_qkv + heads.query_at(), s.width,
                                   heads.head_stride()));
    }
  }
}

template <typename T, typename L>
void flash(L& launcher, const AttentionShape& s, const Attention& w, const DeviceOperands& x) {
  const std::int64_t q_tiles = (s.q_len + kTile - 1) / kTile;
  const std::int64_t k_tiles = (s.kv_len + kTile - 1) / kTile;
  const std::int64_t rows = s.batch * s.q_heads * s.q_len;
  const bool apart = has_keys_apart(w);
  if (!w.backward) {
    launcher.rows(s.batch * s.q_heads * q_tiles,
                  FlashForward<T>{s, x.in<T>(0), x.in<T>(apart ? 1 : 0), x.out<T>(0),
                                  x.out<float>(1), q_tiles},
                  flash_floats(s.dim, 4, 1, 3));
    return;
  }
  auto* const dots =
      static_cast<float*>(launcher.scratch(static_cast<std::size_t>(rows) * sizeof(float)));
  launcher.rows(rows, OutDot<T>{s, x.in<T>(0), x.in<T>(2), dots});
  // Of packed rows whose keys are elsewhere the queries' gradients are all there is.
  if (w.part == ContextPart::kAll) launcher.clear(x.writes[0]);
  const FlashBackwardInputs<T> in{
      x.in<T>(0), x.in<T>(1),  x.in<T>(apart ? 3 : 1), x.in<float>(x.reads.size() - 1),
      dots,       x.out<T>(0), x.out<T>(apart ? 1 : 0)};
  launcher.rows(s.batch * s.q_heads * q_tiles, FlashBackwardQueries<T>{s, in, q_tiles},
                flash_floats(s.dim, 5, 2, 0));
  launcher.rows(s.sources * s.batch * s.kv_heads * k_tiles, FlashBackwardKeys<T>{s, in, k_tiles},
                flash_floats(s.dim, 6, 2, 0));
}

template <typename L>
void run_attention(L& launcher, const Attention& w, const OpContext& context,
                   const DeviceOperands& x) {
  const AttentionShape s = shape_of(w, context, x);
  const DType type = x.type_out(0);
  with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (w.kernel != AttentionKernel::kUnfused) return flash<T>(launcher, s, w, x);
    w.backward ? unfused_backward<T>(launcher, s, type, x)
               : unfused_forward<T>(launcher, s, type, x);
  });
}

}  // namespace foretrain::device
