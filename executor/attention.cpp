// Attention by blocks of queries; the scores of one block are the only ones stored (but in the
// unfused form, which keeps them all).
//
// Keys come from one or several sources: the packed qkv of the queries, or, under context
// parallelism, keys and values of one member or of all. What a query sees follows from positions.
// A sink is one more logit of every row, of no key.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "executor/attention_place.h"
#include "executor/kernels.h"

namespace foretrain {
namespace {

constexpr std::int64_t kBlock = 64;  ///< queries

/// Keys and values of one part of every sequence; positions ascend.
template <typename T>
struct Source {
  const T* in = nullptr;
  T* gradient = nullptr;             ///< of the same shape
  std::int64_t width = 0;            ///< elements of a token
  std::int64_t head = 0, first = 0;  ///< elements of a key-value head; before its key
  std::vector<std::int64_t> positions;
};

/// A score s becomes c tanh(s / c), with the cap c; its slope is 1 - tanh(s / c)^2.
template <typename T>
void cap_scores(T cap, T* scores, T* slopes, std::int64_t count) {
  for (std::int64_t j = 0; j < count; ++j) {
    const T t = std::tanh(scores[j] / cap);
    scores[j] = cap * t;
    slopes[j] = T(1) - t * t;
  }
}

/// Of a block of queries: probabilities, those after dropout, gradients, slopes of capped scores.
template <typename T>
struct BlockOfScores {
  /// The probability that a row leaves to what is no key.
  T left(std::int64_t row, std::int64_t keys) const {
    T out = 1;
    for (std::int64_t j = 0; j < keys; ++j) out -= p[static_cast<std::size_t>(row * keys + j)];
    return out;
  }
  std::vector<T> p, dropped, dp, slopes;
};

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
        x_masked(work.causal || work.part == ContextPart::kMember ||
                 work.part == ContextPart::kAll),
        x_place(work, context) {
    place_queries(context);
    place_documents();
    find_sources(context);
    std::size_t keys = 0;
    for (const Source<T>& source : x_sources) keys += source.positions.size();
    const std::size_t block = static_cast<std::size_t>(kBlock) * keys;
    x_block.p.resize(block);
    x_block.dropped.resize(block);
    x_block.dp.resize(block);
    if (work.score.cap > 0) x_block.slopes.resize(block);
  }

  void forward() {
    each_block([this](const Range& r) { forward_block(r); });
  }

  void backward() {
    std::fill_n(x_x.out(0), x_x.writes[0].count, T(0));
    const bool apart = x_x.writes.size() > (x_w.score.sinks ? 2U : 1U);
    if (apart) std::fill_n(x_x.out(1), x_x.writes[1].count, T(0));
    each_block([this](const Range& r) { backward_block(r); });
  }

 private:
  /// The keys of one source that a block of queries sees some of; its columns of the scores.
  struct Seen {
    const Source<T>* source;
    std::int64_t k = 0, keys = 0, column = 0;
  };
  struct Range {
    std::int64_t batch = 0, head = 0, q = 0, rows = 0, keys = 0;
    std::vector<Seen> seen;
  };

  /// Positions of the part of a sequence that `member` holds.
  std::vector<std::int64_t> positions(const OpContext& context, std::int64_t member) const {
    const bool whole = x_w.part == ContextPart::kWhole || x_w.part == ContextPart::kHeads;
    const std::int64_t members = context.among_parts(x_w.parts_over).size;
    std::vector<std::int64_t> out;
    for (std::int64_t i = 0; i < x_w.q_len; ++i) {
      out.push_back(whole ? i
                          : position_in_part(i, member, members, context.batch.length,
                                             context.batch.documents));
    }
    return out;
  }

  void place_queries(const OpContext& context) {
    const std::int64_t own = context.among_parts(x_w.parts_over).index;
    x_queries = positions(context, own);
    const bool apart = x_w.backward && x_w.part == ContextPart::kMember;
    x_d_width = apart ? x_out_width : x_width;  // d q stands alone
  }

