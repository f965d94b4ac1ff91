// Attention by tiles in fp32, scores never stored (Dao et al. 2022): our own, with the plan's mask,
// window, ALiBi, dropout and grouped heads, and in a fixed order of additions. It does without
// tensor cores, so it is several times slower than cuDNN's.
//
// Left out: heads wider than 128.
#pragma once

#include <limits>

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

/// Floats of team memory for `wide` tiles of dim columns, `square` ones, `columns`, and positions.
inline std::size_t flash_floats(std::int64_t dim, int wide, int square, int columns) {
  return static_cast<std::size_t>(kTile * (wide * (dim + 1) + square * (kTile + 1) + columns + 2));
}

/// Positions of the rows of a tile, -1 beyond its end.
struct Positions {
  std::int32_t* queries;
  std::int32_t* keys;
  template <typename Team>
  FT_DEVICE Positions(Team&, float*& memory)
      : queries(reinterpret_cast<std::int32_t*>(memory)), keys(queries + kTile) {
    memory += 2 * kTile;
  }
  template <typename Team>
  FT_DEVICE void load_queries(Team& team, const AttentionShape& s, std::int64_t q,
                              std::int64_t rows) const {
    for (std::int64_t i = team.rank(); i < kTile; i += team.size()) {
      queries[i] = i < rows ? static_cast<std::int32_t>(s.query_position(q + i)) : -1;
    }
  }
  template <typename Team>
  FT_DEVICE void load_keys(Team& team, const AttentionShape& s, std::int64_t source, std::int64_t k,
                           std::int64_t count) const {
    for (std::int64_t j = team.rank(); j < kTile; j += team.size()) {
      keys[j] = j < count ? static_cast<std::int32_t>(s.key_position(source, k + j)) : -1;
    }
  }
};

FT_DEVICE inline std::int64_t tile_rows(std::int64_t at, std::int64_t length) {
  return length - at < kTile ? length - at : kTile;
}

