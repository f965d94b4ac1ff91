// Dropout and residual additions, biases, casts, the norm of the gradients and the update. The
// mathematics is elementwise.cpp's.
#pragma once

#include <cmath>

#include "executor/cuda/column_sums.h"
#include "executor/cuda/token_places.h"

namespace foretrain::device {

/// Draws of one dropout: see elementwise.cpp.
struct Mask {
  std::uint64_t key = 0, threshold = 0;
  TokenPlaces places;
  std::int64_t cols = 0, part = 0, parts = 1;  ///< of the columns
  float scale = 1;
  /// Of the first column of a row.
  FT_DEVICE std::int64_t first(std::int64_t r) const {
    return (places.token(r) * parts + part) * cols;
  }
  FT_DEVICE bool keeps(std::int64_t i) const { return bits_at(key, i) >= threshold; }
};
inline Mask mask_of(const Kernel& w, const OpContext& context) {
  Mask out;
  out.key = context.key(context.op->name);
  out.threshold = threshold_of(w.value);
  out.places = token_places(context, w.split_over, w.rows);
  out.places.first += w.first_row;
  out.cols = w.cols;
  out.part = context.place(w.cols_split_over).index;
  out.parts = context.place(w.cols_split_over).size;
  out.scale = static_cast<float>(1.0 / (1.0 - w.value));
  return out;
}

template <typename T>
struct ResidualAdd {
  const T* residual;
  const T* branch;
  const T* bias;
  T* out;
  std::uint8_t* flags;
  std::int64_t cols;
  Mask mask;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    const std::int64_t first = mask.first(r);
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      const std::int64_t i = r * cols + c;
      float v = to_float(branch[i]) + (bias != nullptr ? to_float(bias[c]) : 0.0F);
      if (flags != nullptr) {
        const bool kept = mask.keeps(first + c);
        flags[i] = kept ? 1 : 0;
        v = kept ? v * mask.scale : 0.0F;
      }
      out[i] = stored<T>(to_float(residual[i]) + v);
    }
  }
};

template <typename T>
struct Dropout {
  const T* in;
  T* out;
  std::uint8_t* flags;
  Mask mask;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    const std::int64_t first = mask.first(r);
    for (std::int64_t c = team.rank(); c < mask.cols; c += team.size()) {
      const std::int64_t i = r * mask.cols + c;
      const bool kept = mask.keeps(first + c);
      flags[i] = kept ? 1 : 0;
      out[i] = stored<T>(kept ? to_float(in[i]) * mask.scale : 0.0F);
    }
  }
};

template <typename T>
struct DropoutBackward {
  const T* in;
  const std::uint8_t* flags;
  T* out;
  float scale;
  FT_DEVICE void operator()(std::int64_t i) const {
    out[i] = stored<T>(flags[i] != 0 ? to_float(in[i]) * scale : 0.0F);
  }
};

template <typename A, typename B, typename C>
struct Add {
  const A* a;
  const B* b;
  C* out;
  FT_DEVICE void operator()(std::int64_t i) const {
    out[i] = stored<C>(to_float(a[i]) + to_float(b[i]));
  }
};

template <typename T>
struct BiasAdd {
  const T* in;
  const T* bias;
  T* out;
  std::int64_t cols;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    for (std::int64_t c = team.rank(); c < cols; c += team.size()) {
      out[r * cols + c] = stored<T>(to_float(in[r * cols + c]) + to_float(bias[c]));
    }
  }
};

template <typename A, typename B>
struct Cast {
  const A* in;
  B* out;
  FT_DEVICE void operator()(std::int64_t i) const { out[i] = stored<B>(to_float(in[i])); }
};

/// What brings the norm of the gradients down to a limit.
struct ClipScale {
  const float* square = nullptr;  ///< none: 1
  float limit = 0;
  FT_DEVICE float value() const {
    if (square == nullptr) return 1.0F;
    const float norm = std::sqrt(*square);
    return norm > limit ? limit / norm : 1.0F;
  }
};

template <typename T>
struct Clip {
  const T* in;
  T* out;
  ClipScale scale;
  FT_DEVICE void operator()(std::int64_t i) const {
    out[i] = stored<T>(to_float(in[i]) * scale.value());
  }
};