  void place_documents() {
    std::int64_t begin = 0;
    for (const std::int64_t length : x_w.documents) {
      x_documents.insert(x_documents.end(), static_cast<std::size_t>(length),
                         {begin, begin + length});
      begin += length;
    }
  }
  /// Positions of the document of which a position is one.
  std::pair<std::int64_t, std::int64_t> document(std::int64_t position) const {
    if (x_documents.empty()) return {0, x_place.length()};
    return x_documents[static_cast<std::size_t>(position)];
  }

  void find_sources(const OpContext& context) {
    const bool backward = x_w.backward;
    if (x_w.part != ContextPart::kMember && x_w.part != ContextPart::kAll) {
      x_sources.push_back({x_x.in(backward ? 1 : 0), backward ? x_x.out(0) : nullptr, x_width,
                           (x_group + 2) * x_w.head_dim, x_group * x_w.head_dim, x_queries});
      return;
    }
    const Place cut = context.among_parts(x_w.parts_over);
    const std::size_t at = backward ? 3 : 1;
    const std::int64_t width = 2 * x_w.kv_heads * x_w.head_dim;
    const std::int64_t part = x_w.batch * x_w.q_len * width;
    for (std::int64_t m = 0; m * part < x_x.reads[at].count; ++m) {
      const std::int64_t member = x_w.part == ContextPart::kAll
                                      ? m
                                      : (cut.index + cut.size - x_w.hops % cut.size) % cut.size;
      x_sources.push_back({x_x.in(at) + m * part, backward ? x_x.out(1) + m * part : nullptr, width,
                           2 * x_w.head_dim, 0, positions(context, member)});
    }
  }

  template <typename Visit>
  void each_block(Visit visit) {
    for (std::int64_t b = 0; b < x_w.batch; ++b) {
      for (std::int64_t h = 0; h < x_w.q_heads; ++h) {
        for (std::int64_t q = 0; q < x_w.q_len; q += kBlock) visit(range(b, h, q));
      }
    }
  }

  /// Where a query lies in a row of qkv: first in the group of its key and value.
  std::int64_t q_at(std::int64_t h) const {
    return (h / x_group * (x_group + 2) + h % x_group) * x_w.head_dim;
  }
  /// And where d q goes, which may stand alone.
  std::int64_t d_q_at(std::int64_t h) const {
    return x_d_width == x_width ? q_at(h) : h * x_w.head_dim;
  }
  /// Of a source, elements before the key of row k; the value follows the key.
  std::int64_t key_at(const Source<T>& s, const Range& r, std::int64_t k) const {
    const auto length = static_cast<std::int64_t>(s.positions.size());
    return (r.batch * length + k) * s.width + r.head / x_group * s.head + s.first;
  }

  std::int64_t query_position(const Range& r, std::int64_t i) const {
    return x_queries[static_cast<std::size_t>(r.q + i)];
  }

  Range range(std::int64_t b, std::int64_t h, std::int64_t q) const {
    Range r{b, h, q, std::min(kBlock, x_w.q_len - q), 0, {}};
    const std::int64_t first = query_position(r, 0);
    const std::int64_t last = query_position(r, r.rows - 1);
    for (const Source<T>& source : x_sources) {
      const auto begin = source.positions.begin();
      const std::int64_t behind = x_masked ? last + 1 : document(last).second;
      const auto end = std::lower_bound(begin, source.positions.end(), behind);
      std::int64_t least = document(first).first;
      if (x_w.window > 0) least = std::max(least, first - x_w.window + 1);
      const auto from = std::lower_bound(begin, end, least);
      if (from == end) continue;
      r.seen.push_back({&source, from - begin, end - from, r.keys});
      r.keys += end - from;
    }
    return r;
  }
  bool sees(std::int64_t query, std::int64_t key) const {
    if (x_masked && key > query) return false;
    if (const auto [begin, end] = document(query); key < begin || key >= end) return false;
    return x_w.window == 0 || key > query - x_w.window;
  }

