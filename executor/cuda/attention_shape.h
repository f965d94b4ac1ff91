// What every piece of attention needs to know: where heads and keys lie, what a query sees, what is
// dropped. The mathematics is attention.cpp's.
//
// Keys come from one or several sources: the packed qkv of the queries, or, under context
// parallelism, keys and values of one member or of all. What a query sees follows from positions.
#pragma once

#include <cmath>

#include "executor/cuda/token_places.h"

namespace foretrain::device {

struct AttentionShape {
  std::int64_t batch = 1, q_heads = 1, kv_heads = 1, q_len = 1, dim = 1;
  std::int64_t sources = 1, kv_len = 1;  ///< of keys; keys of a sequence in each
  std::int64_t group = 1, width = 1, out_width = 1, window = 0;
  std::int64_t d_width = 1;  ///< of a row that takes d q
  /// Of keys: elements of a token, of a key-value head, and before its key.
  std::int64_t key_width = 1, key_head = 1, key_first = 0;
  bool masked = true, alibi = false, drops = false;
  float scale = 1, keep_scale = 1;
  std::uint64_t key = 0, threshold = 0;
  std::int64_t first_sequence = 0, first_head = 0, all_heads = 1;
  std::int64_t length = 1;  ///< of a sequence
  bool whole = true;        ///< sequences are not cut here
  TokenPlaces places;
  std::int64_t first_member = 0;  ///< whose keys the first source holds

  // Where a head lies in a row of qkv: queries of its group, then the group's key and value.
  FT_DEVICE std::int64_t q_at(std::int64_t h) const {
    return (h / group * (group + 2) + h % group) * dim;
  }
  FT_DEVICE std::int64_t d_q_at(std::int64_t h) const {
    return d_width == width ? q_at(h) : h * dim;
  }
  /// Elements before the key of row k of a source; the value follows it.
  FT_DEVICE std::int64_t key_at(std::int64_t source, std::int64_t b, std::int64_t k,
                                std::int64_t h) const {
    return ((source * batch + b) * kv_len + k) * key_width + h / group * key_head + key_first;
  }
  FT_DEVICE std::int64_t query_position(std::int64_t q) const {
    return whole ? q : places.in_part(q, places.member);
  }
  FT_DEVICE std::int64_t key_position(std::int64_t source, std::int64_t k) const {
    return whole ? k : places.in_part(k, first_member + source);
  }
  /// By positions; -1 is none.
  FT_DEVICE bool sees(std::int64_t query, std::int64_t of) const {
    if (query < 0 || of < 0 || (masked && of > query)) return false;
    return window == 0 || of > query - window;
  }
  /// Whether any of the queries [q, q + rows) may see one of the keys [k, k + keys) of a source.
  FT_DEVICE bool touches(std::int64_t q, std::int64_t rows, std::int64_t source, std::int64_t k,
                         std::int64_t keys) const {
    if (masked && key_position(source, k) > query_position(q + rows - 1)) return false;
    return window == 0 || key_position(source, k + keys - 1) > query_position(q) - window;
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
    return bits_at(key, (head * length + query) * length + of) >= threshold;
  }
  /// Of a row of queries in statistics and stored probabilities.
  FT_DEVICE std::int64_t statistic(std::int64_t b, std::int64_t h, std::int64_t q) const {
    return (b * q_heads + h) * q_len + q;
  }
};

/// Keys and values of other members are an operand of their own.
inline bool has_keys_apart(const Attention& w) {
  return w.part == ContextPart::kMember || w.part == ContextPart::kAll;
}

inline void place_keys(AttentionShape& s, const Attention& w, const OpContext& context,
                       const DeviceOperands& x) {
  const Place cut = context.among_parts(w.parts_over);
  s.first_member = cut.index;
  s.kv_len = w.kv_len;
  s.key_width = s.width;
  s.key_head = (s.group + 2) * s.dim;
  s.key_first = s.group * s.dim;
  if (!has_keys_apart(w)) return;
  s.kv_len = w.q_len;
  s.key_width = 2 * w.kv_heads * w.head_dim;
  s.key_head = 2 * s.dim;
  s.key_first = 0;
  s.sources = x.reads[w.backward ? 3 : 1].count / (s.batch * s.kv_len * s.key_width);
  s.first_member =
      w.part == ContextPart::kAll ? 0 : (cut.index + cut.size - w.hops % cut.size) % cut.size;
}

inline AttentionShape shape_of(const Attention& w, const OpContext& context,
                               const DeviceOperands& x) {
  AttentionShape s;
  s.batch = w.batch;
  s.q_heads = w.q_heads;
  s.kv_heads = w.kv_heads;
  s.q_len = w.q_len;
  s.dim = w.head_dim;
  s.group = w.q_heads / w.kv_heads;
  s.width = (w.q_heads + 2 * w.kv_heads) * w.head_dim;
  s.out_width = w.q_heads * w.head_dim;
  s.d_width = w.backward && w.part == ContextPart::kMember ? s.out_width : s.width;
  s.window = w.window;
  s.masked = w.causal || has_keys_apart(w);
  s.alibi = w.alibi;
  s.drops = w.dropout > 0;
  s.scale = 1.0F / std::sqrt(static_cast<float>(w.head_dim));
  s.keep_scale = static_cast<float>(1.0 / (1.0 - w.dropout));
  s.key = context.key("attention dropout");
  s.threshold = threshold_of(w.dropout);
  Place place = context.place(w.heads_split_over);
  place = {place.index * w.head_parts + w.head_part, place.size * w.head_parts};
  const bool by_heads = w.part == ContextPart::kHeads;
  const Place cut = context.place(by_heads ? context.batch.context : w.heads_over);
  place = {place.index * cut.size + cut.index, place.size * cut.size};
  s.first_sequence = context.first_sequence() + w.first_sequence +
                     context.place(w.sequences_split_over).index * w.batch;
  s.first_head = place.index * w.q_heads;
  s.all_heads = place.size * w.q_heads;
  s.length = std::max(w.q_len, context.batch.length);
  s.whole = w.part == ContextPart::kWhole || w.part == ContextPart::kHeads;
  s.places = token_places(context, GroupSlot(), w.q_len);
  s.places.member = context.among_parts(w.parts_over).index;
  s.places.members = context.among_parts(w.parts_over).size;
  place_keys(s, w, context, x);
  return s;
}

}  // namespace foretrain::device
