// What gates and norms the results of mixers, of attention and of shared experts.
#include <algorithm>
#include <cmath>

#include "executor/mixers/convolutions.h"
#include "executor/mixers/mixers.h"
#include "sim/base/check.h"

namespace foretrain {
namespace {

constexpr double kUnitEpsilon = 1e-6;  ///< of flash-linear-attention's l2norm

/// Row r of a gated norm. With the gate before the norm, the norm reads u = y silu(z). With the
/// gate behind the norm, the norm reads y, and g = silu(z) multiplies the result. The weights are
/// those of one row for all, or of the rows of a token one after another.
template <typename T>
struct GatedRow {
  GatedRow(const Kernel& w, const T* results, const T* gates, const T* weights,
           std::int64_t of_weights, std::int64_t r)
      : behind(w.value > 0),
        y(results + r * w.cols),
        z(gates + r * w.cols),
        weight(weights + r * w.cols % of_weights) {}
  T normed(std::int64_t c) const { return behind ? y[c] : y[c] * silu(z[c]); }
  T gate(std::int64_t c) const { return behind ? silu(z[c]) : T(1); }

  bool behind;
  const T* y;
  const T* z;
  const T* weight;
};

template <typename T>
void gated_norm(const Kernel& w, const Operands<T>& x) {
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const GatedRow<T> row(w, x.in(0), x.in(1), x.in(2), x.reads[2].count, r);
    double square = 0;
    for (std::int64_t c = 0; c < w.cols; ++c) {
      square += static_cast<double>(row.normed(c)) * row.normed(c);
    }
    const double mean = square / static_cast<double>(w.cols);
    const T scale = static_cast<T>(1 / std::sqrt(mean + kNormEpsilon));
    x.out(1)[r] = scale;
    for (std::int64_t c = 0; c < w.cols; ++c) {
      x.out(0)[r * w.cols + c] = row.normed(c) * scale * row.weight[c] * row.gate(c);
    }
  }
}

/// With u^ = u scale and g = d_out weight gate: d_u = scale (g - u^ mean(g u^)).
template <typename T>
void gated_norm_backward(const Kernel& w, const Operands<T>& x) {
  const std::int64_t weights = x.reads[4].count;
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const GatedRow<T> row(w, x.in(1), x.in(2), x.in(4), weights, r);
    const T* d_out = x.in(0) + r * w.cols;
    const T scale = x.in(3)[r];
    T* d_weight = x.out(2) + r * w.cols % weights;
    double dot = 0;
    for (std::int64_t c = 0; c < w.cols; ++c) {
      dot += static_cast<double>(d_out[c] * row.weight[c] * row.gate(c)) * row.normed(c) * scale;
    }
    const T mean = static_cast<T>(dot / static_cast<double>(w.cols));
    for (std::int64_t c = 0; c < w.cols; ++c) {
      const T hat = row.normed(c) * scale;
      const T d = scale * (d_out[c] * row.weight[c] * row.gate(c) - hat * mean);
      const T slope = silu_slope(row.z[c]);
      d_weight[c] += d_out[c] * row.gate(c) * hat;
      x.out(0)[r * w.cols + c] = row.behind ? d : d * silu(row.z[c]);
      x.out(1)[r * w.cols + c] =
          slope * (row.behind ? d_out[c] * row.weight[c] * hat : d * row.y[c]);
    }
  }
}

/// Elements that one gate multiplies: one, those of a head, those of a row.
template <typename T>
std::int64_t width_of(const Operands<T>& x, std::size_t rows, std::size_t gates) {
  return x.reads[rows].count / x.reads[gates].count;
}

/// reads: y, gates; writes: y sigmoid(gate).
template <typename T>
void sigmoid_gates(const Operands<T>& x) {
  const std::int64_t width = width_of(x, 0, 1);
  for (std::int64_t i = 0; i < x.reads[0].count; ++i) {
    x.out(0)[i] = x.in(0)[i] * sigmoid_of(x.in(1)[i / width]);
  }
}

/// reads: d out, y, gates; writes: d y, d gates.
template <typename T>
void sigmoid_gates_backward(const Operands<T>& x) {
  const std::int64_t width = width_of(x, 1, 2);
  for (std::int64_t gate = 0; gate < x.reads[2].count; ++gate) {
    const T s = sigmoid_of(x.in(2)[gate]);
    T dot = 0;
    for (std::int64_t i = gate * width; i < (gate + 1) * width; ++i) {
      dot += x.in(0)[i] * x.in(1)[i];
      x.out(0)[i] = x.in(0)[i] * s;
    }
    x.out(1)[gate] = dot * s * (T(1) - s);
  }
}

