// Attention by tiles in fp32, scores never stored (Dao et al. 2022): our own, with the plan's mask,
// window, ALiBi, dropout and grouped heads, and in a fixed order of additions. It does without
// tensor cores, so it is several times slower than cuDNN's.
//
// Left out: heads wider than 128.
#pragma once

#include "executor/cuda/attention_shape.h"

namespace foretrain::device {

inline constexpr std::int64_t kTile = 32;
inline constexpr std::int64_t kWidestHead = 128;

/// `count` rows of a tile in a team's memory, padded against bank conflicts; zeros beyond `rows`.
struct Tile {
  float* data;
  std::int64_t pitch;
  FT_DEVICE float& at(std::int64_t i, std::int64_t c) const { return data[i * pitch + c]; }
};

template <typename Team>
FT_DEVICE Tile take_tile(float*& memory, std::int64_t cols) {
  const Tile out{memory, cols + 1};
  memory += kTile * (cols + 1);
  return out;
}

template <typename Team, typename T>
FT_DEVICE void load(Team& team, Tile tile, const T* from, std::int64_t pitch, std::int64_t rows,
                    std::int64_t dim) {
  for (std::int64_t i = team.rank(); i < kTile * dim; i += team.size()) {
    const std::int64_t r = i / dim;
    const std::int64_t c = i % dim;
    tile.at(r, c) = r < rows ? to_float(from[r * pitch + c]) : 0.0F;
  }
}
template <typename Team, typename T>
FT_DEVICE void store(Team& team, Tile tile, T* to, std::int64_t pitch, std::int64_t rows,
                     std::int64_t dim) {
  for (std::int64_t i = team.rank(); i < rows * dim; i += team.size()) {
    to[i / dim * pitch + i % dim] = stored<T>(tile.at(i / dim, i % dim));
  }
}
template <typename Team>
FT_DEVICE void zero(Team& team, Tile tile, std::int64_t dim) {
  for (std::int64_t i = team.rank(); i < kTile * dim; i += team.size()) {
    tile.at(i / dim, i % dim) = 0;
  }
}

/// s[i][j] = a[i] . b[j]; every worker two by two.
template <typename Team>
FT_DEVICE void dots(Team& team, Tile s, Tile a, Tile b, std::int64_t dim) {
  constexpr std::int64_t kHalf = kTile / 2;
  for (std::int64_t at = team.rank(); at < kHalf * kHalf; at += team.size()) {
    const std::int64_t i = at / kHalf;
    const std::int64_t j = at % kHalf;
    float v00 = 0;
    float v01 = 0;
    float v10 = 0;
    float v11 = 0;
    for (std::int64_t c = 0; c < dim; ++c) {
      const float a0 = a.at(i, c);
      const float a1 = a.at(i + kHalf, c);
      const float b0 = b.at(j, c);
      const float b1 = b.at(j + kHalf, c);
      v00 += a0 * b0;
      v01 += a0 * b1;
      v10 += a1 * b0;
      v11 += a1 * b1;
    }
    s.at(i, j) = v00;
    s.at(i, j + kHalf) = v01;
    s.at(i + kHalf, j) = v10;
    s.at(i + kHalf, j + kHalf) = v11;
  }
}

/// out[i][c] = keep[i] out[i][c] + sum over j of s[i][j] b[j][c]; `turned`: s[j][i].
template <typename Team>
FT_DEVICE void add_product(Team& team, Tile out, const float* keep, Tile s, bool turned, Tile b,
                           std::int64_t dim) {
  for (std::int64_t at = team.rank(); at < kTile * dim; at += team.size()) {
    const std::int64_t i = at / dim;
    const std::int64_t c = at % dim;
    float sum = 0;
    for (std::int64_t j = 0; j < kTile; ++j) {
      sum += (turned ? s.at(j, i) : s.at(i, j)) * b.at(j, c);
    }
    out.at(i, c) = (keep != nullptr ? keep[i] * out.at(i, c) : out.at(i, c)) + sum;
  }
}

inline constexpr float kMasked = -3.0e38F;

/// Floats of team memory for `wide` tiles of dim columns, `square` ones, and `rows` columns.
inline std::size_t flash_floats(std::int64_t dim, int wide, int square, int rows) {
  return static_cast<std::size_t>(kTile * (wide * (dim + 1) + square * (kTile + 1) + rows));
}

/// Team (sequence, head, tile of queries).
template <typename T>
struct FlashForward {
  AttentionShape s;
  const T* qkv;
  T* out;
  float* log_sums;
  std::int64_t tiles;

  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t at) const {
    const std::int64_t q = at % tiles * kTile;
    const std::int64_t h = at / tiles % s.q_heads;
    const std::int64_t b = at / tiles / s.q_heads;
    const std::int64_t rows = s.q_len - q < kTile ? s.q_len - q : kTile;
    float* memory = team.shared();
    const Tile queries = take_tile<Team>(memory, s.dim);
    const Tile keys = take_tile<Team>(memory, s.dim);
    const Tile values = take_tile<Team>(memory, s.dim);
    const Tile sums = take_tile<Team>(memory, s.dim);
    const Tile p = take_tile<Team>(memory, kTile);
    float* const top = memory;
    float* const total = top + kTile;
    float* const keep = total + kTile;
    load(team, queries, qkv + (b * s.q_len + q) * s.width + s.q_at(h), s.width, rows, s.dim);
    zero(team, sums, s.dim);
    for (std::int64_t i = team.rank(); i < kTile; i += team.size()) {
      top[i] = kMasked;
      total[i] = 0;
    }
    const std::int64_t end = s.end_seen(q, rows);
    for (std::int64_t k = s.first_seen(q); k < end; k += kTile) {
      const std::int64_t count = end - k < kTile ? end - k : kTile;
      const T* row = qkv + (b * s.kv_len + k) * s.width;
      load(team, keys, row + s.k_at(h), s.width, count, s.dim);
      load(team, values, row + s.v_at(h), s.width, count, s.dim);
      team.sync();
      dots(team, p, queries, keys, s.dim);
      team.sync();
      for (std::int64_t i = team.rank(); i < kTile; i += team.size()) {
        keep[i] = soften(p, i, b, h, q + i, k, top[i], total[i]);
      }
      team.sync();
      add_product(team, sums, keep, p, false, values, s.dim);
      team.sync();
    }
    for (std::int64_t i = team.rank(); i < rows * s.dim; i += team.size()) {
      sums.at(i / s.dim, i % s.dim) /= total[i / s.dim];
    }
    for (std::int64_t i = team.rank(); i < rows; i += team.size()) {
      log_sums[s.statistic(b, h, q + i)] = top[i] + std::log(total[i]);
    }
    team.sync();
    store(team, sums, out + (b * s.q_len + q) * s.out_width + h * s.dim, s.out_width, rows, s.dim);
  }

