// Training data drawn for the place of a sequence in the whole run, so that every plan sees the
// same.
#pragma once

#include "executor/operands.h"

namespace foretrain {

/// Fills an input buffer ("tokens", "labels": the next token) with this microbatch's sequences.
/// Three tokens of four follow from the one before by a fixed rule, so that there is something to
/// learn.
void load_tokens(const OpContext& context, const Operand& out);

}  // namespace foretrain