/// Part `r` of a sum of squares.
inline constexpr std::int64_t kNormPart = 1 << 16;
template <typename T>
struct SquaresPart {
  const T* in;
  std::int64_t count;
  double weight;
  double* parts;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t r) const {
    const std::int64_t end = (r + 1) * kNormPart < count ? (r + 1) * kNormPart : count;
    double sum = 0;
    for (std::int64_t i = r * kNormPart + team.rank(); i < end; i += team.size()) {
      const double v = to_float(in[i]);
      sum += v * v;
    }
    sum = team.sum(sum);
    if (team.rank() == 0) parts[r] = weight * sum;
  }
};
struct SumParts {
  const double* parts;
  std::int64_t count;
  float* out;
  template <typename Team>
  FT_DEVICE void operator()(Team& team, std::int64_t) const {
    double sum = 0;
    for (std::int64_t i = team.rank(); i < count; i += team.size()) sum += parts[i];
    sum = team.sum(sum);
    if (team.rank() == 0) *out += static_cast<float>(sum);
  }
};

template <typename G, typename W>
struct Adam {
  const G* gradient;
  W* weights;
  float* momentum;
  float* variance;
  float* master;  ///< none: the weights themselves
  float beta1, beta2, rate, correct, decay, epsilon;
  ClipScale clip;
  FT_DEVICE void operator()(std::int64_t i) const {
    const float g = to_float(gradient[i]) * clip.value();
    const float m = beta1 * momentum[i] + (1.0F - beta1) * g;
    const float v = beta2 * variance[i] + (1.0F - beta2) * g * g;
    const float before = master != nullptr ? master[i] : to_float(weights[i]);
    const float after = decay * before - rate * m / (std::sqrt(v * correct) + epsilon);
    momentum[i] = m;
    variance[i] = v;
    if (master != nullptr) master[i] = after;
    weights[i] = stored<W>(after);
  }
};

template <typename L>
void squared_norm(L& launcher, const Kernel& w, const OpContext& context, const DeviceOperands& x) {
  const Operand& view = x.reads[0];
  const Buffer& buffer = *view.buffer;
  struct Interval {  // of the view
    std::int64_t begin, end;
    double weight;
  };
  std::vector<Interval> intervals = {{0, w.cols, 1.0}};
  for (const Buffer::Part& run : context.parts_of(view, w.cols)) {
    for (const Replica& r : buffer.replicas) {
      const auto copies = static_cast<double>(context.place(r.group).size);
      const Interval cut{run.at + std::max(r.begin, run.first) - run.first,
                         run.at + std::min(r.end, run.first + run.count) - run.first,
                         1 / copies - 1};
      if (copies > 1 && cut.begin < cut.end) intervals.push_back(cut);
    }
  }
  const auto parts_of = [](const Interval& i) {
    return (i.end - i.begin + kNormPart - 1) / kNormPart;
  };
  std::int64_t parts = 0;
  for (const Interval& i : intervals) parts += parts_of(i);
  auto* const sums = static_cast<double*>(launcher.scratch(static_cast<std::size_t>(parts) * 8));
  std::int64_t done = 0;
  with_type(x.type_in(0), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    for (const Interval& i : intervals) {
      launcher.rows(parts_of(i),
                    SquaresPart<T>{x.in<T>(0) + i.begin, i.end - i.begin, i.weight, sums + done});
      done += parts_of(i);
    }
  });
  launcher.rows(1, SumParts{sums, parts, x.out<float>(0)});
}

template <typename L>
void adam(L& launcher, const Kernel& w, const OpContext& context, const DeviceOperands& x) {
  const Training& t = context.training;
  const auto step = static_cast<double>(context.step + 1);
  with_type(x.type_out(0), [&](auto weights) {
    with_type(x.type_in(0), [&](auto gradients) {
      using W = typename decltype(weights)::Type;
      using G = typename decltype(gradients)::Type;
      Adam<G, W> f{};
      f.gradient = x.in<G>(0);
      f.weights = x.out<W>(0);
      f.momentum = x.out<float>(1);
      f.variance = x.out<float>(2);
      f.master = x.writes.size() > 3 ? x.out<float>(3) : nullptr;
      f.beta1 = static_cast<float>(t.beta1);
      f.beta2 = static_cast<float>(t.beta2);
      f.rate = static_cast<float>(t.learning_rate / (1 - std::pow(t.beta1, step)));
      f.correct = static_cast<float>(1 / (1 - std::pow(t.beta2, step)));
      f.decay = static_cast<float>(1 - t.learning_rate * t.weight_decay);
      f.epsilon = static_cast<float>(t.epsilon);
      if (w.value > 0) f.clip = {x.in<float>(x.reads.size() - 1), static_cast<float>(w.value)};
      launcher.elements(w.cols, f);
    });
  });
}