  /// Turns row i of the scores into dropped exponentials; what the sums so far must be scaled by.
  FT_DEVICE float soften(Tile p, std::int64_t i, std::int64_t b, std::int64_t h, std::int64_t query,
                         std::int64_t k, float& top, float& total) const {
    float most = top;
    for (std::int64_t j = 0; j < kTile; ++j) {
      const bool seen = s.seen(query, k + j);
      const float v = seen ? s.tilted(p.at(i, j) * s.scale, h, query, k + j) : kMasked;
      p.at(i, j) = v;
      most = v > most ? v : most;
    }
    float sum = 0;
    for (std::int64_t j = 0; j < kTile; ++j) {
      const float v = p.at(i, j) > kMasked ? std::exp(p.at(i, j) - most) : 0.0F;
      sum += v;
      const bool drops = s.drops && v > 0 && !s.kept(b, h, query, k + j);
      p.at(i, j) = drops ? 0.0F : v * s.keep_scale;
    }
    const float keep = std::exp(top - most);
    top = most;
    total = total * keep + sum;
    return keep;
  }
};

/// One fp32 a row of queries: d out . out.
template <typename T>
struct OutDot {
  AttentionShape s;
  const T* d_out;
  const T* out;
  float* dots;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t at) const {
    const std::int64_t h = at / s.q_len % s.q_heads;
    const std::int64_t row = at / s.q_len / s.q_heads * s.q_len + at % s.q_len;
    const std::int64_t first = row * s.out_width + h * s.dim;
    float sum = 0;
    for (std::int64_t c = team.rank(); c < s.dim; c += team.size()) {
      sum += to_float(d_out[first + c]) * to_float(out[first + c]);
    }
    sum = team.sum(sum);
    if (team.rank() == 0) dots[at] = sum;
  }
};

/// Row i of a tile: scores in p and d probabilities in g become dropped probabilities and d scores.
FT_DEVICE inline void score_gradients(const AttentionShape& s, Tile p, Tile g, std::int64_t i,
                                      std::int64_t b, std::int64_t h, std::int64_t query,
                                      std::int64_t k, const float* log_sums, const float* dots) {
  const std::int64_t row = query < s.q_len ? s.statistic(b, h, query) : 0;
  for (std::int64_t j = 0; j < kTile; ++j) {
    float v = 0;
    if (s.seen(query, k + j)) {
      v = std::exp(s.tilted(p.at(i, j) * s.scale, h, query, k + j) - log_sums[row]);
    }
    const bool kept = !s.drops || (v > 0 && s.kept(b, h, query, k + j));
    const float d = kept ? g.at(i, j) * s.keep_scale : 0.0F;
    p.at(i, j) = kept ? v * s.keep_scale : 0.0F;
    g.at(i, j) = v > 0 ? v * (d - dots[row]) * s.scale : 0.0F;
  }
}

template <typename T>
struct FlashBackwardInputs {
  const T* d_out;
  const T* qkv;
  const float* log_sums;
  const float* dots;
  T* d_qkv;
};

