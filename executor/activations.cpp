// GELU (tanh form, Hendrycks and Gimpel 2016), ReLU, squared ReLU, SwiGLU, with the bias of the
// linear before them.
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

template <typename F, typename T>
void forward(const Kernel& w, const Operands<T>& x) {
  const T* bias = x.reads.size() > 1 ? x.in(1) : nullptr;
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* in = x.in(0) + r * w.cols;
    T* out = x.out(0) + r * w.cols;
    for (std::int64_t c = 0; c < w.cols; ++c) {
      out[c] = F::value(bias != nullptr ? in[c] + bias[c] : in[c]);
    }
  }
}

template <typename F, typename T>
void backward(const Kernel& w, const Operands<T>& x) {
  const T* bias = x.reads.size() > 2 ? x.in(2) : nullptr;
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* d_y = x.in(0) + r * w.cols;
    const T* in = x.in(1) + r * w.cols;
    T* out = x.out(0) + r * w.cols;
    for (std::int64_t c = 0; c < w.cols; ++c) {
      out[c] = d_y[c] * F::slope(bias != nullptr ? in[c] + bias[c] : in[c]);
    }
  }
}

template <typename T>
T sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

/// How gate and up lie in a row: side by side, or, where rows are of experts and come with a
/// probability each, in turn, so that a cut by columns takes pairs.
template <typename T>
struct Gated {
  explicit Gated(const Kernel& w, const Operands<T>& x, std::size_t probabilities)
      : of_experts(x.reads.size() > probabilities),
        step(of_experts ? 2 : 1),
        up(of_experts ? 1 : w.cols),
        probability(of_experts ? x.in(probabilities) : nullptr) {}
  T scale(std::int64_t row) const { return of_experts ? probability[row] : T(1); }
  bool of_experts;
  std::int64_t step, up;
  const T* probability;
};

/// reads: gate and up, [probabilities]; y = p silu(gate) up.
template <typename T>
void swiglu(const Kernel& w, const Operands<T>& x) {
  const Gated<T> lies(w, x, 1);
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* in = x.in(0) + 2 * r * w.cols;
    T* out = x.out(0) + r * w.cols;
    const T p = lies.scale(r);
    for (std::int64_t c = 0; c < w.cols; ++c) {
      const T gate = in[c * lies.step];
      out[c] = p * (gate * sigmoid(gate) * in[c * lies.step + lies.up]);
    }
  }
}

/// reads: d y, gate and up, [probabilities]; writes: d gate and d up, [d probabilities].
template <typename T>
void swiglu_backward(const Kernel& w, const Operands<T>& x) {
  const Gated<T> lies(w, x, 2);
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* d_y = x.in(0) + r * w.cols;
    const T* in = x.in(1) + 2 * r * w.cols;
    T* out = x.out(0) + 2 * r * w.cols;
    const T p = lies.scale(r);
    T d_p = 0;
    for (std::int64_t c = 0; c < w.cols; ++c) {
      const T gate = in[c * lies.step];
      const T up = in[c * lies.step + lies.up];
      const T s = sigmoid(gate);
      d_p += d_y[c] * gate * s * up;
      out[c * lies.step] = p * d_y[c] * up * s * (T(1) + gate * (T(1) - s));
      out[c * lies.step + lies.up] = p * d_y[c] * gate * s;
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
      return swiglu(w, x);
    default:
      return swiglu_backward(w, x);
  }
}

template void run_activation(const Kernel&, const Operands<float>&);
template void run_activation(const Kernel&, const Operands<double>&);

}  // namespace foretrain
