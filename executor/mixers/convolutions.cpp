// Causal convolutions over the tokens of a sequence, channel by channel: with silu behind them
// (Mamba, gated delta nets), or between two gates (LFM2).
#include "executor/mixers/convolutions.h"

#include <algorithm>

namespace foretrain {
namespace {

/// The weights of a channel meet the last tokens: y_t = bias + sum over u of w_u x_(t - taps + 1 +
/// u), tokens before the sequence being zero.
template <typename T>
struct Taps {
  const T* weights = nullptr;  ///< [channels, taps]
  const T* bias = nullptr;     ///< [channels]; may be none
  std::int64_t taps = 0, channels = 0, length = 0;

  /// Of channel c at row r of x [rows, channels].
  T at(const T* x, std::int64_t r, std::int64_t c) const {
    const std::int64_t seen = std::min(taps, r % length + 1);
    T sum = bias != nullptr ? bias[c] : T(0);
    for (std::int64_t back = 0; back < seen; ++back) {
      sum += weights[c * taps + taps - 1 - back] * x[(r - back) * channels + c];
    }
    return sum;
  }
  /// Adds what the gradient `d` of that gives to those of x and of the weights.
  void backward(T d, const T* x, std::int64_t r, std::int64_t c, T* d_x, T* d_weights) const {
    const std::int64_t seen = std::min(taps, r % length + 1);
    for (std::int64_t back = 0; back < seen; ++back) {
      const std::int64_t tap = c * taps + taps - 1 - back;
      const std::int64_t from = (r - back) * channels + c;
      d_x[from] += d * weights[tap];
      d_weights[tap] += d * x[from];
    }
  }
};

/// Where column c of row r lies: in one array, or the first columns in one and the rest in another.
std::int64_t place_in(const Kernel& w, std::int64_t r, std::int64_t c) {
  const std::int64_t first = w.head_dim;
  if (first == 0) return r * w.cols + c;
  return c < first ? r * first + c : w.rows * first + r * (w.cols - first) + c - first;
}

template <typename T>
Taps<T> taps_of(const Kernel& w, const OpContext& context, const Operands<T>& x, std::size_t at) {
  Taps<T> out;
  out.weights = x.in(at);
  out.taps = x.reads[at].count / w.cols;
  out.channels = w.cols;
  out.length = context.length();
  return out;
}

}  // namespace

template <typename T>
void causal_conv(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  Taps<T> taps = taps_of(w, context, x, 1);
  if (x.reads.size() > 2) taps.bias = x.in(2);
  for (std::int64_t r = 0; r < w.rows; ++r) {
    for (std::int64_t c = 0; c < w.cols; ++c) {
      x.out(0)[place_in(w, r, c)] = silu(taps.at(x.in(0), r, c));
    }
  }
}

/// With a bias its gradient is written third and it is read behind the weights.
template <typename T>
void causal_conv_backward(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  Taps<T> taps = taps_of(w, context, x, 2);
  T* d_bias = x.writes.size() > 2 ? x.out(2) : nullptr;
  if (d_bias != nullptr) taps.bias = x.in(3);
  std::fill_n(x.out(0), w.rows * w.cols, T(0));
  for (std::int64_t r = 0; r < w.rows; ++r) {
    for (std::int64_t c = 0; c < w.cols; ++c) {
      const T d = x.in(0)[place_in(w, r, c)] * silu_slope(taps.at(x.in(1), r, c));
      if (d_bias != nullptr) d_bias[c] += d;
      taps.backward(d, x.in(1), r, c, x.out(0), x.out(1));
    }
  }
}

/// A row of packed inputs is b, c and x, each of all channels.
template <typename T>
void gated_conv(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  Taps<T> taps = taps_of(w, context, x, 1);
  if (x.reads.size() > 2) taps.bias = x.in(2);
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* packed = x.in(0) + 3 * r * w.cols;
    for (std::int64_t c = 0; c < w.cols; ++c) {
      x.out(1)[r * w.cols + c] = packed[c] * packed[2 * w.cols + c];
    }
    for (std::int64_t c = 0; c < w.cols; ++c) {
      const T convolved = taps.at(x.out(1), r, c);
      x.out(2)[r * w.cols + c] = convolved;
      x.out(0)[r * w.cols + c] = packed[w.cols + c] * convolved;
    }
  }
}

template <typename T>
void gated_conv_backward(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  const Taps<T> taps = taps_of(w, context, x, 4);
  T* d_bias = x.writes.size() > 2 ? x.out(2) : nullptr;
  std::vector<T> d_product(static_cast<std::size_t>(w.rows * w.cols));
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* gates = x.in(1) + (3 * r + 1) * w.cols;
    T* d_gates = x.out(0) + (3 * r + 1) * w.cols;
    for (std::int64_t c = 0; c < w.cols; ++c) {
      const T d_out = x.in(0)[r * w.cols + c];
      const T d = d_out * gates[c];
      d_gates[c] = d_out * x.in(3)[r * w.cols + c];
      if (d_bias != nullptr) d_bias[c] += d;
      taps.backward(d, x.in(2), r, c, d_product.data(), x.out(1));
    }
  }
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* packed = x.in(1) + 3 * r * w.cols;
    T* d_packed = x.out(0) + 3 * r * w.cols;
    const T* d = d_product.data() + r * w.cols;
    for (std::int64_t c = 0; c < w.cols; ++c) {
      d_packed[c] = d[c] * packed[2 * w.cols + c];
      d_packed[2 * w.cols + c] = d[c] * packed[c];
    }
  }
}

template void causal_conv(const Kernel&, const OpContext&, const Operands<float>&);
template void causal_conv(const Kernel&, const OpContext&, const Operands<double>&);
template void causal_conv_backward(const Kernel&, const OpContext&, const Operands<float>&);
template void causal_conv_backward(const Kernel&, const OpContext&, const Operands<double>&);
template void gated_conv(const Kernel&, const OpContext&, const Operands<float>&);
template void gated_conv(const Kernel&, const OpContext&, const Operands<double>&);
template void gated_conv_backward(const Kernel&, const OpContext&, const Operands<float>&);
template void gated_conv_backward(const Kernel&, const OpContext&, const Operands<double>&);

}  // namespace foretrain
