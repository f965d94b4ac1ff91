// What a CUDA launcher asks of its device.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "executor/cuda/device_view.h"
#include "executor/fill.h"
#include "sim/program/work.h"

namespace foretrain::device {

/// What the launchers of one device share.
class LaunchSupport {
 public:
  LaunchSupport() = default;
  LaunchSupport(const LaunchSupport&) = delete;
  LaunchSupport& operator=(const LaunchSupport&) = delete;
  LaunchSupport(LaunchSupport&&) = delete;
  LaunchSupport& operator=(LaunchSupport&&) = delete;
  virtual ~LaunchSupport() = default;
  virtual void* scratch(std::size_t stream, int which, std::size_t bytes) = 0;
  virtual const float* rope_table(std::int64_t length, std::int64_t head_dim) = 0;
  virtual void product(cudaStream_t stream, std::size_t index, const Product& product) = 0;
  virtual void fail(const std::string& what) = 0;
};

/// Work that computes, on one stream; problems go to `support`.
void compute_on_cuda(cudaStream_t stream, std::size_t index, LaunchSupport& support,
                     const Work& work, const OpContext& context, const DeviceOperands& x);

/// Adds a bias to the columns of C, for a product whose library call cannot.
void add_bias_on_cuda(cudaStream_t stream, std::size_t index, LaunchSupport& support,
                      const Product& product);

/// Random content.
void fill_on_cuda(cudaStream_t stream, LaunchSupport& support, std::byte* to, DType type,
                  std::int64_t count, const Content& content);

}  // namespace foretrain::device