/// Team (sequence, head, tile of queries). A query that sees no key gives zeros, of log-sum-exp
/// -infinity.
template <typename T>
struct FlashForward {
  AttentionShape s;
  const T* qkv;
  const T* keys_in;
  T* out;
  float* log_sums;
  std::int64_t tiles;

  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t at) const {
    const std::int64_t q = at % tiles * kTile;
    const std::int64_t h = at / tiles % s.q_heads;
    const std::int64_t b = at / tiles / s.q_heads;
    const std::int64_t rows = tile_rows(q, s.q_len);
    float* memory = team.shared();
    const Tile queries = take_tile<Team>(memory, s.dim);
    const Tile keys = take_tile<Team>(memory, s.dim);
    const Tile values = take_tile<Team>(memory, s.dim);
    const Tile sums = take_tile<Team>(memory, s.dim);
    const Tile p = take_tile<Team>(memory, kTile);
    const Positions places(team, memory);
    float* const top = memory;
    float* const total = top + kTile;
    float* const keep = total + kTile;
    load(team, queries, qkv + (b * s.q_len + q) * s.width + s.q_at(h), s.width, rows, s.dim);
    places.load_queries(team, s, q, rows);
    zero(team, sums, s.dim);
    for (std::int64_t i = team.rank(); i < kTile; i += team.size()) {
      top[i] = kMasked;
      total[i] = 0;
    }
    const std::int64_t of_source = (s.kv_len + kTile - 1) / kTile;
    for (std::int64_t tile = 0; tile < s.sources * of_source; ++tile) {
      const std::int64_t source = tile / of_source;
      const std::int64_t k = tile % of_source * kTile;
      const std::int64_t count = tile_rows(k, s.kv_len);
      if (!s.touches(q, rows, source, k, count)) continue;
      const T* const row = keys_in + s.key_at(source, b, k, h);
      load(team, keys, row, s.key_width, count, s.dim);
      load(team, values, row + s.dim, s.key_width, count, s.dim);
      places.load_keys(team, s, source, k, count);
      team.sync();
      dots(team, p, queries, keys, s.dim);
      team.sync();
      for (std::int64_t i = team.rank(); i < kTile; i += team.size()) {
        keep[i] = soften(p, i, b, h, places, top[i], total[i]);
      }
      team.sync();
      add_product(team, sums, keep, p, false, values, s.dim);
      team.sync();
    }
    team.sync();
    for (std::int64_t i = team.rank(); i < rows * s.dim; i += team.size()) {
      const float of = total[i / s.dim];
      sums.at(i / s.dim, i % s.dim) = of > 0 ? sums.at(i / s.dim, i % s.dim) / of : 0.0F;
    }
    for (std::int64_t i = team.rank(); i < rows; i += team.size()) {
      log_sums[s.statistic(b, h, q + i)] =
          total[i] > 0 ? top[i] + std::log(total[i]) : -std::numeric_limits<float>::infinity();
    }
    team.sync();
    store(team, sums, out + (b * s.q_len + q) * s.out_width + h * s.dim, s.out_width, rows, s.dim);
  }

  /// Turns row i of the scores into dropped exponentials; what the sums so far must be scaled by.
  FT_DEVICE float soften(Tile p, std::int64_t i, std::int64_t b, std::int64_t h,
                         const Positions& places, float& top, float& total) const {
    const std::int64_t query = places.queries[i];
    float most = top;
    for (std::int64_t j = 0; j < kTile; ++j) {
      const std::int64_t of = places.keys[j];
      const float v = s.sees(query, of) ? s.tilted(p.at(i, j) * s.scale, h, query, of) : kMasked;
      p.at(i, j) = v;
      most = v > most ? v : most;
    }
    float sum = 0;
    for (std::int64_t j = 0; j < kTile; ++j) {
      const float v = p.at(i, j) > kMasked ? std::exp(p.at(i, j) - most) : 0.0F;
      sum += v;
      const bool drops = s.drops && v > 0 && !s.kept(b, h, query, places.keys[j]);
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
                                      std::int64_t b, std::int64_t h, const Positions& places,
                                      float log_sum, float dot) {
  const std::int64_t query = places.queries[i];
  for (std::int64_t j = 0; j < kTile; ++j) {
    const std::int64_t of = places.keys[j];
    float v = 0;
    if (s.sees(query, of)) {
      v = std::exp(s.tilted(p.at(i, j) * s.scale, h, query, of) - log_sum);
    }
    const bool kept = !s.drops || (v > 0 && s.kept(b, h, query, of));
    const float d = kept ? g.at(i, j) * s.keep_scale : 0.0F;
    p.at(i, j) = kept ? v * s.keep_scale : 0.0F;
    g.at(i, j) = v > 0 ? v * (d - dot) * s.scale : 0.0F;
  }
}

template <typename T>
struct FlashBackwardInputs {
  const T* d_out;
  const T* qkv;
  const T* keys;
  const float* log_sums;
  const float* dots;
  T* d_queries;
  T* d_keys;
};

/// Of all rows of a tile of queries from q on.
template <typename Team, typename T>
FT_DEVICE void tile_gradients(Team& team, const AttentionShape& s, const FlashBackwardInputs<T>& x,
                              Tile p, Tile g, std::int64_t b, std::int64_t h, std::int64_t q,
                              const Positions& places) {
  for (std::int64_t i = team.rank(); i < kTile; i += team.size()) {
    const std::int64_t row = q + i < s.q_len ? s.statistic(b, h, q + i) : 0;
    score_gradients(s, p, g, i, b, h, places, x.log_sums[row], x.dots[row]);
  }
}

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
    const std::int64_t rows = tile_rows(q, s.q_len);
    float* memory = team.shared();
    const Tile queries = take_tile<Team>(memory, s.dim);
    const Tile keys = take_tile<Team>(memory, s.dim);
    const Tile values = take_tile<Team>(memory, s.dim);
    const Tile d_out = take_tile<Team>(memory, s.dim);
    const Tile sums = take_tile<Team>(memory, s.dim);
    const Tile p = take_tile<Team>(memory, kTile);
    const Tile g = take_tile<Team>(memory, kTile);
    const Positions places(team, memory);
    const std::int64_t row = b * s.q_len + q;
    load(team, queries, x.qkv + row * s.width + s.q_at(h), s.width, rows, s.dim);
    load(team, d_out, x.d_out + row * s.out_width + h * s.dim, s.out_width, rows, s.dim);
    places.load_queries(team, s, q, rows);
    zero(team, sums, s.dim);
    const std::int64_t of_source = (s.kv_len + kTile - 1) / kTile;
    for (std::int64_t tile = 0; tile < s.sources * of_source; ++tile) {
      const std::int64_t source = tile / of_source;
      const std::int64_t k = tile % of_source * kTile;
      const std::int64_t count = tile_rows(k, s.kv_len);
      if (!s.touches(q, rows, source, k, count)) continue;
      const T* const from = x.keys + s.key_at(source, b, k, h);
      load(team, keys, from, s.key_width, count, s.dim);
      load(team, values, from + s.dim, s.key_width, count, s.dim);
      places.load_keys(team, s, source, k, count);
      team.sync();
      dots(team, p, queries, keys, s.dim);
      dots(team, g, d_out, values, s.dim);
      team.sync();
      tile_gradients(team, s, x, p, g, b, h, q, places);
      team.sync();
      add_product(team, sums, nullptr, g, false, keys, s.dim);
      team.sync();
    }
    team.sync();
    store(team, sums, x.d_queries + row * s.d_width + s.d_q_at(h), s.d_width, rows, s.dim);
  }
};

