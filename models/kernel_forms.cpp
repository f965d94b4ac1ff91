#include "models/kernel_forms.h"

#include <algorithm>

namespace foretrain {
namespace {

// Bytes an element, with 2-byte activations; r and w say how many bytes an operation reads and
// writes. What the fused kernel moves is taken off.

KernelForm eager_form(KernelKind kind) {
  switch (kind) {
    // to fp32 r2 w4, square r4 w4, mean r4, x rsqrt r4 w4, to bf16 r4 w2, x weight r2 w2: 36 - 4.
    case KernelKind::kRmsNorm:
      return {3, 32};
    // weight r2 w2, its gradient r4 w2 r2, to fp32 r2 w4, x rsqrt r4 w4, the sum of d x r8 w4 r4,
    // mean w4, square r8 w4, both paths r8 w4, to bf16 r4 w2; the residual's r4 w2 less its r2:
    // 80 - 8.
    case KernelKind::kRmsNormBackward:
      return {5, 72};
    // The gradients of weight and bias read d y and x again; the residual's gradient is a kernel.
    case KernelKind::kLayerNormBackward:
      return {2, 8};
    // x cos r2 w2, rotated half r2 w2 twice, x sin r2 w2, sum r4 w2: 22 - 4.
    case KernelKind::kRope:
    case KernelKind::kRopeBackward:
      return {4, 18};
    // silu r2 w2, product r4 w2: 10 - 6; backward two products r4 w2, silu r4 w2: 18 - 10.
    case KernelKind::kSwiglu:
      return {1, 4};
    case KernelKind::kSwigluBackward:
      return {1, 8};
    default:
      return {};
  }
}

/// The loss as a composition. Of the 14 bytes that the three kernels move themselves (2, 6, 6):
KernelForm loss_form(LossForm form, KernelKind kind) {
  const bool parallel = form == LossForm::kParallel;
  switch (kind) {
    // To fp32 r2 w4; maximum r4.
    case KernelKind::kLossMax:
      return {1, 8};
    // Megatron's: less maximum r4 w4, exp r4 w4, sum r4, quotient r4 w4, besides a dozen operations
    // on the targets. log_softmax: r4 for the sum, r4 w4.
    case KernelKind::kLossSumExp:
      return parallel ? KernelForm{4, 28 - 6} : KernelForm{2, 12 - 6};
    case KernelKind::kLossMean:
      return {3, 0};
    // Megatron's: x d loss r4 w4, to bf16 r4 w2. log_softmax: nll w4, r8 w4, to bf16 r4 w2.
    case KernelKind::kLossBackward:
      return parallel ? KernelForm{3, 14 - 6} : KernelForm{2, 22 - 6};
    default:
      return {};
  }
}

bool of_loss(KernelKind kind) {
  return kind == KernelKind::kLossMax || kind == KernelKind::kLossSumExp ||
         kind == KernelKind::kLossMean || kind == KernelKind::kLossBackward;
}

}  // namespace

KernelForm kernel_form(const Plan& plan, const Kernel& kernel) {
  const KernelKind kind = kernel.kind;
  // dropout r2 w2 and its mask, sum r4 w2: what passes through memory is the dropped branch.
  if (kind == KernelKind::kResidualAdd && kernel.value > 0 && plan.fusion == Fusion::kEager) {
    return {2, 4};
  }
  // Statistics first, then values: x twice; d y and x twice.
  const auto element = static_cast<std::int64_t>(bits_of(kernel.dtype) / 8);
  if (kind == KernelKind::kBatchNorm) return {1, element};
  if (kind == KernelKind::kBatchNormBackward) return {1, 2 * element};
  if (of_loss(kind)) {
    return plan.loss == LossForm::kFused ? KernelForm{} : loss_form(plan.loss, kind);
  }
  return plan.fusion == Fusion::kEager ? eager_form(kind) : KernelForm{};
}

void form_kernels(const Plan& plan, Program& program) {
  for (Work& work : program.works) {
    auto* kernel = std::get_if<Kernel>(&work);
    if (kernel == nullptr) continue;
    const KernelForm form = kernel_form(plan, *kernel);
    kernel->launches = std::max(kernel->launches, form.launches);
    kernel->intermediate_bytes = form.intermediate_bytes;
    kernel->bytes += kernel->rows * kernel->cols * form.intermediate_bytes;
  }
}

}  // namespace foretrain