  /// C = alpha op(A) op(B) + beta C on pieces of rows of `lda`, ... elements.
  void product(bool ta, bool tb, std::int64_t m, std::int64_t n, std::int64_t k, const T* a,
               std::int64_t lda, const T* b, std::int64_t ldb, T* c, std::int64_t ldc, T alpha,
               T beta) {
    multiply(Matrices<T>{ta, tb, m, n, k, a, b, c, lda, ldb, ldc, alpha, beta});
  }

  /// x_block.p = scores of the block, -infinity where masked.
  void scores(const T* qkv, const Range& r) {
    const T tilt = x_w.alibi ? x_place.slope<T>(r.head) : T(0);
    for (const Seen& seen : r.seen) {
      const Source<T>& s = *seen.source;
      product(false, true, r.rows, seen.keys, x_w.head_dim,
              qkv + (r.batch * x_w.q_len + r.q) * x_width + q_at(r.head), x_width,
              s.in + key_at(s, r, seen.k), s.width, x_block.p.data() + seen.column, r.keys, x_scale,
              T(0));
      for (std::int64_t i = 0; i < r.rows; ++i) {
        T* line = x_block.p.data() + i * r.keys + seen.column;
        if (x_w.score.cap > 0) {
          cap_scores(static_cast<T>(x_w.score.cap), line,
                     x_block.slopes.data() + (line - x_block.p.data()), seen.keys);
        }
        const std::int64_t query = query_position(r, i);
        for (std::int64_t j = 0; j < seen.keys; ++j) {
          const std::int64_t key = s.positions[static_cast<std::size_t>(seen.k + j)];
          if (!sees(query, key)) {
            line[j] = -std::numeric_limits<T>::infinity();
          } else if (x_w.alibi) {
            line[j] += tilt * static_cast<T>(key - query);
          }
        }
      }
    }
  }
  std::int64_t out_at(const Range& r) const {
    return (r.batch * x_w.q_len + r.q) * x_out_width + r.head * x_w.head_dim;
  }
  std::int64_t statistic(const Range& r, std::int64_t i) const {
    return (r.batch * x_w.q_heads + r.head) * x_w.q_len + r.q + i;
  }
  bool kept(const Range& r, std::int64_t i, std::int64_t key) const {
    return x_place.kept(r.batch, r.head, query_position(r, i), key);
  }
  T keep_scale() const { return static_cast<T>(1.0 / (1.0 - x_w.dropout)); }

  /// Calls visit(column of the scores, position of the key).
  template <typename Visit>
  static void each_key(const Range& r, Visit visit) {
    for (const Seen& seen : r.seen) {
      for (std::int64_t j = 0; j < seen.keys; ++j) {
        visit(seen.column + j, seen.source->positions[static_cast<std::size_t>(seen.k + j)]);
      }
    }
  }

  /// A query that sees none of these keys gives nothing: zeros, of log-sum-exp -infinity.
  void softmax(const Range& r, std::int64_t i) {
    T* line = x_block.p.data() + i * r.keys;
    T top =
        r.keys > 0 ? *std::max_element(line, line + r.keys) : -std::numeric_limits<T>::infinity();
    // The last operand that is read: of the head, the logit beside those of its keys.
    const T sink = x_w.score.sinks ? x_x.in(x_x.reads.size() - 1)[r.head] : T(0);
    if (x_w.score.sinks) top = std::max(top, sink);
    const bool none = std::isinf(top);
    T sum = x_w.score.sinks ? std::exp(sink - top) : T(0);
    for (std::int64_t j = 0; j < r.keys; ++j)
      sum += line[j] = none ? T(0) : std::exp(line[j] - top);
    for (std::int64_t j = 0; j < r.keys && !none; ++j) line[j] /= sum;
    if (!x_unfused) x_x.out(1)[statistic(r, i)] = none ? top : top + std::log(sum);
  }