/// Team (sequence, head, tile of queries): d queries.
template <typename T>
struct FlashBackwardQueries {
  AttentionShape s;
  FlashBackwardInputs<T> x;
  std::int64_t tiles;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t at) const {
    const std::int64_t q = at % tiles * kTile;
    const std::int64_t h = at / tiles % s.q_heads;
    const std::int64_t b = at / tiles / s.q_heads;
    const std::int64_t rows = s.q_len - q < kTile ? s.q_len - q : kTile;
    float* memory = team.shared();
    const Tile queries = take_tile<Team>(memory, s.dim);
    const Tile keys = take_tile<Team>(memory, s.dim);
    const Tile values = take_tile<Team>(memory, s.dim);
    const Tile d_out = take_tile<Team>(memory, s.dim);
    const Tile sums = take_tile<Team>(memory, s.dim);
    const Tile p = take_tile<Team>(memory, kTile);
    const Tile g = take_tile<Team>(memory, kTile);
    const std::int64_t row = b * s.q_len + q;
    load(team, queries, x.qkv + row * s.width + s.q_at(h), s.width, rows, s.dim);
    load(team, d_out, x.d_out + row * s.out_width + h * s.dim, s.out_width, rows, s.dim);
    zero(team, sums, s.dim);
    const std::int64_t end = s.end_seen(q, rows);
    for (std::int64_t k = s.first_seen(q); k < end; k += kTile) {
      const std::int64_t count = end - k < kTile ? end - k : kTile;
      const T* from = x.qkv + (b * s.kv_len + k) * s.width;
      load(team, keys, from + s.k_at(h), s.width, count, s.dim);
      load(team, values, from + s.v_at(h), s.width, count, s.dim);
      team.sync();
      dots(team, p, queries, keys, s.dim);
      dots(team, g, d_out, values, s.dim);
      team.sync();
      for (std::int64_t i = team.rank(); i < kTile; i += team.size()) {
        score_gradients(s, p, g, i, b, h, q + i, k, x.log_sums, x.dots);
      }
      team.sync();
      add_product(team, sums, nullptr, g, false, keys, s.dim);
      team.sync();
    }
    store(team, sums, x.d_qkv + row * s.width + s.q_at(h), s.width, rows, s.dim);
  }
};

/// Team (sequence, key-value head, tile of keys): d keys and d values, over the heads of the group.
template <typename T>
struct FlashBackwardKeys {
  AttentionShape s;
  FlashBackwardInputs<T> x;
  std::int64_t tiles;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t at) const {
    const std::int64_t k = at % tiles * kTile;
    const std::int64_t first = at / tiles % s.kv_heads * s.group;
    const std::int64_t b = at / tiles / s.kv_heads;
    const std::int64_t count = s.kv_len - k < kTile ? s.kv_len - k : kTile;
    float* memory = team.shared();
    const Tile queries = take_tile<Team>(memory, s.dim);
    const Tile keys = take_tile<Team>(memory, s.dim);
    const Tile values = take_tile<Team>(memory, s.dim);
    const Tile d_out = take_tile<Team>(memory, s.dim);
    const Tile d_keys = take_tile<Team>(memory, s.dim);
    const Tile d_values = take_tile<Team>(memory, s.dim);
    const Tile p = take_tile<Team>(memory, kTile);
    const Tile g = take_tile<Team>(memory, kTile);
    const std::int64_t key_row = (b * s.kv_len + k) * s.width;
    load(team, keys, x.qkv + key_row + s.k_at(first), s.width, count, s.dim);
    load(team, values, x.qkv + key_row + s.v_at(first), s.width, count, s.dim);
    zero(team, d_keys, s.dim);
    zero(team, d_values, s.dim);
    const std::int64_t begin = s.causal ? k / kTile * kTile : 0;
    const std::int64_t last = k + count - 1 + s.window;
    const std::int64_t end = s.window > 0 && last < s.q_len ? last : s.q_len;
    for (std::int64_t h = first; h < first + s.group; ++h) {
      for (std::int64_t q = begin; q < end; q += kTile) {
        const std::int64_t rows = s.q_len - q < kTile ? s.q_len - q : kTile;
        const std::int64_t row = b * s.q_len + q;
        load(team, queries, x.qkv + row * s.width + s.q_at(h), s.width, rows, s.dim);
        load(team, d_out, x.d_out + row * s.out_width + h * s.dim, s.out_width, rows, s.dim);
        team.sync();
        dots(team, p, queries, keys, s.dim);
        dots(team, g, d_out, values, s.dim);
        team.sync();
        for (std::int64_t i = team.rank(); i < kTile; i += team.size()) {
          score_gradients(s, p, g, i, b, h, q + i, k, x.log_sums, x.dots);
        }
        team.sync();
        add_product(team, d_values, nullptr, p, true, d_out, s.dim);
        add_product(team, d_keys, nullptr, g, true, queries, s.dim);
        team.sync();
      }
    }
    store(team, d_keys, x.d_qkv + key_row + s.k_at(first), s.width, count, s.dim);
    store(team, d_values, x.d_qkv + key_row + s.v_at(first), s.width, count, s.dim);
  }
};

}  // namespace foretrain::device
