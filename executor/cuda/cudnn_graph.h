// cuDNN's graphs through its backend interface: tensors, operations on them, and the graph as a
// plan that runs. Building a graph needs no device.
#pragma once

#include <cudnn.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/base/result.h"

namespace foretrain {

/// The name of a cuDNN status and what the library says about it.
std::string text_of(cudnnStatus_t status);

/// Four dimensions, outermost first.
using Dims = std::array<std::int64_t, 4>;

/// Of a process that has opened the library.
class CudnnGraph {
 public:
  using Tensor = std::int64_t;  ///< its identity in this graph

  CudnnGraph();
  CudnnGraph(const CudnnGraph&) = delete;
  CudnnGraph& operator=(const CudnnGraph&) = delete;
  CudnnGraph(CudnnGraph&&) = delete;
  CudnnGraph& operator=(CudnnGraph&&) = delete;
  ~CudnnGraph();

  /// In memory that is given when the graph runs.
  Tensor tensor(const Dims& dims, const Dims& strides, cudnnDataType_t type);
  /// One number that the graph keeps.
  Tensor constant(float value);
  /// Never in memory; packed, innermost last.
  Tensor between(const Dims& dims, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  Tensor between(const Dims& dims, const Dims& strides, cudnnDataType_t type);

  /// c = a b, of matrices in the last two dimensions; fp32 sums.
  void matmul(Tensor a, Tensor b, Tensor c);
  /// y = op(x), op(x, b), or with t (a mask) x where t, else b.
  void pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor y, Tensor b = 0, Tensor t = 0);
  /// y = the index of each element along the axis.
  void index(std::int64_t axis, Tensor like, Tensor y);
  void reduce(cudnnReduceTensorOp_t op, Tensor x, Tensor y);
  /// y is x with its last two dimensions turned.
  void turn(Tensor x, Tensor y);

  /// Ends building; the first problem of any call above.
  Status finish(cudnnHandle_t handle);
  std::size_t operations() const { return x_operations.size(); }
  /// Chooses how to run it; after `finish` with a handle.
  Status choose(cudnnHandle_t handle);
  /// How many ways to run it the library's heuristic has for a device that is described in its
  /// JSON, and need not be there; after `finish` without a handle.
  Result<std::int64_t> engines(const std::string& device);
  std::size_t workspace_bytes() const { return static_cast<std::size_t>(x_workspace); }
  /// On the handle's stream. `memory`: of every tensor that is neither a constant nor between.
  Status run(cudnnHandle_t handle, const std::map<Tensor, void*>& memory, void* workspace) const;

 private:
  using Descriptor = std::shared_ptr<void>;
  Descriptor make(cudnnBackendDescriptorType_t type);
  void set(const Descriptor& of, int name, cudnnBackendAttributeType_t type, std::int64_t count,
           const void* values);
  void link(const Descriptor& of, int name, const Descriptor& to);
  void close(const Descriptor& of, const char* what);
  void note(cudnnStatus_t status, const char* what);
  Tensor add(const Dims& dims, const Dims& strides, cudnnDataType_t type, bool is_virtual,
             bool by_value);
  Status choose_by(cudnnHandle_t handle, cudnnBackendHeurMode_t mode);
  std::vector<Descriptor> found_by(const Descriptor& heuristic);

  std::vector<Descriptor> x_tensors;  ///< by identity - 1
  std::map<Tensor, float> x_constants;
  std::vector<Descriptor> x_operations;
  Descriptor x_graph, x_plan;
  std::int64_t x_workspace = 0;
  std::string x_problem;
};

}  // namespace foretrain