template <typename L>
void bias_gradient(L& launcher, const Kernel& w, const DeviceOperands& x) {
  with_types(x.type_in(0), x.type_out(0), [&](auto work, auto gradients) {
    using T = typename decltype(work)::Type;
    using G = typename decltype(gradients)::Type;
    sum_columns(launcher, w.rows, w.cols, PlainColumn<T>{x.in<T>(0), w.cols}, x.out<G>(0));
  });
}

template <typename L>
void run_masked(L& launcher, const Kernel& w, const OpContext& context, const DeviceOperands& x) {
  with_type(x.type_out(0), [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const Mask mask = mask_of(w, context);
    if (w.kind == KernelKind::kResidualAdd) {
      launcher.rows(w.rows, ResidualAdd<T>{x.in<T>(0), x.in<T>(1),
                                           x.reads.size() > 2 ? x.in<T>(2) : nullptr, x.out<T>(0),
                                           x.writes.size() > 1 ? x.out<std::uint8_t>(1) : nullptr,
                                           w.cols, mask});
    } else if (w.kind == KernelKind::kDropout) {
      launcher.rows(w.rows, Dropout<T>{x.in<T>(0), x.out<T>(0), x.out<std::uint8_t>(1), mask});
    } else if (w.kind == KernelKind::kResidualAddBackward) {
      launcher.elements(w.rows * w.cols, DropoutBackward<T>{x.in<T>(0), x.in<std::uint8_t>(1),
                                                            x.out<T>(0), mask.scale});
    } else {
      launcher.rows(w.rows, BiasAdd<T>{x.in<T>(0), x.in<T>(1), x.out<T>(0), w.cols});
    }
  });
}

template <typename L>
void run_add(L& launcher, const Kernel& w, const DeviceOperands& x) {
  with_type(x.type_in(0), [&](auto a) {
    with_type(x.type_in(1), [&](auto b) {
      with_type(x.type_out(0), [&](auto c) {
        using A = typename decltype(a)::Type;
        using B = typename decltype(b)::Type;
        using C = typename decltype(c)::Type;
        launcher.elements(w.rows * w.cols, Add<A, B, C>{x.in<A>(0), x.in<B>(1), x.out<C>(0)});
        // Of more than two terms the others are added one after the other.
        for (std::size_t i = 2; i < x.reads.size(); ++i) {
          launcher.elements(w.rows * w.cols, Add<C, B, C>{x.out<C>(0), x.in<B>(i), x.out<C>(0)});
        }
      });
    });
  });
}

template <typename L>
void run_update(L& launcher, const Kernel& w, const OpContext& context, const DeviceOperands& x) {
  switch (w.kind) {
    case KernelKind::kAdd:
      return run_add(launcher, w, x);
    case KernelKind::kBiasGrad:
      return bias_gradient(launcher, w, x);
    case KernelKind::kFill:
      return launcher.clear(x.writes[0]);
    case KernelKind::kCast:
      return with_type(x.type_in(0), [&](auto from) {
        with_type(x.type_out(0), [&](auto to) {
          using A = typename decltype(from)::Type;
          using B = typename decltype(to)::Type;
          launcher.elements(x.writes[0].count, Cast<A, B>{x.in<A>(0), x.out<B>(0)});
        });
      });
    case KernelKind::kScale:
      return with_type(x.type_out(0), [&](auto tag) {
        using T = typename decltype(tag)::Type;
        launcher.elements(
            w.cols,
            Clip<T>{x.in<T>(0), x.out<T>(0), {x.in<float>(1), static_cast<float>(w.value)}});
      });
    case KernelKind::kSquaredNorm:
      return squared_norm(launcher, w, context, x);
    case KernelKind::kAdam:
      return adam(launcher, w, context, x);
    default:
      return run_masked(launcher, w, context, x);
  }
}

}  // namespace foretrain::device
