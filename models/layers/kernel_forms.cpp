#include "models/layers/kernel_forms.h"

#include <algorithm>
#include <cmath>

namespace foretrain {
namespace {

// Bytes an element; r and w say how many bytes an operation reads and writes, of 2-byte elements
// where no other is said. What the fused kernel moves is taken off.

/// In fp32, of elements of 4 bytes, which norms do not cast.
KernelForm wide_form(KernelKind kind) {
  switch (kind) {
    // square r4 w4, mean r4, x rsqrt r4 w4, x weight r4 w4: 28 - 8.
    case KernelKind::kRmsNorm:
      return {3, {20, 8 + 8, 2}};  // x rsqrt, x weight
    // weight r4 w4, its gradient r8 w4 r4, x rsqrt r4 w4, the sum of d x r8 w4 r4, mean w4, square
    // r8 w4, both paths r8 w4, the residual's r8 w4 less its r4: 84 - 16.
    case KernelKind::kRmsNormBackward:
      return {5, {68, 8 + 8 + 4 + 12, 4}};  // weight, x rsqrt, mean, square
    default:
      return {};
  }
}

KernelForm eager_form(KernelKind kind, std::int64_t element) {
  if (element == 4) {
    if (const KernelForm form = wide_form(kind); form.between.bytes > 0) return form;
  }
  const auto of = [element](std::int64_t bytes) { return bytes * element / 2; };
  switch (kind) {
    // to fp32 r2 w4, square r4 w4, mean r4, x rsqrt r4 w4, to bf16 r4 w2, x weight r2 w2: 36 - 4.
    case KernelKind::kRmsNorm:
      return {3, {32, 8 + 4, 2}};
    // weight r2 w2, its gradient r4 w2 r2, to fp32 r2 w4, x rsqrt r4 w4, the sum of d x r8 w4 r4,
    // mean w4, square r8 w4, both paths r8 w4, to bf16 r4 w2; the residual's r4 w2 less its r2:
    // 80 - 8.
    case KernelKind::kRmsNormBackward:
      return {5, {72, 4 + 8 + 4 + 12, 4}};
    // The gradients of weight and bias read d y and x again; the residual's gradient is a kernel.
    case KernelKind::kLayerNormBackward:
      return {2, {of(8)}};
    // x cos r2 w2, rotated half r2 w2 twice, x sin r2 w2, sum r4 w2: 22 - 4. Cosines and sines are
    // broadcast, halves are slices, and the sum's terms lie differently.
    case KernelKind::kRope:
      return {4, {of(18), of(4 + 4 + 4 + 6), 4}};
    // x cos, x sin r2 w2 each, a half negated r1 w1, both halves into zeros w2 r1 w1 each, their
    // sum and that of both paths r4 w2 each: 30 - 4.
    case KernelKind::kRopeBackward:
      return {4, {of(26), of(4 + 4 + 2 + 4), 4}};
    // silu r2 w2, product r4 w2: 10 - 6; backward two products r4 w2, silu r4 w2: 18 - 10.
    case KernelKind::kSwiglu:
      return {1, {of(4)}};
    case KernelKind::kSwigluBackward:
      return {1, {of(8)}};
    default:
      return {};
  }
}

/// What stays eager where norms, softmax and dropout have kernels of their own (Apex, Megatron-LM).
bool besides_norms(KernelKind kind) {
  return kind == KernelKind::kRope || kind == KernelKind::kRopeBackward ||
         kind == KernelKind::kSwiglu || kind == KernelKind::kSwigluBackward;
}

/// Of a head whose first part alone turns: the rest is joined to it again, r2 w2 over all.
KernelForm partly_turned(KernelForm form, const Kernel& kernel) {
  const auto element = static_cast<std::int64_t>(bits_of(kernel.dtype) / 8);
  const double share = kernel.value;
  const auto part = [share](std::int64_t bytes) {
    return std::llround(share * static_cast<double>(bytes));
  };
  form.between.bytes = part(form.between.bytes) + 2 * element;
  form.between.unvectorized_bytes = part(form.between.unvectorized_bytes);
  form.between.unvectorized_passes *= share;
  return form;
}

/// Llama's rotary embedding under autocast: cosines and sines are fp32, and so is what they give,
/// which attention casts.
KernelForm autocast_rope(bool backward) {
  // To fp32 r2 w4, x cos r4 w4, x sin r4 w4, each to 16 bits r4 w2, a half negated r1 w1, both
  // halves into zeros w2 r1 w1 each, two sums r4 w2: 56 - 4.
  if (backward) return {5, {52, 8 + 8 + 2 + 4, 4}};
  // x cos r2 w4, rotated half r2 w2 twice, x sin r2 w4, sum r8 w4, to 16 bits r4 w2: 38 - 4.
  return {5, {34, 6 + 4 + 6 + 12, 4}};
}

/// Transformers' gelu_new, x/2 (1 + tanh(c (x + a x^3))): eight kernels forward, thirteen backward.
KernelForm gelu_form(const Plan& plan, const Kernel& kernel) {
  const bool backward = kernel.kind == KernelKind::kGeluBackward;
  const std::int32_t launches = backward ? 5 : 3;
  if (plan.precision.autocast) {
    // Autocast takes powers in fp32, and so all behind them. To fp32 r2 w4, cube r4 w4, a x^3 r4
    // w4, sum r6 w4, c x r4 w4, tanh r4 w4, 1 + r4 w4, half r2 w2, product r6 w4, to 16 bits r4 w2:
    // 76 - 4.
    if (!backward) return {launches, {72}};
    // To fp32 r2 w4, d half r8 w4 and to 16 bits r4 w2, d tanh r6 w4, tanh' r8 w4, c x r4 w4, to
    // 16 bits r4 w2, a x r4 w4, square r4 w4, its triple r4 w4, cube' r8 w4, to 16 bits r4 w2, half
    // r2 w2, two sums r4 w2: 118 - 6.
    return {launches, {112}};
  }
  const auto element = static_cast<std::int64_t>(bits_of(kernel.dtype) / 8);
  // Six of r w, two of r2 w, less r w: 18 - 2. Backward six of r w, five of r2 w (with both sums of
  // paths), one scale of each path r w: 28 - 3.
  return {launches, {(backward ? 25 : 16) * element}};
}

/// The loss as a composition. Of the 14 bytes that the three kernels move themselves (2, 6, 6):
KernelForm loss_form(LossForm form, KernelKind kind) {
  const bool parallel = form == LossForm::kParallel;
  switch (kind) {
    // To fp32 r2 w4; maximum r4.
    case KernelKind::kLossMax:
      return {1, {8}};
    // Megatron's: less maximum r4 w4, exp r4 w4, sum r4, quotient r4 w4, besides a dozen operations
    // on the targets; the maximum and the sum are broadcast. log_softmax: r4 for the sum, r4 w4.
    case KernelKind::kLossSumExp:
      return parallel ? KernelForm{4, {28 - 6, 8 + 8, 2}} : KernelForm{2, {12 - 6}};
    case KernelKind::kLossMean:
      return {3, {0}};
    // Megatron's: x d loss r4 w4, to bf16 r4 w2. log_softmax: r8 w4 (of 8 in fp32).
    case KernelKind::kLossBackward:
      return parallel ? KernelForm{3, {14 - 6, 8, 1}} : KernelForm{1, {4}};
    default:
      return {};
  }
}

bool of_loss(KernelKind kind) {
  return kind == KernelKind::kLossMax || kind == KernelKind::kLossSumExp ||
         kind == KernelKind::kLossMean || kind == KernelKind::kLossBackward;
}

/// Elements that copies of heads read and write: queries and the context (backward their
/// gradients), keys and values, which grouped queries repeat to as many heads as theirs.
std::int64_t copied_elements(const Attention& a) {
  const std::int64_t width = a.head_dim + a.value_width();
  const std::int64_t queries = a.batch * a.q_len * a.q_heads * width;
  const std::int64_t keys = a.batch * a.kv_len * (a.kv_heads + a.q_heads) * width;
  return 2 * queries + keys;
}

/// Bytes of a score besides softmax and dropout on the scores' type. In 16 bits probabilities are
/// in fp32, as under autocast: the mask is too.
std::int64_t score_bytes(const Attention& a) {
  const bool dropout = a.dropout > 0;
  if (bits_of(a.dtype) > 16) {
    // Scale r4 w4, mask r4 w4; backward scale r4 w4.
    return a.backward ? 8 : 16;
  }
  // Scale r2 w2, mask r2 w4, softmax r4 w4 less its r2 w2, dropout likewise, to 16 bits r4 w2.
  if (!a.backward) return 4 + 6 + 4 + (dropout ? 4 : 0) + 6;
  // To fp32 r2 w4, dropout r4 w4 less its r2 w2, softmax r8 w4 less its r4 w2, to 16 bits r4 w2,
  // scale r2 w2.
  return 6 + (dropout ? 4 : 0) + 6 + 6 + 4;
}

/// What a step of ring self-attention moves besides its product, as RingQK and RingAV have it: a
/// block's product is copied into the scores, or added to zeros that were written before.
/// `composed` besides: the copies of queries and of the context, or of their gradients, with the
/// first block.
AttentionForm step_form(const Attention& a, bool composed) {
  const bool first = a.hops == 0;
  const std::int64_t scores = a.batch * a.q_heads * a.q_len * a.kv_len;
  const std::int64_t rows = a.batch * a.q_heads * a.q_len * a.head_dim;
  AttentionForm out;
  std::int64_t elements = 0;
  const auto add = [&](std::int32_t kernels, std::int64_t moved) {
    out.kernels += kernels;
    elements += moved;
  };
  switch (a.step) {
    case AttentionStep::kScores:
      add(1, 2 * scores);
      break;
    case AttentionStep::kProbabilityGradient:
      // The zeros are written in one kernel; here each block's share.
      add(first ? 2 : 1, 4 * scores);
      break;
    case AttentionStep::kValues:
    case AttentionStep::kQueryGradient:
      add(first ? 2 : 1, (first ? 4 : 3) * rows);
      break;
    default:
      return out;
  }
  if (composed && first) add(1, 2 * rows);
  out.bytes = bytes_of(a.dtype, elements);
  return out;
}

}  // namespace

/// Queries, keys and values are transposed views of what linears gave, which batched products take
/// as contiguous copies alone, and the context is one that the way out takes as a copy; likewise
/// their gradients. The addition of a mask has no kernel of its own backward.
AttentionForm attention_form(const Plan& plan, const Attention& attention) {
  const bool composed =
      plan.fusion == Fusion::kEager && attention.kernel == AttentionKernel::kUnfused;
  const bool step = attention.step != AttentionStep::kWhole;
  if (step && attention.step != AttentionStep::kSoftmax) return step_form(attention, composed);
  if (!composed) return {};
  constexpr std::int32_t kCopies = 4;
  const bool narrow = bits_of(attention.dtype) <= 16;
  const std::int32_t casts = !narrow ? 0 : attention.backward ? 2 : 1;
  const std::int64_t scores =
      attention.batch * attention.q_heads * attention.q_len * attention.kv_len;
  if (step) {
    return {(attention.backward ? 1 : 2) + casts, scores * score_bytes(attention)};
  }
  return {kCopies + (attention.backward ? 1 : 2) + casts,
          bytes_of(attention.dtype, copied_elements(attention)) + scores * score_bytes(attention)};
}

KernelForm kernel_form(const Plan& plan, const Kernel& kernel) {
  const KernelKind kind = kernel.kind;
  const bool eager = plan.fusion == Fusion::kEager;
  // dropout r2 w2 and its mask, sum r4 w2: what passes through memory is the dropped branch.
  if (kind == KernelKind::kResidualAdd && kernel.value > 0 && eager) {
    return {2, {2 * static_cast<std::int64_t>(bits_of(plan.precision.branch()) / 8)}};
  }
  const bool composed = eager || (plan.fusion == Fusion::kNorms && besides_norms(kind));
  const bool backward = kind == KernelKind::kRopeBackward;
  const auto element = static_cast<std::int64_t>(bits_of(kernel.dtype) / 8);
  if (composed && (backward || kind == KernelKind::kRope)) {
    const KernelForm form =
        plan.precision.autocast ? autocast_rope(backward) : eager_form(kind, element);
    return kernel.value < 1 ? partly_turned(form, kernel) : form;
  }
  if (eager && kernel.value > 0 &&
      (kind == KernelKind::kGelu || kind == KernelKind::kGeluBackward)) {
    return gelu_form(plan, kernel);
  }
  // Statistics first, then values: x twice; d y and x twice.
  if (kind == KernelKind::kBatchNorm) return {1, {element}};
  if (kind == KernelKind::kBatchNormBackward) return {1, {2 * element}};
  if (of_loss(kind)) {
    return plan.loss.form == LossForm::kFused ? KernelForm{} : loss_form(plan.loss.form, kind);
  }
  return composed ? eager_form(kind, element) : KernelForm{};
}

void form_kernels(const Plan& plan, Program& program) {
  for (Work& work : program.works) {
    if (auto* attention = std::get_if<Attention>(&work)) {
      const AttentionForm form = attention_form(plan, *attention);
      attention->more.kernels = form.kernels;
      attention->more.bytes = form.bytes;
    }
    auto* kernel = std::get_if<Kernel>(&work);
    if (kernel == nullptr) continue;
    const KernelForm form = kernel_form(plan, *kernel);
    kernel->launches = std::max(kernel->launches, form.launches);
    kernel->between.bytes += form.between.bytes;
    kernel->between.unvectorized_bytes += form.between.unvectorized_bytes;
    kernel->between.unvectorized_passes += form.between.unvectorized_passes;
    kernel->bytes += kernel->rows * kernel->cols * form.between.bytes;
  }
}

}  // namespace foretrain
