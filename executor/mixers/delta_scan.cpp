// The gated delta rule on the host, chunk after chunk, as flash-linear-attention has it (Yang et
// al., arXiv 2412.06464, section 3.3).
//
// Of the tokens of a chunk, with G_i the sum of g up to token i and rows of matrices for tokens:
//     L_ij = b_i (k_i k_j) exp(G_i - G_j) for j < i, A = (1 + L)^-1
//     N = A (b v) - A (b exp(G) k) S                         what each token adds to the state
//     y = c (exp(G) q S + P N), P_ij = (q_i k_j) exp(G_i - G_j) for j <= i, c = 1 / sqrt(state)
//     S' = exp(G_last) S + K^T N, K_i = exp(G_last - G_i) k_i
// where S, [keys, values], is the state before the chunk. The gradient goes these ways back.
#include <algorithm>
#include <cmath>
#include <vector>

#include "executor/kernels.h"
#include "executor/mixers/mixers.h"

namespace foretrain {
namespace {

template <typename T>
struct ScanTable {
  ScanTable() = default;
  ScanTable(std::int64_t height, std::int64_t width)
      : rows(height), cols(width), values(static_cast<std::size_t>(height * width), T(0)) {}
  T& at(std::int64_t r, std::int64_t c) { return values[static_cast<std::size_t>(r * cols + c)]; }
  T at(std::int64_t r, std::int64_t c) const {
    return values[static_cast<std::size_t>(r * cols + c)];
  }
  T* row(std::int64_t r) { return values.data() + r * cols; }
  const T* row(std::int64_t r) const { return values.data() + r * cols; }

  std::int64_t rows = 0, cols = 0;
  std::vector<T> values;
};

/// c += scale op(a) op(b).
template <typename T>
void add_product(const ScanTable<T>& a, bool transpose_a, const ScanTable<T>& b, bool transpose_b,
                 ScanTable<T>& c, T scale = T(1)) {
  const std::int64_t depth = transpose_a ? a.rows : a.cols;
  multiply(Matrices<T>{transpose_a, transpose_b, c.rows, c.cols, depth, a.values.data(),
                       b.values.data(), c.values.data(), a.cols, b.cols, c.cols, scale, T(1)});
}

template <typename T>
T inner(const T* a, const T* b, std::int64_t count) {
  T sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

template <typename T>
void add_scaled(T* to, const T* from, T scale, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] += scale * from[i];
}

/// The tokens of one head in one chunk, as they are read.
template <typename T>
struct DeltaTokens {
  std::int64_t begin = 0, tokens = 0;  ///< the first among the rank's
  ScanTable<T> q, k, v, a;             ///< a: A
  std::vector<T> strengths, rates, sums;

  T b(std::int64_t i) const { return strengths[static_cast<std::size_t>(i)]; }
  T sum(std::int64_t i) const { return sums[static_cast<std::size_t>(i)]; }
  T last() const { return sums.back(); }
  /// exp(G_i - G_j).
  T between(std::int64_t i, std::int64_t j) const { return std::exp(sum(i) - sum(j)); }
};

/// And with what forward and backward both work out.
template <typename T>
struct DeltaChunk : DeltaTokens<T> {
  ScanTable<T> keys_in, values_in;  ///< b exp(G) k and b v
  ScanTable<T> from_keys, added;    ///< A of the former; N
  ScanTable<T> last_keys, pairs;    ///< K and P
};

/// exp(G) q.
template <typename T>
ScanTable<T> decayed_queries(const DeltaChunk<T>& c) {
  ScanTable<T> out(c.tokens, c.q.cols);
  for (std::int64_t i = 0; i < c.tokens; ++i) {
    add_scaled(out.row(i), c.q.row(i), std::exp(c.sum(i)), c.q.cols);
  }
  return out;
}

/// Where a scan's operands lie; `first`: that of the queries and keys.
template <typename T>
class DeltaRule {
 public:
  DeltaRule(const Scan& w, const Operands<T>& x)
      : x_w(w),
        x_x(x),
        x_first(w.backward ? 1 : 0),
        x_scale(T(1) / std::sqrt(static_cast<T>(w.state))) {}

  void run() {
    for (std::int64_t s = 0; s < x_w.batch; ++s) {
      for (std::int64_t h = 0; h < x_w.heads; ++h) {
        x_head = h;
        x_w.backward ? backward(s) : forward(s);
      }
    }
  }

