// Mamba-2's state space on the host, token after token. The gradient takes states from the start
// of each chunk, which a first pass leaves, and repeats the chunk.
#include <algorithm>
#include <cmath>
#include <vector>

#include "executor/mixers/mixers.h"

namespace foretrain {
namespace {

/// Gradients of what the heads of a scan read; those of parameters are added to.
template <typename T>
struct StateGradients {
  T* channels = nullptr;
  T* steps = nullptr;
  T* decay = nullptr;
  T* skip = nullptr;
  T* bias = nullptr;
};

/// One head over one sequence: h_t = f_t h_(t-1) + dt_t x_t B_t^T, y_t = h_t C_t + D x_t, with dt =
/// softplus(step + bias) and f = exp(a dt), a = -exp(decay).
template <typename T>
class StateHead {
 public:
  /// `first`: the operand of the packed x, B and C, which the others follow.
  StateHead(const Scan& w, const Operands<T>& x, std::size_t first, std::int64_t sequence,
            std::int64_t head)
      : x_w(w),
        x_width((w.heads * w.head_dim) + (2 * w.groups * w.state)),
        x_begin(sequence * w.length),
        x_head(head),
        x_group(head / (w.heads / w.groups)),
        x_channels(x.in(first)),
        x_steps(x.in(first + 1)),
        x_rate(-std::exp(x.in(first + 2)[head])),
        x_skip(x.in(first + 3)[head]),
        x_bias(x.in(first + 4)[head]) {}

  std::vector<T> zero_state() const {
    return std::vector<T>(static_cast<std::size_t>(x_w.head_dim * x_w.state), T(0));
  }

  /// From the state before token t to that behind it.
  void advance(std::int64_t t, std::vector<T>& state) const {
    const T dt = step(t);
    const T factor = std::exp(x_rate * dt);
    const T* value = x_channels + x_at(t);
    const T* b = x_channels + b_at(t);
    for (std::int64_t p = 0; p < x_w.head_dim; ++p) {
      T* row = state.data() + p * x_w.state;
      for (std::int64_t n = 0; n < x_w.state; ++n) row[n] = factor * row[n] + dt * value[p] * b[n];
    }
  }

  /// y of token t, behind which the state is `state`.
  void write(std::int64_t t, const std::vector<T>& state, T* y) const {
    const T* c = x_channels + b_at(t) + x_w.groups * x_w.state;
    for (std::int64_t p = 0; p < x_w.head_dim; ++p) {
      T sum = x_skip * x_channels[x_at(t) + p];
      for (std::int64_t n = 0; n < x_w.state; ++n) {
        sum += state[static_cast<std::size_t>(p * x_w.state + n)] * c[n];
      }
      y[y_at(t) + p] = sum;
    }
  }

  /// Of token t with the states before and behind it: adds to `gradients`, takes `d_state` from the
  /// gradient of the state behind it, but for y's part, to that of the state before it.
  void go_back(std::int64_t t, const std::vector<T>& before, const std::vector<T>& behind,
               const T* d_y, const StateGradients<T>& to, std::vector<T>& d_state) const {
    const T dt = step(t);
    const T factor = std::exp(x_rate * dt);
    const T* value = x_channels + x_at(t);
    const T* b = x_channels + b_at(t);
    const T* c = b + x_w.groups * x_w.state;
    T* d_b = to.channels + b_at(t);
    T* d_c = d_b + x_w.groups * x_w.state;
    T d_factor = 0;
    T d_dt = 0;
    for (std::int64_t p = 0; p < x_w.head_dim; ++p) {
      const T d = d_y[y_at(t) + p];
      T by_b = 0;
      for (std::int64_t n = 0; n < x_w.state; ++n) {
        const auto i = static_cast<std::size_t>(p * x_w.state + n);
        d_c[n] += d * behind[i];
        d_state[i] += d * c[n];
        d_factor += d_state[i] * before[i];
        by_b += d_state[i] * b[n];
        d_b[n] += d_state[i] * dt * value[p];
        d_state[i] *= factor;
      }
      d_dt += by_b * value[p];
      to.channels[x_at(t) + p] += x_skip * d + dt * by_b;
      to.skip[x_head] += d * value[p];
    }
    d_dt += d_factor * factor * x_rate;
    to.decay[x_head] += d_factor * factor * dt * x_rate;  // d a = f dt d f, d decay = a d a
    const T d_step = d_dt * sigmoid_of(raw_step(t));
    to.steps[(x_begin + t) * x_w.heads + x_head] = d_step;
    to.bias[x_head] += d_step;
  }

