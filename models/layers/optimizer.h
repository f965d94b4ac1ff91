// What an optimizer keeps for the parameters, and what its update moves.
//
// For P parameters, in bytes (momentum and variance in fp32 unless said; an fp32 copy of the
// weights under fp16 and bf16 comes on top):
//
//   adam, fused_adam   8 P
//   lamb               8 P; the update and the norms of every parameter and of its update are
//   passes
//                      of their own (You et al. 2019; Apex FusedLAMB: stage 1, two norms, stage 2)
//   sgd                4 P, momentum
//   adam8bit           2 P and an fp32 scale a block of 256 for each state (Dettmers et al. 2022;
//                      bitsandbytes, blockwise)
//   adafactor          4 (n + m) for a matrix n x m, 4 n for a vector, no momentum (Shazeer and
//                      Stern 2018); in eager operations as in Hugging Face's Adafactor
//
// adam runs in for-each operations: eight launches, each reading and writing its operands; left
// out: the root of the variance, 4 P that live during the update, and 8-bit states' fp32 exceptions
// (small tensors, embeddings).
#pragma once

#include <string>
#include <vector>

#include "models/plan/plan.h"

namespace foretrain {

struct OptimizerState {
  std::string name;
  DType type = DType::kFp32;
  std::int64_t block = 1;  ///< parameters that share one element
  bool factored = false;   ///< rows and columns of matrices instead of elements
  std::int64_t elements(std::int64_t parameters) const { return (parameters + block - 1) / block; }
};

/// In the order of the update's operands; the copy of the weights, if any, last.
std::vector<OptimizerState> optimizer_states(Optimizer optimizer, bool master);

/// Adam is executed; other rules are given as bytes.
bool is_adam(Optimizer optimizer);
/// Name of the update's op, and bytes that it moves for a parameter beside its operands.
std::string update_name(Optimizer optimizer);
Bytes update_bytes_beside(Optimizer optimizer);

/// Whether the host launches kernels for every parameter tensor, `host.update_us` each, as eager
/// optimizers do; others launch theirs for lists of tensors.
bool loops_over_tensors(Optimizer optimizer);

/// How much longer the host takes for an update than for its operands alone: PyTorch's operations
/// one after another take 14.76 s for 10e9 parameters where a fused, vectorised Adam takes 2.57 s
/// (arXiv 2101.06840, table 4, from memory).
double host_update_factor(Optimizer optimizer);

}  // namespace foretrain