 private:
  std::int64_t chunks() const { return (x_w.length + x_w.chunk - 1) / x_w.chunk; }
  std::int64_t key_at(std::int64_t token, bool key) const {
    return ((2 * token + (key ? 1 : 0)) * x_w.heads + x_head) * x_w.state;
  }
  std::int64_t value_at(std::int64_t token) const {
    return (token * x_w.heads + x_head) * x_w.head_dim;
  }
  std::int64_t number_at(std::int64_t token) const { return token * x_w.heads + x_head; }
  T decay_input(std::int64_t token) const {
    const T bias = x_x.in(x_w.backward ? 8 : 5)[x_head];
    return x_x.in(x_first + 2)[number_at(token)] + bias;
  }
  T rate() const { return -std::exp(x_x.in(x_first + 4)[x_head]); }

  DeltaChunk<T> read(std::int64_t sequence, std::int64_t number) const {
    DeltaChunk<T> out;
    out.begin = sequence * x_w.length + number * x_w.chunk;
    out.tokens = std::min(x_w.chunk, x_w.length - number * x_w.chunk);
    out.q = out.k = ScanTable<T>(out.tokens, x_w.state);
    out.v = ScanTable<T>(out.tokens, x_w.head_dim);
    T sum = 0;
    for (std::int64_t i = 0; i < out.tokens; ++i) {
      const std::int64_t token = out.begin + i;
      std::copy_n(x_x.in(x_first) + key_at(token, false), x_w.state, out.q.row(i));
      std::copy_n(x_x.in(x_first) + key_at(token, true), x_w.state, out.k.row(i));
      std::copy_n(x_x.in(x_first + 1) + value_at(token), x_w.head_dim, out.v.row(i));
      out.strengths.push_back(sigmoid_of(x_x.in(x_first + 3)[number_at(token)]));
      out.rates.push_back(rate() * softplus(decay_input(token)));
      sum += out.rates.back();
      out.sums.push_back(x_w.backward ? x_x.in(6)[number_at(token)] : sum);
    }
    return out;
  }

  /// Row i of (1 + L)^-1 is that of 1 less L's product with the rows above.
  void invert(DeltaChunk<T>& c) const {
    c.a = ScanTable<T>(c.tokens, c.tokens);
    for (std::int64_t i = 0; i < c.tokens; ++i) {
      c.a.at(i, i) = T(1);
      for (std::int64_t j = 0; j < i; ++j) {
        const T l = c.b(i) * inner(c.k.row(i), c.k.row(j), x_w.state) * c.between(i, j);
        add_scaled(c.a.row(i), c.a.row(j), -l, i);
      }
    }
  }

  void read_inverse(DeltaChunk<T>& c) const {
    c.a = ScanTable<T>(c.tokens, c.tokens);
    for (std::int64_t i = 0; i < c.tokens; ++i) {
      std::copy_n(x_x.in(7) + number_at(c.begin + i) * x_w.chunk, c.tokens, c.a.row(i));
    }
  }

  /// From the inverse and the state on.
  void prepare(DeltaChunk<T>& c, const ScanTable<T>& state) const {
    c.keys_in = c.last_keys = ScanTable<T>(c.tokens, x_w.state);
    c.values_in = c.added = ScanTable<T>(c.tokens, x_w.head_dim);
    c.pairs = ScanTable<T>(c.tokens, c.tokens);
    for (std::int64_t i = 0; i < c.tokens; ++i) {
      add_scaled(c.keys_in.row(i), c.k.row(i), c.b(i) * std::exp(c.sum(i)), x_w.state);
      add_scaled(c.last_keys.row(i), c.k.row(i), std::exp(c.last() - c.sum(i)), x_w.state);
      add_scaled(c.values_in.row(i), c.v.row(i), c.b(i), x_w.head_dim);
      for (std::int64_t j = 0; j <= i; ++j) {
        c.pairs.at(i, j) = inner(c.q.row(i), c.k.row(j), x_w.state) * c.between(i, j);
      }
    }
    c.from_keys = ScanTable<T>(c.tokens, x_w.state);
    add_product(c.a, false, c.keys_in, false, c.from_keys);
    add_product(c.a, false, c.values_in, false, c.added);
    add_product(c.from_keys, false, state, false, c.added, T(-1));
  }

  ScanTable<T> next(const DeltaChunk<T>& c, const ScanTable<T>& state) const {
    ScanTable<T> out(state.rows, state.cols);
    add_scaled(out.row(0), state.row(0), std::exp(c.last()), state.rows * state.cols);
    add_product(c.last_keys, true, c.added, false, out);
    return out;
  }