/// Team (source, sequence, key-value head, tile of keys): d keys and d values, over the heads of
/// the group.
template <typename T>
struct FlashBackwardKeys {
  AttentionShape s;
  FlashBackwardInputs<T> x;
  std::int64_t tiles;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t at) const {
    const std::int64_t k = at % tiles * kTile;
    const std::int64_t first = at / tiles % s.kv_heads * s.group;
    const std::int64_t b = at / tiles / s.kv_heads % s.batch;
    const std::int64_t source = at / tiles / s.kv_heads / s.batch;
    const std::int64_t count = tile_rows(k, s.kv_len);
    float* memory = team.shared();
    const Tile queries = take_tile<Team>(memory, s.dim);
    const Tile keys = take_tile<Team>(memory, s.dim);
    const Tile values = take_tile<Team>(memory, s.dim);
    const Tile d_out = take_tile<Team>(memory, s.dim);
    const Tile d_keys = take_tile<Team>(memory, s.dim);
    const Tile d_values = take_tile<Team>(memory, s.dim);
    const Tile p = take_tile<Team>(memory, kTile);
    const Tile g = take_tile<Team>(memory, kTile);
    const Positions places(team, memory);
    const std::int64_t key_row = s.key_at(source, b, k, first);
    load(team, keys, x.keys + key_row, s.key_width, count, s.dim);
    load(team, values, x.keys + key_row + s.dim, s.key_width, count, s.dim);
    places.load_keys(team, s, source, k, count);
    zero(team, d_keys, s.dim);
    zero(team, d_values, s.dim);
    for (std::int64_t h = first; h < first + s.group; ++h) {
      for (std::int64_t q = 0; q < s.q_len; q += kTile) {
        const std::int64_t rows = tile_rows(q, s.q_len);
        if (!s.touches(q, rows, source, k, count)) continue;
        const std::int64_t row = b * s.q_len + q;
        load(team, queries, x.qkv + row * s.width + s.q_at(h), s.width, rows, s.dim);
        load(team, d_out, x.d_out + row * s.out_width + h * s.dim, s.out_width, rows, s.dim);
        places.load_queries(team, s, q, rows);
        team.sync();
        dots(team, p, queries, keys, s.dim);
        dots(team, g, d_out, values, s.dim);
        team.sync();
        tile_gradients(team, s, x, p, g, b, h, q, places);
        team.sync();
        add_product(team, d_values, nullptr, p, true, d_out, s.dim);
        add_product(team, d_keys, nullptr, g, true, queries, s.dim);
        team.sync();
      }
    }
    team.sync();
    store(team, d_keys, x.d_keys + key_row, s.key_width, count, s.dim);
    store(team, d_values, x.d_keys + key_row + s.dim, s.key_width, count, s.dim);
  }
};

}  // namespace foretrain::device
