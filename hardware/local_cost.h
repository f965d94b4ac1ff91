// Prices of what one device does alone: GEMMs, attention, memory-bound kernels, copies.
#pragma once

#include <algorithm>
#include <ostream>

#include "hardware/cluster.h"
#include "sim/base/result.h"
#include "sim/cost/cost_model.h"

namespace foretrain {

/// A part of a duration, cut at 23 days so that sums cannot overflow. The cost model refuses prices
/// above half of that.
inline Time bounded(double seconds) { return Time::from_seconds(std::min(seconds, 2e6)); }
inline constexpr double kLongestSeconds = 1e6;

/// One of the products that follow each other on several streams, by itself.
inline Gemm alone(Gemm work) {
  work.beside = work.streams = 1;
  work.columns.blocks.clear();  // where its columns go costs nothing
  return work;
}

/// GEMM: the best over tiles (tm x tn) and splits s of k (where a third of the SMs would idle) of
/// latency + max(compute, memory), with
///     T  = ceil(m/tm) ceil(n/tn) batch s                       tiles
///     W  = (1-f) ceil(T/S) + f T/S                             waves on S SMs
///     compute = W * 2 tm tn (k/s + K0) / (peak * efficiency * relative / S)
///     K0      = prologue_k min(1, peak / peak of 16 bits): a tile's begin and end wait for memory
///     memory  = bytes / (bandwidth * memory_efficiency)
/// and, where epilogue_efficiency says so, after both what the epilogue moves beyond two bytes an
/// element of C. On systolic arrays the last blocks are padded to those alone. Products apart:
/// docs/prices.md. bytes: A once for each column of blocks of S tiles, B once for each row of them
/// (once in all if they fit in L2), C once (twice if accumulated), and (s+1) fp32 partial results
/// when split. Efficiencies are SUSTAINED ones, with the clock that the power cap leaves.
/// With groups of unequal m T sums ceil(m/tm) over them; of unequal k the mean counts, and compute
/// is no shorter than a tile of the deepest. Constants: configs/kernels/, with source and residual.
/// Of `beside` products on several streams each takes its part of one of all their rows, no less
/// than alone over the streams. Left out: stream-K, operand values, boost at the start of a burst.
Result<Cost> gemm_cost(const DeviceSpec& device, const Gemm& work, std::ostream* steps);

/// A convolution: the GEMM that it is (`implicit_gemm`), but through device memory go its two
/// operands and its result once each, since patches overlap in the caches and a layer has few
/// columns; and with tiles of 64 besides the GEMM's, and k split until the SMs are filled, as
/// cuDNN's kernels have it; in fp32 with filters of 3 x 3 and stride 1 Winograd's products where
/// those are shorter. More than 2^31 rows are refused. Left out: FFT kernels, larger Winograd
/// tiles, samples of GEMMs nearby.
Result<Cost> convolution_cost(const DeviceSpec& device, const Convolution& work,
                              std::ostream* steps);

/// Attention. Flash and cuDNN: time of a query-key pair on curves by (kernel, pass, head_dim,
/// causal), interpolated over the logarithm of the length and between widths, to which heads are
/// padded (attention_rate.h), scaled by the devices' rates; T with all SMs busy, where blocks of
/// 128 queries are few max(longest block, T + half a block) / 1.03, of a block's time on one SM,
/// the last block of a causal mask nearly twice the mean. A window is a band of window + 128 keys
/// (errors: docs/explanation). Types of less than 16 bits are refused. Unfused:
/// batched GEMMs over the full square and one memory pass for softmax and one for dropout (the
/// fused scale-mask-softmax kernel of Megatron-LM), and what a framework that composes it moves
/// besides (models/layers/kernel_forms.h). FLOPs as sim/program/work.h states them. Packed
/// documents: the time of each at the rate of its length, in one kernel. Left out: other
/// block-sparse masks.
Result<Cost> attention_cost(const DeviceSpec& device, const Attention& work, std::ostream* steps);

/// A scan: for each of its kernels (sim/program/scan.h) a latency and the longer of FLOPs at the
/// rate of the device's GEMMs (at its fp32 rate off the tensor cores, where the kernel is `scalar`)
/// and bytes at the rate that measured scans reach (docs/explanation/mixers.md, Scans beside
/// measured ones), with the deviation of an opaque work. Left out: the lower rate of products with
/// a head's few columns, which is part of that rate.
Result<Cost> scan_cost(const DeviceSpec& device, const Scan& work, std::ostream* steps);

/// launches * latency + max(bytes / (bandwidth * efficiency(kind)), FLOPs / fp32 rate).
Result<Cost> kernel_cost(const DeviceSpec& device, const Kernel& work, std::ostream* steps);

/// Opaque: max(bytes / bandwidth, FLOPs / (peak * GEMM efficiency)).
Result<Cost> opaque_cost(const DeviceSpec& device, const Opaque& work, std::ostream* steps);

/// Work of the host's processor on the host's memory, such as an Adam update of offloaded states:
/// bytes / (0.426 host memory bandwidth of the node / accelerators of the node), since all ranks of
/// a node do theirs at once. Vectorised CPU optimizers are bound by memory (arXiv 2101.06840,
/// section 5.1); the efficiency is that of its CPU-Adam. Left out: cores taken by data loading.
Result<Cost> host_work_cost(const Cluster& cluster, double host_rate, const Opaque& work,
                            std::ostream* steps);

/// Copies: start + bytes / rate. PCIe 0.88 of line (55.4 of 63 GB/s, stas00/ml-engineering
/// network), divided among the accelerators behind one PCIe switch; within device memory read and
/// write; host memory and storage by the cluster's rates, of storage one for reads and one for
/// writes. Left out: that a drive which reads and writes at once does neither at its full rate.
Result<Cost> copy_cost(const Cluster& cluster, double host_rate, const Copy& work,
                       std::ostream* steps);

}  // namespace foretrain
