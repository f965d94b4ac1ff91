// Dropout and residual additions, biases, fills, and the update of the weights.
#include <algorithm>
#include <cmath>

#include "executor/kernels.h"
#include "executor/mixers/mixers.h"

namespace foretrain {
namespace {

/// Draws of one dropout: a function of the op's name, its layer and the element's place in the
/// global batch.
class Mask {
 public:
  Mask(const Kernel& w, const OpContext& context)
      : x_key(context.key(context.op->name)),
        x_work(w),
        x_context(context),
        x_columns(context.place(w.cols_split_over)) {}
  /// Of row r, as a function of the column.
  auto row(std::int64_t r) const {
    const std::int64_t row = x_work.first_row + r;
    const std::int64_t token = x_context.global_token(x_work.split_over, x_work.rows, row);
    const std::int64_t first = (token * x_columns.size + x_columns.index) * x_work.cols;
    return [this, first](std::int64_t c) { return uniform_at(x_key, first + c) >= x_work.value; };
  }

 private:
  std::uint64_t x_key;
  const Kernel& x_work;
  const OpContext& x_context;
  Place x_columns;
};

template <typename T>
T keep_scale(const Kernel& w) {
  return static_cast<T>(1.0 / (1.0 - w.value));
}

template <typename T>
void residual_add(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  const T* bias = x.reads.size() > 2 ? x.in(2) : nullptr;
  const bool drops = x.writes.size() > 1;
  const Mask mask(w, context);
  const T scale = keep_scale<T>(w);
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const auto keeps = mask.row(r);
    for (std::int64_t c = 0; c < w.cols; ++c) {
      const std::int64_t i = r * w.cols + c;
      T branch = x.in(1)[i] + (bias != nullptr ? bias[c] : T(0));
      if (drops) {
        const bool kept = keeps(c);
        x.flags_out(1)[i] = kept ? 1 : 0;
        branch = kept ? branch * scale : T(0);
      }
      x.out(0)[i] = x.in(0)[i] + branch;
    }
  }
}

template <typename T>
void dropout(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  const Mask mask(w, context);
  const T scale = keep_scale<T>(w);
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const auto keeps = mask.row(r);
    for (std::int64_t c = 0; c < w.cols; ++c) {
      const std::int64_t i = r * w.cols + c;
      const bool kept = keeps(c);
      x.flags_out(1)[i] = kept ? 1 : 0;
      x.out(0)[i] = kept ? x.in(0)[i] * scale : T(0);
    }
  }
}

template <typename T>
void dropout_backward(const Kernel& w, const Operands<T>& x) {
  const T scale = keep_scale<T>(w);
  for (std::int64_t i = 0; i < w.rows * w.cols; ++i) {
    x.out(0)[i] = x.flags_in(1)[i] != 0 ? x.in(0)[i] * scale : T(0);
  }
}

template <typename T>
void bias_add(const Kernel& w, const Operands<T>& x) {
  for (std::int64_t i = 0; i < w.rows * w.cols; ++i) {
    x.out(0)[i] = x.in(0)[i] + x.in(1)[i % w.cols];
  }
}

/// The sum of all operands, which may be one of them.
template <typename T>
void add(const Kernel& w, const Operands<T>& x) {
  for (std::int64_t i = 0; i < w.rows * w.cols; ++i) {
    T sum = x.in(0)[i];
    for (std::size_t r = 1; r < x.reads.size(); ++r) sum += x.in(r)[i];
    x.out(0)[i] = sum;
  }
}

/// Of experts' rows, one expert's after the other's, each has a bias of its own. Where numbers p of
/// the rows weigh it the reads are d y, p, biases, d p, and d p is added to first.
template <typename T>
void bias_gradient(const Kernel& w, const Operands<T>& x) {
  const std::size_t last = x.writes.size() - 1;
  const bool weighs = last > 0;
  const std::int64_t biases = x.writes[last].count / w.cols;
  for (std::int64_t r = 0; r < w.rows; ++r) {
    const T* d = x.in(0) + r * w.cols;
    const std::int64_t first = r / (w.rows / biases) * w.cols;
    const T p = weighs ? x.in(1)[r] : T(1);
    for (std::int64_t c = 0; c < w.cols; ++c) x.out(last)[first + c] += p * d[c];
    if (!weighs) continue;
    for (std::int64_t c = 0; c < w.cols; ++c) x.out(0)[r] += d[c] * x.in(2)[first + c];
  }
}

/// Sum of squares of an interval of a gradient buffer; what n ranks hold alike counts 1/n on each.
template <typename T>
void squared_norm(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  const Operand& view = x.reads[0];
  const Buffer& buffer = *view.buffer;
  double sum = 0;
  for (const Buffer::Part& run : context.parts_of(view, w.cols)) {
    const auto squares = [&](std::int64_t begin, std::int64_t end) {
      double out = 0;
      for (std::int64_t i = std::max(begin, run.first); i < std::min(end, run.first + run.count);
           ++i) {
        const double v = x.in(0)[run.at + i - run.first];
        out += v * v;
      }
      return out;
    };
    sum += squares(run.first, run.first + run.count);
    for (const Replica& r : buffer.replicas) {
      const auto copies = static_cast<double>(context.place(r.group).size);
      sum -= squares(r.begin, r.end) * (1 - 1 / copies);
    }
  }
  *x.out(0) += static_cast<T>(sum);
}

