// Activations with the bias of the linear before them. The mathematics is activations.cpp's.
#pragma once

#include <cmath>

#include "executor/cuda/device_view.h"

namespace foretrain::device {

struct Gelu {
  static constexpr float kSlope = 0.7978845608028654F;  ///< sqrt(2 / pi)
  static constexpr float kCube = 0.044715F;
  FT_DEVICE static float value(float x) {
    return 0.5F * x * (1.0F + std::tanh(kSlope * (x + kCube * x * x * x)));
  }
  FT_DEVICE static float slope(float x) {
    const float t = std::tanh(kSlope * (x + kCube * x * x * x));
    const float d = kSlope * (1.0F + 3.0F * kCube * x * x);
    return 0.5F * (1.0F + t) + 0.5F * x * (1.0F - t * t) * d;
  }
};
struct Relu {
  FT_DEVICE static float value(float x) { return x > 0 ? x : 0.0F; }
  FT_DEVICE static float slope(float x) { return x > 0 ? 1.0F : 0.0F; }
};
struct Relu2 {
  FT_DEVICE static float value(float x) { return x > 0 ? x * x : 0.0F; }
  FT_DEVICE static float slope(float x) { return x > 0 ? 2.0F * x : 0.0F; }
};

template <typename F, typename T>
struct Activate {
  const T* in;
  const T* bias;
  T* out;
  std::int64_t cols;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      const float v = to_float(in[r * cols + c]) + (bias != nullptr ? to_float(bias[c]) : 0.0F);
      out[r * cols + c] = stored<T>(F::value(v));
    }
  }
};

template <typename F, typename T>
struct ActivateBackward {
  const T* d_y;
  const T* in;
  const T* bias;
  T* out;
  std::int64_t cols;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      const std::int64_t i = r * cols + c;
      const float v = to_float(in[i]) + (bias != nullptr ? to_float(bias[c]) : 0.0F);
      out[i] = stored<T>(to_float(d_y[i]) * F::slope(v));
    }
  }
};

FT_DEVICE inline float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }

/// How gate and up lie in a row: side by side, or, where rows are of experts and come with a
/// probability each, in turn.
struct Gated {
  std::int64_t step, up;
  const float* probabilities;  ///< none: 1
  FT_DEVICE float scale(std::int64_t r) const {
    return probabilities != nullptr ? probabilities[r] : 1.0F;
  }
};
inline Gated gated(const Kernel& w, const DeviceOperands& x, std::size_t probabilities) {
  const bool of_experts = x.reads.size() > probabilities;
  return {of_experts ? 2 : 1, of_experts ? 1 : w.cols,
          of_experts ? x.in<float>(probabilities) : nullptr};
}

template <typename T>
struct Swiglu {
  const T* in;
  T* out;
  std::int64_t cols;
  Gated lies;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    const T* gate = in + 2 * r * cols;
    const float p = lies.scale(r);
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      const float g = to_float(gate[c * lies.step]);
      const float u = to_float(gate[c * lies.step + lies.up]);
      out[r * cols + c] = stored<T>(p * (g * sigmoid(g) * u));
    }
  }
};

template <typename T>
struct SwigluBackward {
  const T* d_y;
  const T* in;
  T* out;
  float* d_probabilities;  ///< where there are any
  std::int64_t cols;
  Gated lies;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    const float p = lies.scale(r);
    float d_p = 0;
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      const std::int64_t gate = 2 * r * cols + c * lies.step;
      const float g = to_float(in[gate]);
      const float u = to_float(in[gate + lies.up]);
      const float d = to_float(d_y[r * cols + c]);
      const float s = sigmoid(g);
      d_p += d * g * s * u;
      out[gate] = stored<T>(p * d * u * s * (1.0F + g * (1.0F - s)));
      out[gate + lies.up] = stored<T>(p * d * g * s);
    }
    if (d_probabilities == nullptr) return;
    d_p = team.sum(d_p);
    if (team.rank() == 0) d_probabilities[r] = d_p;
  }
};

template <typename F, typename L>
void run_pointwise(L& launcher, const Kernel& w, const DeviceOperands& x, bool backward) {
  with_type(x.type_out(0), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const std::size_t bias = backward ? 2 : 1;
    const T* const b = x.reads.size() > bias ? x.in<T>(bias) : nullptr;
    if (backward) {
      launcher.rows(w.rows, ActivateBackward<F, T>{x.in<T>(0), x.in<T>(1), b, x.out<T>(0), w.cols});
    } else {
      launcher.rows(w.rows, Activate<F, T>{x.in<T>(0), b, x.out<T>(0), w.cols});
    }
  });
}

template <typename L>
void run_activation(L& launcher, const Kernel& w, const DeviceOperands& x) {
  switch (w.kind) {
    case KernelKind::kGelu:
    case KernelKind::kGeluBackward:
      return run_pointwise<Gelu>(launcher, w, x, w.kind == KernelKind::kGeluBackward);
    case KernelKind::kRelu:
    case KernelKind::kReluBackward:
      return run_pointwise<Relu>(launcher, w, x, w.kind == KernelKind::kReluBackward);
    case KernelKind::kRelu2:
    case KernelKind::kRelu2Backward:
      return run_pointwise<Relu2>(launcher, w, x, w.kind == KernelKind::kRelu2Backward);
    default:
      return with_type(x.type_out(0), [&](auto tag) {
        using T = typename decltype(tag)::Type;
        if (w.kind == KernelKind::kSwiglu) {
          launcher.rows(w.rows, Swiglu<T>{x.in<T>(0), x.out<T>(0), w.cols, gated(w, x, 1)});
        } else {
          launcher.rows(w.rows, SwigluBackward<T>{x.in<T>(0), x.in<T>(1), x.out<T>(0),
                                                  x.writes.size() > 1 ? x.out<float>(1) : nullptr,
                                                  w.cols, gated(w, x, 2)});
        }
      });
  }
}

}  // namespace foretrain::device
