// What every piece of attention needs to know: where heads lie, what a query sees, what is dropped.
// The mathematics is attention.cpp's.
#pragma once

#include <cmath>

#include "executor/cuda/device_view.h"

namespace foretrain::device {

struct AttentionShape {
  std::int64_t batch = 1, q_heads = 1, kv_heads = 1, q_len = 1, kv_len = 1, dim = 1;
  std::int64_t group = 1, width = 1, out_width = 1, window = 0;
  bool causal = true, alibi = false, drops = false;
  float scale = 1, keep_scale = 1;
  std::uint64_t key = 0, threshold = 0;
  std::int64_t first_sequence = 0, first_head = 0, all_heads = 1;

  // Where a head lies in a row of qkv: queries of its group, then the group's key and value.
  FT_DEVICE std::int64_t q_at(std::int64_t h) const {
    return (h / group * (group + 2) + h % group) * dim;
  }
  FT_DEVICE std::int64_t k_at(std::int64_t h) const {
    return (h / group * (group + 2) + group) * dim;
  }
  FT_DEVICE std::int64_t v_at(std::int64_t h) const { return k_at(h) + dim; }
  FT_DEVICE bool seen(std::int64_t query, std::int64_t of) const {
    if (query >= q_len || of >= kv_len || (causal && of > query)) return false;
    return window == 0 || of > query - window;
  }
  FT_DEVICE float slope(std::int64_t h) const {
    return std::exp2(-8.0F * static_cast<float>(first_head + h + 1) /
                     static_cast<float>(all_heads));
  }
  /// A scaled score with ALiBi's tilt.
  FT_DEVICE float tilted(float score, std::int64_t h, std::int64_t query, std::int64_t of) const {
    return alibi ? score + slope(h) * static_cast<float>(of - query) : score;
  }
  FT_DEVICE bool kept(std::int64_t b, std::int64_t h, std::int64_t query, std::int64_t of) const {
    const std::int64_t head = (first_sequence + b) * all_heads + first_head + h;
    return bits_at(key, (head * q_len + query) * kv_len + of) >= threshold;
  }
  /// Of a row of queries in statistics and stored probabilities.
  FT_DEVICE std::int64_t statistic(std::int64_t b, std::int64_t h, std::int64_t query) const {
    return (b * q_heads + h) * q_len + query;
  }
  /// Keys [first, end) that any of the queries [q, q + rows) sees.
  FT_DEVICE std::int64_t first_seen(std::int64_t q) const {
    return window > 0 && q - window + 1 > 0 ? q - window + 1 : 0;
  }
  FT_DEVICE std::int64_t end_seen(std::int64_t q, std::int64_t rows) const {
    return causal && q + rows < kv_len ? q + rows : kv_len;
  }
};

inline AttentionShape shape_of(const Attention& w, const OpContext& context) {
  AttentionShape s;
  s.batch = w.batch;
  s.q_heads = w.q_heads;
  s.kv_heads = w.kv_heads;
  s.q_len = w.q_len;
  s.kv_len = w.kv_len;
  s.dim = w.head_dim;
  s.group = w.q_heads / w.kv_heads;
  s.width = (w.q_heads + 2 * w.kv_heads) * w.head_dim;
  s.out_width = w.q_heads * w.head_dim;
  s.window = w.window;
  s.causal = w.causal;
  s.alibi = w.alibi;
  s.drops = w.dropout > 0;
  s.scale = 1.0F / std::sqrt(static_cast<float>(w.head_dim));
  s.keep_scale = static_cast<float>(1.0 / (1.0 - w.dropout));
  s.key = context.key("attention dropout");
  s.threshold = threshold_of(w.dropout);
  const Place place = context.place(w.heads_split_over);
  s.first_sequence = context.first_sequence() + w.first_sequence;
  s.first_head = place.index * w.q_heads;
  s.all_heads = place.size * w.q_heads;
  return s;
}

}  // namespace foretrain::device