template <typename T>
T clip_scale(const Kernel& w, T squared_norm) {
  const T norm = std::sqrt(squared_norm);
  return norm > static_cast<T>(w.value) ? static_cast<T>(w.value) / norm : T(1);
}

template <typename T>
void clip(const Kernel& w, const Operands<T>& x) {
  const T scale = clip_scale(w, *x.in(1));
  for (std::int64_t i = 0; i < w.cols; ++i) x.out(0)[i] = x.in(0)[i] * scale;
}

/// AdamW (Loshchilov and Hutter 2019). reads: gradients, [weights], momentum, variance, [master],
/// [squared norm of all gradients, where they are clipped to `value` here].
template <typename T>
void adam(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  const Training& t = context.training;
  const auto step = static_cast<double>(context.step + 1);
  const auto beta1 = static_cast<T>(t.beta1);
  const auto beta2 = static_cast<T>(t.beta2);
  const auto rate = static_cast<T>(t.learning_rate / (1 - std::pow(t.beta1, step)));
  const auto correct = static_cast<T>(1 / (1 - std::pow(t.beta2, step)));
  const auto decay = static_cast<T>(1 - t.learning_rate * t.weight_decay);
  const auto epsilon = static_cast<T>(t.epsilon);
  const bool master = x.writes.size() > 3;
  const T* gradient = x.in(0);
  T* weights = x.out(0);
  T* momentum = x.out(1);
  T* variance = x.out(2);
  T* kept = master ? x.out(3) : weights;
  const T shrink = w.value > 0 ? clip_scale(w, *x.in(x.reads.size() - 1)) : T(1);
  for (std::int64_t i = 0; i < w.cols; ++i) {
    const T g = gradient[i] * shrink;
    momentum[i] = beta1 * momentum[i] + (T(1) - beta1) * g;
    variance[i] = beta2 * variance[i] + (T(1) - beta2) * g * g;
    kept[i] = decay * kept[i] - rate * momentum[i] / (std::sqrt(variance[i] * correct) + epsilon);
    weights[i] = kept[i];
  }
}

}  // namespace

template <typename T>
void run_update(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  switch (w.kind) {
    case KernelKind::kResidualAdd:
      return residual_add(w, context, x);
    case KernelKind::kResidualAddBackward:
      return dropout_backward(w, x);
    case KernelKind::kDropout:
      return dropout(w, context, x);
    case KernelKind::kAdd:
      return add(w, x);
    case KernelKind::kBiasAdd:
      return bias_add(w, x);
    case KernelKind::kBiasGrad:
      return bias_gradient(w, x);
    case KernelKind::kFill:
      std::fill_n(x.out(0), x.writes[0].count, T(0));
      return;
    case KernelKind::kCast:
      std::copy_n(x.in(0), x.writes[0].count, x.out(0));
      return;
    case KernelKind::kScale:
      return clip(w, x);
    case KernelKind::kSquaredNorm:
      return squared_norm(w, context, x);
    default:
      return adam(w, context, x);
  }
}

/// Gradients of parameters are added to where the op reads them too, else written: from zero.
template <typename T>
void start_gradients(const Kernel& w, const Operands<T>& x) {
  std::size_t first = x.writes.size();
  if (w.kind == KernelKind::kBiasGrad || w.kind == KernelKind::kPositionsGrad ||
      w.kind == KernelKind::kSquaredNorm) {
    first = 0;
  }
  if (w.kind == KernelKind::kLayerNormBackward || w.kind == KernelKind::kRmsNormBackward ||
      w.kind == KernelKind::kCausalConvBackward || w.kind == KernelKind::kGatedConvBackward) {
    first = 1;
  }
  if (w.kind == KernelKind::kGatedNormBackward) first = 2;
  for (std::size_t i = first; i < x.writes.size(); ++i) {
    if (!x.reads_back(i)) std::fill_n(x.out(i), x.writes[i].count, T(0));
  }
}

template <typename T>
void run_kernel(const Kernel& w, const OpContext& context, const Operands<T>& x) {
  start_gradients(w, x);
  if (w.kind <= KernelKind::kEmbeddingBackward || w.kind == KernelKind::kPositionsAdd ||
      w.kind == KernelKind::kPositionsGrad ||
      (w.kind >= KernelKind::kLossMax && w.kind <= KernelKind::kLossBackward)) {
    return run_ends(w, context, x);
  }
  if (w.kind <= KernelKind::kNormGradientSums) return run_norm(w, context, x);
  if (w.kind <= KernelKind::kRelu2Backward) return run_activation(w, x);
  if (w.kind == KernelKind::kGeglu || w.kind == KernelKind::kGegluBackward) {
    return run_activation(w, x);
  }
  if (w.kind >= KernelKind::kCausalConv) return run_mixer(w, context, x);
  if (w.kind >= KernelKind::kPackKeys) return run_context(w, context, x);
  if (w.kind >= KernelKind::kRoute) return run_experts(w, context, x);
  run_update(w, context, x);
}

template void run_update(const Kernel&, const OpContext&, const Operands<float>&);
template void run_update(const Kernel&, const OpContext&, const Operands<double>&);
template void run_kernel(const Kernel&, const OpContext&, const Operands<float>&);
template void run_kernel(const Kernel&, const OpContext&, const Operands<double>&);

}  // namespace foretrain
