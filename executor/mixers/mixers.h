// Host kernels of the mixers beside attention and of what gates a layer's results. Operands stand
// in docs/reference/programs.md.
#pragma once

#include <cmath>

#include "executor/operands.h"

namespace foretrain {

/// Convolutions over tokens, gated norms, gates, rows of length one, heads repeated.
template <typename T>
void run_mixer(const Kernel& work, const OpContext& context, const Operands<T>& x);
/// Of kStateSpace and kDelta.
template <typename T>
void run_scan(const Scan& work, const Operands<T>& x);

/// One of run_scan's rules.
template <typename T>
void scan_states(const Scan& work, const Operands<T>& x);
template <typename T>
void scan_deltas(const Scan& work, const Operands<T>& x);

template <typename T>
T sigmoid_of(T x) {
  return T(1) / (T(1) + std::exp(-x));
}
template <typename T>
T silu(T x) {
  return x * sigmoid_of(x);
}
template <typename T>
T silu_slope(T x) {
  const T s = sigmoid_of(x);
  return s * (T(1) + x * (T(1) - s));
}
template <typename T>
T softplus(T x) {
  return std::max(x, T(0)) + std::log1p(std::exp(-std::abs(x)));
}

}  // namespace foretrain
