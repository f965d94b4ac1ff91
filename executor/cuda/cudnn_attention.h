// Attention by cuDNN: its fused kernels take the composite graph of scores, mask, softmax and
// products that its front end writes; a causal mask is part of it (row index >= column index).
//
// Left out: windows, ALiBi, dropout, fp32, heads that are no multiple of 8 or wider than 128: see
// check.cpp.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "executor/cuda/attention_shape.h"
#include "executor/cuda/cudnn_graph.h"
#include "sim/program/work.h"

namespace foretrain {

/// The graph of one Attention, and which of its tensors lie where.
///
/// Heads lie in rows of qkv as queries of a group, the group's key, its value. With a group of one
/// query head a graph covers the batch, [batch, heads, length, dim]; else the heads of a group are
/// not evenly apart from those of the next, and a graph covers one sequence, [groups, heads of a
/// group, length, dim], and runs once a sequence.
struct CudnnAttention {
  CudnnGraph graph;
  std::int64_t runs = 1;  ///< once a sequence, or once
  // Elements from one run to the next.
  std::int64_t qkv_step = 0, out_step = 0, stats_step = 0;
  CudnnGraph::Tensor q = 0, k = 0, v = 0, out = 0, stats = 0;
  // Of the backward pass; sums: of out times its gradient, by query; d_q_sums: in fp32.
  CudnnGraph::Tensor d_out = 0, d_q = 0, d_k = 0, d_v = 0, sums = 0, d_q_sums = 0;
  std::int64_t sums_count = 0, d_q_count = 0;  ///< elements of those two
};

/// Builds and finishes the graph; without a handle it can be looked at, not run.
Result<std::unique_ptr<CudnnAttention>> build_cudnn_attention(const Attention& work,
                                                              cudnnHandle_t handle);

/// A handle and the graphs that it has made, by shape.
class Cudnn {
 public:
  static Result<std::unique_ptr<Cudnn>> create();
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;
  Cudnn(Cudnn&&) = delete;
  Cudnn& operator=(Cudnn&&) = delete;
  ~Cudnn();

  /// Made, with its plan, once a shape.
  Result<const CudnnAttention*> attention(const Attention& work);
  /// Bytes that `run` needs besides the operands.
  static std::size_t scratch_bytes(const CudnnAttention& made);
  Status run(const Attention& work, const CudnnAttention& made, const DeviceOperands& x,
             void* scratch, cudaStream_t stream);

 private:
  Cudnn() = default;
  cudnnHandle_t x_handle = nullptr;
  std::map<std::string, std::unique_ptr<CudnnAttention>> x_made;  ///< by the work's text
};

}  // namespace foretrain
