// The convolutions of mixers, which run_mixer picks.
#pragma once

#include "executor/mixers/mixers.h"

namespace foretrain {

template <typename T>
void causal_conv(const Kernel& work, const OpContext& context, const Operands<T>& x);
template <typename T>
void causal_conv_backward(const Kernel& work, const OpContext& context, const Operands<T>& x);
template <typename T>
void gated_conv(const Kernel& work, const OpContext& context, const Operands<T>& x);
template <typename T>
void gated_conv_backward(const Kernel& work, const OpContext& context, const Operands<T>& x);

}  // namespace foretrain
