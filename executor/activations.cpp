// GELU (tanh form, Hendrycks and Gimpel 2016), ReLU, squared ReLU, with the bias of the linear
// before them; SwiGLU and GeGLU.
#include <cmath>

#include "executor/kernels.h"

namespace foretrain {
namespace {

constexpr double kGeluSlope = 0.7978845608028654;  ///< sqrt(2 / pi)
constexpr double kGeluCube = 0.044715;

struct Gelu {
  template <typename T>
  static T value(T x) {
    const T inner = static_cast<T>(kGeluSlope) * (x + static_cast<T>(kGeluCube) * x * x * x);
    return T(0.5) * x * (T(1) + std::tanh(inner));
  }
  template <typename T>
  static T slope(T x) {
    const T inner = static_cast<T>(kGeluSlope) * (x + static_cast<T>(kGeluCube) * x * x * x);
    const T t = std::tanh(inner);
    const T d = static_cast<T>(kGeluSlope) * (T(1) + T(3) * static_cast<T>(kGeluCube) * x * x);
    return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * d;
  }
};
struct Relu {
  template <typename T>
  static T value(T x) {
    return x > T(0) ? x : T(0);
  }
  template <typename T>
  static T slope(T x) {
    return x > T(0) ? T(1) : T(0);
  }
};
struct Relu2 {
  template <typename T>
  static T value(T x) {
    return x > T(0) ? x * x : T(0);
  }
  template <typename T>
  static T slope(T x) {
    return x > T(0) ? T(2) * x : T(0);
  }
};

/// What stands behind the input: the bias of the linear, or where rows are of experts a probability
/// each, which is no parameter.
template <typename T>
struct Beside {
  Beside(const Kernel& w, const Operands<T>& x, std::size_t at) {
    if (x.reads.size() <= at) return;
    const Operand& operand = x.reads[at];
    const bool of_rows =
        operand.buffer->kind == BufferKind::kActivations && operand.count == w.rows;
    (of_rows ? probability : bias) = x.in(at);
  }
  T bias_of(std::int64_t c) const { return bias != nullptr ? bias[c] : T(0); }
  T scale(std::int64_t r) const { return probability != nullptr ? probability[r] : T(1); }
  const T* bias = nullptr;
  const T* probability = nullptr;
};

template <typename F, typename T>
void forward(const Kernel& w, const Operands<T>& x) {
  const Beside<T> beside(w, x, 1);
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* in = x.in(0) + r * w.cols;
    T* out = x.out(0) + r * w.cols;
    const T p = beside.scale(r);
    for (std::int64_t c = 0; c < w.cols; ++c) out[c] = p * F::value(in[c] + beside.bias_of(c));
  }
}

template <typename F, typename T>
void backward(const Kernel& w, const Operands<T>& x) {
  const Beside<T> beside(w, x, 2);
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* d_y = x.in(0) + r * w.cols;
    const T* in = x.in(1) + r * w.cols;
    T* out = x.out(0) + r * w.cols;
    const T p = beside.scale(r);
    T d_p = 0;
    for (std::int64_t c = 0; c < w.cols; ++c) {
      d_p += d_y[c] * F::value(in[c] + beside.bias_of(c));
      out[c] = p * d_y[c] * F::slope(in[c] + beside.bias_of(c));
    }
    if (beside.probability != nullptr) x.out(1)[r] = d_p;
  }
}

template <typename T>
T sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

struct Silu {
  template <typename T>
  static T value(T x) {
    return x * sigmoid(x);
  }
  template <typename T>
  static T slope(T x) {
    const T s = sigmoid(x);
    return s * (T(1) + x * (T(1) - s));
  }
};

/// How gate and up lie: side by side in a row, or in arrays of their own, or, where rows are of
/// experts and come with a probability each, in turn, so that a cut by columns takes pairs.
template <typename T>
struct Gated {
  explicit Gated(const Kernel& w, const Operands<T>& x, std::size_t second)
      : apart(x.reads.size() > second && x.reads[second].count == w.rows * w.cols &&
              x.reads[second - 1].count == w.rows * w.cols),
        of_experts(!apart && x.reads.size() > second),
        row(apart ? w.cols : 2 * w.cols),
        step(of_experts ? 2 : 1),
        up(of_experts ? 1 : w.cols),
        probability(of_experts ? x.in(second) : nullptr) {}
  T scale(std::int64_t r) const { return of_experts ? probability[r] : T(1); }
  bool apart, of_experts;
  std::int64_t row, step, up;
  const T* probability;
};

/// reads: gate and up (as one or as two), [probabilities]; y = p f(gate) up.
template <typename F, typename T>
void gated(const Kernel& w, const Operands<T>& x) {
  const Gated<T> lies(w, x, 1);
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* gates = x.in(0) + r * lies.row;
    const T* ups = lies.apart ? x.in(1) + r * lies.row : gates + lies.up;
    T* out = x.out(0) + r * w.cols;
    const T p = lies.scale(r);
    for (std::int64_t c = 0; c < w.cols; ++c) {
      out[c] = p * (F::value(gates[c * lies.step]) * ups[c * lies.step]);
    }
  }
}

/// reads: d y, gate and up, [probabilities]; writes: d gate and d up, [d probabilities].
template <typename F, typename T>
void gated_backward(const Kernel& w, const Operands<T>& x) {
  const Gated<T> lies(w, x, 2);
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* d_y = x.in(0) + r * w.cols;
    const T* gates = x.in(1) + r * lies.row;
    const T* ups = lies.apart ? x.in(2) + r * lies.row : gates + lies.up;
    T* d_gates = x.out(0) + r * lies.row;
    T* d_ups = lies.apart ? x.out(1) + r * lies.row : d_gates + lies.up;
    const T p = lies.scale(r);
    T d_p = 0;
    for (std::int64_t c = 0; c < w.cols; ++c) {
      const T gate = gates[c * lies.step];
      const T up = ups[c * lies.step];
      d_p += d_y[c] * F::value(gate) * up;
      d_gates[c * lies.step] = p * d_y[c] * up * F::slope(gate);
      d_ups[c * lies.step] = p * d_y[c] * F::value(gate);
    }
    if (lies.of_experts) x.out(1)[r] = d_p;
  }
}

}  // namespace

template <typename T>
void run_activation(const Kernel& w, const Operands<T>& x) {
  switch (w.kind) {
    case KernelKind::kGelu:
      return forward<Gelu>(w, x);
    case KernelKind::kGeluBackward:
      return backward<Gelu>(w, x);
    case KernelKind::kRelu:
      return forward<Relu>(w, x);
    case KernelKind::kReluBackward:
      return backward<Relu>(w, x);
    case KernelKind::kRelu2:
      return forward<Relu2>(w, x);
    case KernelKind::kRelu2Backward:
      return backward<Relu2>(w, x);
    case KernelKind::kSwiglu:
      return gated<Silu>(w, x);
    case KernelKind::kSwigluBackward:
      return gated_backward<Silu>(w, x);
    case KernelKind::kGeglu:
      return gated<Gelu>(w, x);
    default:
      return gated_backward<Gelu>(w, x);
  }
}

template void run_activation(const Kernel&, const Operands<float>&);
template void run_activation(const Kernel&, const Operands<double>&);

}  // namespace foretrain