  void forward_block(const Range& r) {
    scores(x_x.in(0), r);
    for (std::int64_t i = 0; i < r.rows; ++i) softmax(r, i);
    const T* p = drop(r);
    if (x_unfused) keep_scores(r);
    T* out = x_x.out(0) + out_at(r);
    if (r.seen.empty()) {
      for (std::int64_t i = 0; i < r.rows; ++i) {
        std::fill_n(out + i * x_out_width, x_w.head_dim, T(0));
      }
    }
    for (const Seen& seen : r.seen) {
      const Source<T>& s = *seen.source;
      product(false, false, r.rows, x_w.head_dim, seen.keys, p + seen.column, r.keys,
              s.in + key_at(s, r, seen.k) + x_w.head_dim, s.width, out, x_out_width, T(1),
              seen.column == 0 ? T(0) : T(1));
    }
  }

  /// Probabilities after dropout.
  const T* drop(const Range& r) {
    if (x_w.dropout <= 0) return x_block.p.data();
    for (std::int64_t i = 0; i < r.rows; ++i) {
      each_key(r, [&](std::int64_t column, std::int64_t key) {
        const auto at = static_cast<std::size_t>(i * r.keys + column);
        x_block.dropped[at] = kept(r, i, key) ? x_block.p[at] * keep_scale() : T(0);
      });
    }
    return x_block.dropped.data();
  }

  /// Unfused, of one source: the whole rows, zeros where nothing is seen.
  void keep_scores(const Range& r) {
    const std::int64_t k = r.seen[0].k;
    for (std::int64_t i = 0; i < r.rows; ++i) {
      const std::int64_t line = statistic(r, i) * x_w.kv_len;
      std::fill_n(x_x.out(1) + line, x_w.kv_len, T(0));
      std::copy_n(x_block.p.data() + i * r.keys, r.keys, x_x.out(1) + line + k);
      if (x_w.dropout <= 0) continue;
      std::fill_n(x_x.flags_out(2) + line, x_w.kv_len, std::uint8_t{0});
      std::fill_n(x_x.out(3) + line, x_w.kv_len, T(0));
      std::copy_n(x_block.dropped.data() + i * r.keys, r.keys, x_x.out(3) + line + k);
      for (std::int64_t j = 0; j < r.keys; ++j) {
        x_x.flags_out(2)[line + k + j] = kept(r, i, k + j) ? 1 : 0;
      }
    }
  }

  /// x_block.p and x_block.dropped as forward had them. Reads are d_out, qkv, out, [keys and values
  /// of other members], what forward kept.
  const T* probabilities(const Range& r) {
    if (x_unfused && x_w.score.cap > 0) scores(x_x.in(1), r);  // for their slopes
    if (x_unfused) {
      for (std::int64_t i = 0; i < r.rows; ++i) {
        const std::int64_t line = statistic(r, i) * x_w.kv_len + r.seen[0].k;
        std::copy_n(x_x.in(3) + line, r.keys, x_block.p.data() + i * r.keys);
        if (x_w.dropout <= 0) continue;
        std::copy_n(x_x.in(5) + line, r.keys, x_block.dropped.data() + i * r.keys);
      }
      return x_w.dropout > 0 ? x_block.dropped.data() : x_block.p.data();
    }
    scores(x_x.in(1), r);
    const T* log_sums = x_x.in(x_x.reads.size() - (x_w.score.sinks ? 2 : 1));
    for (std::int64_t i = 0; i < r.rows; ++i) {
      T* line = x_block.p.data() + i * r.keys;
      const T lse = log_sums[statistic(r, i)];
      for (std::int64_t j = 0; j < r.keys; ++j) line[j] = std::exp(line[j] - lse);
    }
    return drop(r);
  }

