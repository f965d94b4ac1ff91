// A state space that is scanned in chunks, as the kernels that compute it.
#pragma once

#include <string_view>
#include <vector>

#include "sim/program/work.h"

namespace foretrain {

/// One kernel of a scan: FLOPs on tensor cores, bytes through device memory (every operand once).
struct ScanKernel {
  std::string_view name;
  double flops = 0, bytes = 0;
};

/// The kernels of `mamba_ssm` (ops/triton/ssd_combined.py), in their order. With T = batch x length
/// tokens, d = heads x head_dim, G = groups x state, S = T / chunk x d x state elements of states,
/// in a type of s bytes, forward:
///     cumsum         T heads (s + 8) B                 steps and their sums, in fp32
///     chunk-state    2 T d state FLOP                  states of each chunk, in fp32
///     state-passing  (4 + s) S B                       from chunk to chunk
///     products       2 T G chunk FLOP                  C B^T of each chunk, in fp32
///     chunk-scan     T d (chunk + 2 state) FLOP        half of the square, and the state before
/// Backward repeats all but the last, and has: the gradient of states and their way back (2 T d
/// state), of x (T d (chunk + 2 state)), of B and C by states (2 T d state each), of the products
/// (T d chunk), of B and C by products (2 T G chunk each), of the steps (T d chunk; two passes).
/// Left out: chunks that the length cuts, which are padded, what heads of one group read again.
std::vector<ScanKernel> kernels_of(const Scan& work);

}  // namespace foretrain