  void forward(std::int64_t sequence) {
    ScanTable<T> state(x_w.state, x_w.head_dim);
    for (std::int64_t n = 0; n < chunks(); ++n) {
      DeltaChunk<T> c = read(sequence, n);
      invert(c);
      prepare(c, state);
      ScanTable<T> y(c.tokens, x_w.head_dim);
      add_product(decayed_queries(c), false, state, false, y, x_scale);
      add_product(c.pairs, false, c.added, false, y, x_scale);
      for (std::int64_t i = 0; i < c.tokens; ++i) {
        const std::int64_t token = c.begin + i;
        std::copy_n(y.row(i), x_w.head_dim, x_x.out(0) + value_at(token));
        x_x.out(1)[number_at(token)] = c.sum(i);
        T* inverse = x_x.out(2) + number_at(token) * x_w.chunk;
        std::fill_n(inverse, x_w.chunk, T(0));
        std::copy_n(c.a.row(i), c.tokens, inverse);
      }
      state = next(c, state);
    }
  }

  /// Gradients of what a chunk reads.
  struct Gradients {
    Gradients(const DeltaChunk<T>& c, std::int64_t state, std::int64_t width)
        : q(c.tokens, state),
          k(c.tokens, state),
          v(c.tokens, width),
          strengths(static_cast<std::size_t>(c.tokens)),
          sums(strengths.size()) {}
    void add(std::vector<T>& to, std::int64_t i, T value) {
      to[static_cast<std::size_t>(i)] += value;
    }
    ScanTable<T> q, k, v;
    std::vector<T> strengths, sums;
  };

  void backward(std::int64_t sequence) {
    std::vector<ScanTable<T>> states = {ScanTable<T>(x_w.state, x_w.head_dim)};
    std::vector<DeltaChunk<T>> all;
    for (std::int64_t n = 0; n < chunks(); ++n) {
      all.push_back(read(sequence, n));
      read_inverse(all.back());
      prepare(all.back(), states.back());
      states.push_back(next(all.back(), states.back()));
    }
    ScanTable<T> d_state(x_w.state, x_w.head_dim);
    for (std::int64_t n = chunks() - 1; n >= 0; --n) {
      const DeltaChunk<T>& c = all[static_cast<std::size_t>(n)];
      Gradients to(c, x_w.state, x_w.head_dim);
      d_state = chunk_backward(c, states[static_cast<std::size_t>(n)], d_state, to);
      write(c, to);
    }
  }

  /// Returns the gradient of the state before the chunk, from that of the state behind it.
  ScanTable<T> chunk_backward(const DeltaChunk<T>& c, const ScanTable<T>& state,
                              const ScanTable<T>& d_next, Gradients& to) const {
    ScanTable<T> d_y(c.tokens, x_w.head_dim);
    for (std::int64_t i = 0; i < c.tokens; ++i) {
      add_scaled(d_y.row(i), x_x.in(0) + value_at(c.begin + i), x_scale, x_w.head_dim);
    }
    ScanTable<T> d_added(c.tokens, x_w.head_dim);
    add_product(c.pairs, true, d_y, false, d_added);
    add_product(c.last_keys, false, d_next, false, d_added);
    ScanTable<T> d_before(state.rows, state.cols);
    const T whole = std::exp(c.last());
    add_scaled(d_before.row(0), d_next.row(0), whole, state.rows * state.cols);
    add_product(decayed_queries(c), true, d_y, false, d_before);
    add_product(c.from_keys, true, d_added, false, d_before, T(-1));
    to.add(to.sums, c.tokens - 1,
           whole * inner(d_next.row(0), state.row(0), state.rows * state.cols));
    queries_backward(c, state, d_y, to);
    last_keys_backward(c, d_next, to);
    added_backward(c, state, d_added, to);
    return d_before;
  }

  /// By way of exp(G) q S and of P.
  void queries_backward(const DeltaChunk<T>& c, const ScanTable<T>& state, const ScanTable<T>& d_y,
                        Gradients& to) const {
    ScanTable<T> d_decayed(c.tokens, x_w.state);
    add_product(d_y, false, state, true, d_decayed);
    ScanTable<T> d_pairs(c.tokens, c.tokens);
    add_product(d_y, false, c.added, true, d_pairs);
    for (std::int64_t i = 0; i < c.tokens; ++i) {
      const T decay = std::exp(c.sum(i));
      add_scaled(to.q.row(i), d_decayed.row(i), decay, x_w.state);
      to.add(to.sums, i, decay * inner(d_decayed.row(i), c.q.row(i), x_w.state));
      for (std::int64_t j = 0; j <= i; ++j) {
        const T d = d_pairs.at(i, j) * c.between(i, j);
        add_scaled(to.q.row(i), c.k.row(j), d, x_w.state);
        add_scaled(to.k.row(j), c.q.row(i), d, x_w.state);
        const T of_pair = d_pairs.at(i, j) * c.pairs.at(i, j);
        to.add(to.sums, i, of_pair);
        to.add(to.sums, j, -of_pair);
      }
    }
  }