  bool kept_then(const Range& r, std::int64_t i, std::int64_t key) const {
    if (!x_unfused) return kept(r, i, key);
    return x_x.flags_in(4)[statistic(r, i) * x_w.kv_len + key] != 0;
  }

  /// x_block.dp: from the gradients of probabilities to those of scores.
  void score_gradients(const Range& r, const T* d_out) {
    const T* out = x_x.in(2) + out_at(r);
    for (std::int64_t i = 0; i < r.rows; ++i) {
      T dot = 0;
      for (std::int64_t c = 0; c < x_w.head_dim; ++c) {
        dot += d_out[i * x_out_width + c] * out[i * x_out_width + c];
      }
      if (x_w.score.sinks) {  // which takes its probability p to nowhere: -p dot
        T* of_token =
            x_x.out(x_x.writes.size() - 1) + (r.batch * x_w.q_len + r.q + i) * x_w.q_heads;
        of_token[r.head] = -x_block.left(i, r.keys) * dot;
      }
      each_key(r, [&](std::int64_t column, std::int64_t key) {
        const auto at = static_cast<std::size_t>(i * r.keys + column);
        T g = x_block.dp[at];
        if (x_w.dropout > 0) g = kept_then(r, i, key) ? g * keep_scale() : T(0);
        x_block.dp[at] = x_block.p[at] * (g - dot) * x_scale;
        if (x_w.score.cap > 0) x_block.dp[at] *= x_block.slopes[at];
      });
    }
  }

  void backward_block(const Range& r) {
    const T* q = x_x.in(1) + (r.batch * x_w.q_len + r.q) * x_width + q_at(r.head);
    const T* d_out = x_x.in(0) + out_at(r);
    const std::int64_t d = x_w.head_dim;
    const T* p = probabilities(r);
    for (const Seen& seen : r.seen) {
      const Source<T>& s = *seen.source;
      const std::int64_t key = key_at(s, r, seen.k);
      product(true, false, seen.keys, d, r.rows, p + seen.column, r.keys, d_out, x_out_width,
              s.gradient + key + d, s.width, T(1), T(1));
      product(false, true, r.rows, seen.keys, d, d_out, x_out_width, s.in + key + d, s.width,
              x_block.dp.data() + seen.column, r.keys, T(1), T(0));
    }
    score_gradients(r, d_out);
    T* d_q = x_x.out(0) + (r.batch * x_w.q_len + r.q) * x_d_width + d_q_at(r.head);
    for (const Seen& seen : r.seen) {
      const Source<T>& s = *seen.source;
      const std::int64_t key = key_at(s, r, seen.k);
      product(false, false, r.rows, d, seen.keys, x_block.dp.data() + seen.column, r.keys,
              s.in + key, s.width, d_q, x_d_width, T(1), T(1));
      product(true, false, seen.keys, d, r.rows, x_block.dp.data() + seen.column, r.keys, q,
              x_width, s.gradient + key, s.width, T(1), T(1));
    }
  }

  const Attention& x_w;
  const Operands<T>& x_x;
  std::int64_t x_group, x_width, x_out_width, x_d_width = 0;
  T x_scale;
  bool x_unfused, x_masked;
  AttentionPlace x_place;
  std::vector<std::int64_t> x_queries;
  std::vector<std::pair<std::int64_t, std::int64_t>> x_documents;  ///< by position
  std::vector<Source<T>> x_sources;
  BlockOfScores<T> x_block;
};

}  // namespace

template <typename T>
void run_attention(const Attention& work, const OpContext& context, const Operands<T>& x) {
  if (work.step != AttentionStep::kWhole) return run_attention_step(work, context, x);
  AttentionRun<T> run(work, context, x);
  work.backward ? run.backward() : run.forward();
}

template void run_attention(const Attention&, const OpContext&, const Operands<float>&);
template void run_attention(const Attention&, const OpContext&, const Operands<double>&);

}  // namespace foretrain
