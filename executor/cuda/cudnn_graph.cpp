#include "executor/cuda/cudnn_graph.h"

#include <algorithm>

#include "executor/cuda/cudnn_api.h"

namespace foretrain {
namespace {

// The handle of a graph and of a plan: named deprecated since plans can be made without a device.
constexpr int kGraphHandle = 800;
constexpr int kPlanHandle = 400;

// Devices that are described only: names that cuDNN before 9.7 has not.
constexpr int kDeviceProperties = 38;
constexpr int kDevicePropertiesJson = 2702;
constexpr int kHeuristicDevice = 204;

Dims packed(const Dims& dims) {
  return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
}

}  // namespace

std::string text_of(cudnnStatus_t status) {
  std::array<char, 512> more{};
  cudnn_api().last_error_string(more.data(), more.size());
  return std::string(cudnn_api().error_string(status)) + (more[0] == 0 ? "" : ": ") + more.data();
}

CudnnGraph::CudnnGraph() = default;
CudnnGraph::~CudnnGraph() = default;

void CudnnGraph::note(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS || !x_problem.empty()) return;
  x_problem = std::string("cuDNN: ") + what + ": " + text_of(status);
}

CudnnGraph::Descriptor CudnnGraph::make(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t made = nullptr;
  note(cudnn_api().create_descriptor(type, &made), "descriptor");
  return {made, [](void* of) {
            if (of != nullptr) cudnn_api().destroy_descriptor(of);
          }};
}

void CudnnGraph::set(const Descriptor& of, int name, cudnnBackendAttributeType_t type,
                     std::int64_t count, const void* values) {
  if (of == nullptr) return;
  note(cudnn_api().set_attribute(of.get(), static_cast<cudnnBackendAttributeName_t>(name), type,
                                 count, values),
       "attribute");
}

