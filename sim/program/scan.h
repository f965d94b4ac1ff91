// A state space that is scanned in chunks, as the kernels that compute it.
#pragma once

#include <string_view>
#include <vector>

#include "sim/program/work.h"

namespace foretrain {

/// One kernel of a scan: FLOPs, on tensor cores unless `scalar`, and bytes through device memory
/// (every operand once).
struct ScanKernel {
  std::string_view name;
  double flops = 0, bytes = 0;
  bool scalar = false;
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
///
/// kSelective is one kernel of `mamba_ssm` (ops/selective_scan_interface.py), off the tensor cores:
/// with W = heads channels forward 9 T W state FLOP, as its authors count; backward twice, and the
/// forward again. Bytes: x, steps, z and y; backward also their gradients.
///
/// The delta rules are the kernels of flash-linear-attention (fla/ops/gated_delta_rule/chunk.py).
/// With K = heads x state of keys, V = heads x head_dim of values, C = chunk, E = T / C x heads x
/// state x head_dim elements of states, products on whole squares, forward:
///     cumsum      T heads 8 B
///     inverse     T (5/4 C K + heads C^2 / 2) FLOP     of 1 + the lower half of b k k^T, by blocks
///     keys-values 2 T C (K + V) FLOP                   its products with b k and b v
///     states      4 T K head_dim FLOP                  from chunk to chunk
///     outputs     T (2 K head_dim + 2 C (K + V)) FLOP
/// Backward repeats keys-values and states, and has: values by squares (2 T C (K + V)), states
/// (6 T K head_dim), queries, keys and decays (T (6 K head_dim + 2 C V + 4 C K)), the inverse
/// (T (10 C K + 4 C V + 4 heads C^2)), a sum of both gradients of keys, and of decays. A decay of
/// every channel makes the sums, and what each kernel reads of these, `state` times as large; that
/// fla/ops/kda fuses other passes is left out.
std::vector<ScanKernel> kernels_of(const Scan& work);

}  // namespace foretrain
