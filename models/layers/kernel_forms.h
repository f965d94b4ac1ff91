// What memory-bound kernels cost in the form that a framework runs them in.
//
// A kernel of a Program reads its operands once and writes its results once: the form of hand-fused
// kernels (Megatron-LM, Apex, Transformer Engine) and of torch.compile. Eager PyTorch composes RMS
// norm, rotary embedding, gated activations, Transformers' gelu_new, dropout and the loss from
// elementwise operations whose results pass through memory; `kernel_form` counts the bytes that
// they move besides, for each element, and the launches, in operations of a Program (two to three
// kernels each, see docs/explanation). PyTorch's pointwise kernels load several elements at once
// only where all operands are contiguous; passes over slices and over operands that are broadcast
// do not. Unfused attention is composed likewise: `attention_form` counts the copies that batched
// products need, the passes over the scores beside softmax and dropout, and casts. Of ring
// self-attention it counts what blocks take to come together, which no form goes without.
#pragma once

#include "models/plan/plan.h"

namespace foretrain {

struct KernelForm {
  std::int32_t launches = 1;
  BetweenKernels between;  ///< bytes of 0: the fused kernel's
};

KernelForm kernel_form(const Plan& plan, const Kernel& kernel);

struct AttentionForm {
  std::int32_t kernels = 0;
  Bytes bytes = 0;
};

AttentionForm attention_form(const Plan& plan, const Attention& attention);

/// Gives every kernel and attention of the Program its form.
void form_kernels(const Plan& plan, Program& program);

}  // namespace foretrain