  /// By way of K.
  void last_keys_backward(const DeltaChunk<T>& c, const ScanTable<T>& d_next, Gradients& to) const {
    ScanTable<T> d_last(c.tokens, x_w.state);
    add_product(c.added, false, d_next, true, d_last);
    for (std::int64_t i = 0; i < c.tokens; ++i) {
      add_scaled(to.k.row(i), d_last.row(i), std::exp(c.last() - c.sum(i)), x_w.state);
      const T of_sum = inner(d_last.row(i), c.last_keys.row(i), x_w.state);
      to.add(to.sums, c.tokens - 1, of_sum);
      to.add(to.sums, i, -of_sum);
    }
  }

  /// By way of N: of A, b v and b exp(G) k.
  void added_backward(const DeltaChunk<T>& c, const ScanTable<T>& state,
                      const ScanTable<T>& d_added, Gradients& to) const {
    ScanTable<T> d_from_keys(c.tokens, x_w.state);
    add_product(d_added, false, state, true, d_from_keys, T(-1));
    ScanTable<T> d_inverse(c.tokens, c.tokens);
    add_product(d_added, false, c.values_in, true, d_inverse);
    add_product(d_from_keys, false, c.keys_in, true, d_inverse);
    ScanTable<T> d_values(c.tokens, x_w.head_dim);
    ScanTable<T> d_keys(c.tokens, x_w.state);
    add_product(c.a, true, d_added, false, d_values);
    add_product(c.a, true, d_from_keys, false, d_keys);
    for (std::int64_t i = 0; i < c.tokens; ++i) {
      const T decay = std::exp(c.sum(i));
      add_scaled(to.v.row(i), d_values.row(i), c.b(i), x_w.head_dim);
      add_scaled(to.k.row(i), d_keys.row(i), c.b(i) * decay, x_w.state);
      const T by_keys = decay * inner(d_keys.row(i), c.k.row(i), x_w.state);
      to.add(to.strengths, i, inner(d_values.row(i), c.v.row(i), x_w.head_dim) + by_keys);
      to.add(to.sums, i, c.b(i) * by_keys);
    }
    // Of the inverse of 1 + L: d L = -A^T d A A^T.
    ScanTable<T> half(c.tokens, c.tokens);
    ScanTable<T> d_lower(c.tokens, c.tokens);
    add_product(c.a, true, d_inverse, false, half);
    add_product(half, false, c.a, true, d_lower, T(-1));
    for (std::int64_t i = 0; i < c.tokens; ++i) {
      for (std::int64_t j = 0; j < i; ++j) {
        const T d = d_lower.at(i, j) * c.between(i, j);
        const T product = inner(c.k.row(i), c.k.row(j), x_w.state);
        add_scaled(to.k.row(i), c.k.row(j), d * c.b(i), x_w.state);
        add_scaled(to.k.row(j), c.k.row(i), d * c.b(i), x_w.state);
        to.add(to.strengths, i, d * product);
        to.add(to.sums, i, d * c.b(i) * product);
        to.add(to.sums, j, -d * c.b(i) * product);
      }
    }
  }

  /// Decays and strengths from their sums and sigmoids; gradients of parameters are added to.
  void write(const DeltaChunk<T>& c, const Gradients& to) const {
    T d_rate = 0;  // of a token's g, which all sums from it on have in them
    for (std::int64_t i = c.tokens - 1; i >= 0; --i) {
      const std::int64_t token = c.begin + i;
      const auto at = static_cast<std::size_t>(i);
      std::copy_n(to.q.row(i), x_w.state, x_x.out(0) + key_at(token, false));
      std::copy_n(to.k.row(i), x_w.state, x_x.out(0) + key_at(token, true));
      std::copy_n(to.v.row(i), x_w.head_dim, x_x.out(1) + value_at(token));
      d_rate += to.sums[at];
      const T d_input = d_rate * rate() * sigmoid_of(decay_input(token));
      x_x.out(2)[number_at(token)] = d_input;
      x_x.out(3)[number_at(token)] = to.strengths[at] * c.b(i) * (T(1) - c.b(i));
      x_x.out(4)[x_head] += d_rate * c.rates[at];
      x_x.out(5)[x_head] += d_input;
    }
  }

  const Scan& x_w;
  const Operands<T>& x_x;
  std::size_t x_first;
  T x_scale;
  std::int64_t x_head = 0;
};

}  // namespace

template <typename T>
void scan_deltas(const Scan& w, const Operands<T>& x) {
  if (w.backward) {
    for (const std::size_t parameter : {4U, 5U}) {
      if (x.reads_back(parameter)) continue;
      std::fill_n(x.out(parameter), x.writes[parameter].count, T(0));
    }
  }
  DeltaRule<T>(w, x).run();
}

template void scan_deltas(const Scan&, const Operands<float>&);
template void scan_deltas(const Scan&, const Operands<double>&);

}  // namespace foretrain