 private:
  T raw_step(std::int64_t t) const { return x_steps[(x_begin + t) * x_w.heads + x_head] + x_bias; }
  T step(std::int64_t t) const { return softplus(raw_step(t)); }
  std::int64_t y_at(std::int64_t t) const {
    return ((x_begin + t) * x_w.heads + x_head) * x_w.head_dim;
  }
  std::int64_t x_at(std::int64_t t) const {
    return (x_begin + t) * x_width + x_head * x_w.head_dim;
  }
  std::int64_t b_at(std::int64_t t) const {
    return (x_begin + t) * x_width + x_w.heads * x_w.head_dim + x_group * x_w.state;
  }

  const Scan& x_w;
  std::int64_t x_width, x_begin, x_head, x_group;
  const T* x_channels;
  const T* x_steps;
  T x_rate, x_skip, x_bias;
};

template <typename T>
void head_backward(const Scan& w, const StateHead<T>& head, const T* d_y,
                   const StateGradients<T>& to) {
  std::vector<std::vector<T>> starts;  // of chunks
  std::vector<T> state = head.zero_state();
  for (std::int64_t t = 0; t < w.length; ++t) {
    if (t % w.chunk == 0) starts.push_back(state);
    head.advance(t, state);
  }
  std::vector<T> d_state = head.zero_state();
  std::vector<std::vector<T>> states;  // before each token of a chunk, and behind the last
  for (std::int64_t chunk = std::ssize(starts) - 1; chunk >= 0; --chunk) {
    const std::int64_t begin = chunk * w.chunk;
    const std::int64_t end = std::min(begin + w.chunk, w.length);
    states = {starts[static_cast<std::size_t>(chunk)]};
    for (std::int64_t t = begin; t < end; ++t) {
      states.push_back(states.back());
      head.advance(t, states.back());
    }
    for (std::int64_t t = end - 1; t >= begin; --t) {
      const auto i = static_cast<std::size_t>(t - begin);
      head.go_back(t, states[i], states[i + 1], d_y, to, d_state);
    }
  }
}

/// Gradients that the op only writes start from zero.
template <typename T>
void start_from_zero(const Operands<T>& x, std::size_t parameters_from) {
  for (std::size_t i = 0; i < x.writes.size(); ++i) {
    if (i < parameters_from || !x.reads_back(i)) std::fill_n(x.out(i), x.writes[i].count, T(0));
  }
}

}  // namespace

template <typename T>
void scan_states(const Scan& w, const Operands<T>& x) {
  if (w.backward) start_from_zero(x, 2);
  for (std::int64_t s = 0; s < w.batch; ++s) {
    for (std::int64_t h = 0; h < w.heads; ++h) {
      const StateHead<T> head(w, x, w.backward ? 1 : 0, s, h);
      if (w.backward) {
        head_backward(w, head, x.in(0), {x.out(0), x.out(1), x.out(2), x.out(3), x.out(4)});
        continue;
      }
      std::vector<T> state = head.zero_state();
      for (std::int64_t t = 0; t < w.length; ++t) {
        head.advance(t, state);
        head.write(t, state, x.out(0));
      }
    }
  }
}

template void scan_states(const Scan&, const Operands<float>&);
template void scan_states(const Scan&, const Operands<double>&);

}  // namespace foretrain