template <typename T>
void unit_rows(const Kernel& w, const Operands<T>& x) {
  for (std::int64_t r = 0; r < w.rows; ++r) {
    double square = 0;
    for (std::int64_t i = r * w.cols; i < (r + 1) * w.cols; ++i) {
      square += static_cast<double>(x.in(0)[i]) * x.in(0)[i];
    }
    const T length = static_cast<T>(std::sqrt(square + kUnitEpsilon));
    x.out(1)[r] = length;
    for (std::int64_t i = r * w.cols; i < (r + 1) * w.cols; ++i) x.out(0)[i] = x.in(0)[i] / length;
  }
}

/// Of y = x / length: d x = (d y - y (y d y)) / length.
template <typename T>
void unit_rows_backward(const Kernel& w, const Operands<T>& x) {
  for (std::int64_t r = 0; r < w.rows; ++r) {
    T dot = 0;
    for (std::int64_t i = r * w.cols; i < (r + 1) * w.cols; ++i) dot += x.in(0)[i] * x.in(1)[i];
    for (std::int64_t i = r * w.cols; i < (r + 1) * w.cols; ++i) {
      x.out(0)[i] = (x.in(0)[i] - x.in(1)[i] * dot) / x.in(2)[r];
    }
  }
}

/// Every head of `head_dim` elements as often as there are more of them in what is written.
template <typename T>
void repeat_heads(const Kernel& w, const Operands<T>& x) {
  const std::int64_t times = x.writes[0].count / x.reads[0].count;
  for (std::int64_t head = 0; head < x.writes[0].count / w.head_dim; ++head) {
    std::copy_n(x.in(0) + head / times * w.head_dim, w.head_dim, x.out(0) + head * w.head_dim);
  }
}

template <typename T>
void repeat_heads_backward(const Kernel& w, const Operands<T>& x) {
  const std::int64_t times = x.reads[0].count / x.writes[0].count;
  std::fill_n(x.out(0), x.writes[0].count, T(0));
  for (std::int64_t head = 0; head < x.reads[0].count / w.head_dim; ++head) {
    T* sum = x.out(0) + head / times * w.head_dim;
    for (std::int64_t i = 0; i < w.head_dim; ++i) sum[i] += x.in(0)[head * w.head_dim + i];
  }
}

}  // namespace

template <typename T>
void run_mixer(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  switch (w.kind) {
    case KernelKind::kCausalConv:
      return causal_conv(w, context, x);
    case KernelKind::kCausalConvBackward:
      return causal_conv_backward(w, context, x);
    case KernelKind::kGatedConv:
      return gated_conv(w, context, x);
    case KernelKind::kGatedConvBackward:
      return gated_conv_backward(w, context, x);
    case KernelKind::kGatedNorm:
      return gated_norm(w, x);
    case KernelKind::kGatedNormBackward:
      return gated_norm_backward(w, x);
    case KernelKind::kGateRows:
    case KernelKind::kSigmoidGate:
      return sigmoid_gates(x);
    case KernelKind::kGateRowsBackward:
    case KernelKind::kSigmoidGateBackward:
      return sigmoid_gates_backward(x);
    case KernelKind::kUnitRows:
      return unit_rows(w, x);
    case KernelKind::kUnitRowsBackward:
      return unit_rows_backward(w, x);
    case KernelKind::kRepeatHeads:
      return repeat_heads(w, x);
    case KernelKind::kRepeatHeadsBackward:
      return repeat_heads_backward(w, x);
    default:
      FT_CHECK(false, "check_executable refuses this kernel");
  }
}

template <typename T>
void run_scan(const Scan& work, const Operands<T>& x) {
  work.rule == ScanRule::kStateSpace ? scan_states(work, x) : scan_deltas(work, x);
}

template void run_mixer(const Kernel&, const OpContext&, const Operands<float>&);
template void run_mixer(const Kernel&, const OpContext&, const Operands<double>&);
template void run_scan(const Scan&, const Operands<float>&);
template void run_scan(const Scan&, const Operands<double>&);

}  // namespace foretrain