void CudnnGraph::link(const Descriptor& of, int name, const Descriptor& to) {
  void* const value = to.get();
  set(of, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

void CudnnGraph::close(const Descriptor& of, const char* what) {
  if (of != nullptr) note(cudnn_api().finalize(of.get()), what);
}

CudnnGraph::Tensor CudnnGraph::add(const Dims& dims, const Dims& strides, cudnnDataType_t type,
                                   bool is_virtual, bool by_value) {
  const Descriptor out = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const auto id = static_cast<Tensor>(x_tensors.size()) + 1;
  const std::int64_t alignment = by_value ? 4 : 16;
  set(out, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
  set(out, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  set(out, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
  set(out, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.data());
  set(out, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data());
  set(out, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
  set(out, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
  close(out, "tensor");
  x_tensors.push_back(out);
  return id;
}

CudnnGraph::Tensor CudnnGraph::tensor(const Dims& dims, const Dims& strides, cudnnDataType_t type) {
  return add(dims, strides, type, false, false);
}

CudnnGraph::Tensor CudnnGraph::constant(float value) {
  const Tensor out = add({1, 1, 1, 1}, {1, 1, 1, 1}, CUDNN_DATA_FLOAT, false, true);
  x_constants[out] = value;
  return out;
}

CudnnGraph::Tensor CudnnGraph::between(const Dims& dims, cudnnDataType_t type) {
  return add(dims, packed(dims), type, true, false);
}

CudnnGraph::Tensor CudnnGraph::between(const Dims& dims, const Dims& strides,
                                       cudnnDataType_t type) {
  return add(dims, strides, type, true, false);
}

void CudnnGraph::matmul(Tensor a, Tensor b, Tensor c) {
  const auto at = [this](Tensor t) { return x_tensors[static_cast<std::size_t>(t - 1)]; };
  const Descriptor how = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  const cudnnDataType_t sums = CUDNN_DATA_FLOAT;
  set(how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
  close(how, "matmul");
  const Descriptor out = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  link(out, CUDNN_ATTR_OPERATION_MATMUL_ADESC, at(a));
  link(out, CUDNN_ATTR_OPERATION_MATMUL_BDESC, at(b));
  link(out, CUDNN_ATTR_OPERATION_MATMUL_CDESC, at(c));
  link(out, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
  close(out, "matmul");
  x_operations.push_back(out);
}

void CudnnGraph::pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor y, Tensor b, Tensor t) {
  const auto at = [this](Tensor of) { return x_tensors[static_cast<std::size_t>(of - 1)]; };
  const bool compares = mode == CUDNN_POINTWISE_CMP_GE;
  const cudnnDataType_t precision = compares ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT;
  const Descriptor how = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  set(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision);
  close(how, "pointwise");
  const Descriptor out = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  link(out, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  link(out, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, at(x));
  if (b != 0) link(out, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, at(b));
  if (t != 0) link(out, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, at(t));
  link(out, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, at(y));
  close(out, "pointwise");
  x_operations.push_back(out);
}

void CudnnGraph::index(std::int64_t axis, Tensor like, Tensor y) {
  const auto at = [this](Tensor of) { return x_tensors[static_cast<std::size_t>(of - 1)]; };
  const cudnnPointwiseMode_t mode = CUDNN_POINTWISE_GEN_INDEX;
  const cudnnDataType_t precision = CUDNN_DATA_INT32;
  const Descriptor how = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  set(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision);
  set(how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
  close(how, "index");
  const Descriptor out = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  link(out, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  link(out, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, at(like));
  link(out, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, at(y));
  close(out, "index");
  x_operations.push_back(out);
}

void CudnnGraph::reduce(cudnnReduceTensorOp_t op, Tensor x, Tensor y) {
  const auto at = [this](Tensor of) { return x_tensors[static_cast<std::size_t>(of - 1)]; };
  const cudnnDataType_t sums = CUDNN_DATA_FLOAT;
  const Descriptor how = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  set(how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
  set(how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
  close(how, "reduction");
  const Descriptor out = make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  link(out, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
  link(out, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, at(x));
  link(out, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, at(y));
  close(out, "reduction");
  x_operations.push_back(out);
}

void CudnnGraph::turn(Tensor x, Tensor y) {
  const auto at = [this](Tensor of) { return x_tensors[static_cast<std::size_t>(of - 1)]; };
  const Descriptor out = make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  link(out, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, at(x));
  link(out, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, at(y));
  close(out, "reshape");
  x_operations.push_back(out);
}

Status CudnnGraph::finish(cudnnHandle_t handle) {
  x_graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  std::vector<void*> operations;
  for (const Descriptor& one : x_operations) operations.push_back(one.get());
  set(x_graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
      static_cast<std::int64_t>(operations.size()), operations.data());
  if (handle != nullptr) set(x_graph, kGraphHandle, CUDNN_TYPE_HANDLE, 1, &handle);
  close(x_graph, "graph");
  return x_problem.empty() ? ok_status() : Status(input_error(x_problem));
}

Status CudnnGraph::choose(cudnnHandle_t handle) {
  Status done = choose_by(handle, CUDNN_HEUR_MODE_A);
  if (!done.ok()) done = choose_by(handle, CUDNN_HEUR_MODE_FALLBACK);
  return done;
}

/// What the heuristic proposes, best first.
std::vector<CudnnGraph::Descriptor> CudnnGraph::found_by(const Descriptor& heuristic) {
  constexpr std::int64_t kMost = 8;
  std::vector<Descriptor> found;
  std::vector<void*> places;
  for (std::int64_t i = 0; i < kMost; ++i) {
    found.push_back(make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    places.push_back(found.back().get());
  }
  std::int64_t count = 0;
  note(cudnn_api().get_attribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, kMost, &count, places.data()),
       "heuristic");
  found.resize(static_cast<std::size_t>(std::clamp<std::int64_t>(count, 0, kMost)));
  return found;
}

Result<std::int64_t> CudnnGraph::engines(const std::string& device) {
  x_problem.clear();
  const Descriptor properties = make(static_cast<cudnnBackendDescriptorType_t>(kDeviceProperties));
  set(properties, kDevicePropertiesJson, CUDNN_TYPE_CHAR, static_cast<std::int64_t>(device.size()),
      device.data());
  close(properties, "properties of a device");
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  const Descriptor heuristic = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  link(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, x_graph);
  set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  link(heuristic, kHeuristicDevice, properties);
  close(heuristic, "heuristic");
  if (!x_problem.empty()) return input_error(x_problem);
  const std::vector<Descriptor> found = found_by(heuristic);
  if (!x_problem.empty()) return input_error(x_problem);
  return static_cast<std::int64_t>(found.size());
}

Status CudnnGraph::choose_by(cudnnHandle_t handle, cudnnBackendHeurMode_t mode) {
  x_problem.clear();
  const Descriptor heuristic = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  link(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, x_graph);
  set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  close(heuristic, "heuristic");
  if (!x_problem.empty()) return input_error(x_problem);
  const std::vector<Descriptor> found = found_by(heuristic);
  for (const Descriptor& configuration : found) {
    x_problem.clear();
    const Descriptor plan = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(plan, kPlanHandle, CUDNN_TYPE_HANDLE, 1, &handle);
    link(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
    close(plan, "plan");
    if (!x_problem.empty()) continue;
    std::int64_t one = 0;
    note(cudnn_api().get_attribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                   CUDNN_TYPE_INT64, 1, &one, &x_workspace),
         "workspace");
    if (!x_problem.empty()) continue;
    x_plan = plan;
    return ok_status();
  }
  if (x_problem.empty()) x_problem = "cuDNN: no engine runs this graph on this device";
  return input_error(x_problem);
}

Status CudnnGraph::run(cudnnHandle_t handle, const std::map<Tensor, void*>& memory,
                       void* workspace) const {
  std::vector<Tensor> ids;
  std::vector<const void*> places;
  for (const auto& [id, place] : memory) {
    ids.push_back(id);
    places.push_back(place);
  }
  for (const auto& [id, value] : x_constants) {
    ids.push_back(id);
    places.push_back(&value);
  }
  cudnnBackendDescriptor_t pack = nullptr;
  cudnnStatus_t status =
      cudnn_api().create_descriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
  const auto set_pack = [&](cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                            std::size_t count, const void* values) {
    if (status != CUDNN_STATUS_SUCCESS) return;
    status = cudnn_api().set_attribute(pack, name, type, static_cast<std::int64_t>(count), values);
  };
  set_pack(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids.size(), ids.data());
  set_pack(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, places.size(),
           places.data());
  set_pack(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  if (status == CUDNN_STATUS_SUCCESS) status = cudnn_api().finalize(pack);
  if (status == CUDNN_STATUS_SUCCESS) status = cudnn_api().execute(handle, x_plan.get(), pack);
  if (pack != nullptr) cudnn_api().destroy_descriptor(pack);
  if (status == CUDNN_STATUS_SUCCESS) return ok_status();
  return input_error("cuDNN: attention: " + text_of(status));
}

}  // namespace foretrain
