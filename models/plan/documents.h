// Sequences that pack several documents: `batch.documents`.
#pragma once

#include "models/plan/plan.h"
#include "models/plan/violations.h"

namespace foretrain {

/// A number n: every sequence packs documents of n tokens, the last of what is left; a list: of
/// these lengths, which add up to the sequence. Attention stays inside each document (a
/// block-diagonal mask: Megatron-LM's --reset-attention-mask, variable lengths in fused kernels,
/// segment ids of MaxText). A document as long as the sequence is none. `sequence` is known.
/// Left out: lengths that differ between sequences, positions that begin anew in every document,
/// losses that are not taken at their ends.
void derive_documents(const Json& asked, Plan& plan, Violations& out);

/// Ranks of a ring hold chunks of every document, which therefore divides into them, else some
/// would have pieces to skip; ring self-attention stores whole rows; cross-attention has no
/// documents; a window of gathered keys would have to be cut at both. Nor is a sequence of several
/// of the chunks that a model's attention stays in modelled.
void check_documents(const Model& model, const Plan& plan, Violations& out);

}  // namespace foretrain
