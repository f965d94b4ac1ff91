// torch.autocast in 16 bits, as training loops have it (PyTorch's docs/source/amp.rst and
// aten/src/ATen/autocast_mode.cpp).
//
// Parameters, their gradients and the optimizer's states are fp32. Linears and matrix products run
// in 16 bits, on copies that they cast: of the weight and the bias once in a forward pass of a
// microbatch (autocast keeps copies of parameters), of the input once for every linear that takes
// it. Norms, softmax and the loss run in fp32, and all else in the type of what it gets: behind a
// linear in 16 bits, and in fp32 where either term of a sum is, as the residual stream is from the
// embedding on.
//
//   forward   x fp32 -> norm -> y fp32 -> cast -> y 16 | cast W, b -> product 16 -> ... -> + x fp32
//   backward  d x fp32 -> cast -> d 16 -> dropout' -> products 16 -> cast d W, d y -> norm' fp32
//
// What a product keeps for its backward pass are the 16-bit copies, of its input and of its weight;
// norms keep their fp32 input. A layer that is computed again casts again. The 16-bit gradient of a
// weight is cast to fp32, and added to those of earlier microbatches by a kernel of its own; of a
// single microbatch it is the gradient. That of a bias is summed into fp32 at once here.
//
// Compiled (`Precision::fuses_casts`) the kernels beside linears do what casts would: norms write
// the 16-bit copy and read a 16-bit gradient, dropout's gradient writes 16 bits. Casts of
// parameters and of their gradients, which have products alone beside them, stay kernels of their
// own.
//
// Of layers that are computed again autocast holds the copies of weights to the end of the forward
// pass. GPT-2's gelu_new is in fp32 behind its power (models/layers/kernel_forms.h). Left out: the
// copy in fp32 of what a model gives back (accelerate).
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "models/layers/segment_writer.h"
#include "models/plan/plan.h"

namespace foretrain {

/// Matrices of `width` columns, one above the other, from the rows of `parts` (zeros: of one): a
/// kernel casts each.
void write_casts(SegmentWriter& w, const std::string& name,
                 const std::array<std::int64_t, 3>& parts, std::int64_t width, const Ref& from,
                 const Ref& to);

/// The gradient of a matrix, d^T in, in 16 bits, cast, and added where there are more microbatches.
void write_narrow_gradient(SegmentWriter& w, const Plan& plan, const std::string& name, Gemm gemm,
                           const Ref& d, const Ref& in, const Ref& gradient);

}  // namespace foretrain
