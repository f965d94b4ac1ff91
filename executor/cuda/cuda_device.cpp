#include "executor/cuda/cuda_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#ifdef FORETRAIN_CUPTI
#include "executor/cuda/activity.h"
#endif
#include "executor/cuda/cuda_check.h"
#ifdef FORETRAIN_CUDNN
#include "executor/cuda/cudnn_attention.h"
#endif
#include "executor/cuda/rope_table.h"
#include "executor/cuda/sm_holder.h"

namespace foretrain {
Result<int> count_cuda_devices() {
  int count = 0;  // not written on errors
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  int driver = 0;
  int runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const auto version = [](int v) {
    return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10);
  };
  if (driver == 0) {
    return input_error("no CUDA driver here (" + std::string(cudaGetErrorName(error)) +
                       "): install NVIDIA's");
  }
  if (error == cudaErrorInsufficientDriver) {
    return input_error("the CUDA driver serves CUDA " + version(driver) + ", this build needs " +
                       version(runtime) + ": install a newer driver");
  }
  return input_error("no CUDA device here (" + std::string(cudaGetErrorName(error)) +
                     ", driver for CUDA " + version(driver) + ")");
}

CudaDevice::~CudaDevice() {
  cudaSetDevice(x_number);
  x_holder.reset();
  cudaDeviceSynchronize();
  x_nccl.reset();
  x_blas.reset();
  x_cudnn.reset();
  for (cudaGraphExec_t piece : x_pieces) {
    if (piece != nullptr) cudaGraphExecDestroy(piece);
  }
  for (cudaEvent_t event : x_marks) cudaEventDestroy(event);
  for (cudaEvent_t event : x_orders) cudaEventDestroy(event);
  if (x_fork != nullptr) cudaEventDestroy(x_fork);
  if (x_origin != nullptr) cudaEventDestroy(x_origin);
  for (cudaStream_t stream : x_streams) cudaStreamDestroy(stream);
  for (void* block : x_blocks) cudaFree(block);
  for (void* block : x_host_blocks) cudaFreeHost(block);
}

Status CudaDevice::open(std::size_t streams, std::size_t marks) {
  FT_TRY(cuda_status(cudaSetDevice(x_number), "device"));
  x_streams.assign(streams, nullptr);
  for (cudaStream_t& stream : x_streams) {
    FT_TRY(cuda_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream"));
  }
  FT_TRY(cuda_status(cudaEventCreate(&x_origin), "event"));
  x_marks.reserve(marks);
  while (x_marks.size() < marks) {
    cudaEvent_t event = nullptr;
    FT_TRY(cuda_status(cudaEventCreate(&event), "event"));
    x_marks.push_back(event);
  }
  FT_ASSIGN(x_blas, Blas::create());
  FT_ASSIGN(x_nccl, NcclGroups::create(x_workload, x_rank, x_transport));
  return ok_status();
}

Result<std::size_t> CudaDevice::free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  FT_TRY(cuda_status(cudaMemGetInfo(&free, &total), "free memory"));
  return free;
}

Result<std::byte*> CudaDevice::take(std::size_t bytes) {
  void* out = nullptr;
  FT_TRY(cuda_status(cudaMalloc(&out, std::max<std::size_t>(bytes, 1)), "memory"));
  x_blocks.push_back(out);
  FT_TRY(cuda_status(cudaMemset(out, 0, bytes), "memory"));
  FT_TRY(cuda_status(cudaDeviceSynchronize(), "memory"));
  return static_cast<std::byte*>(out);
}

Result<std::byte*> CudaDevice::take_host(std::size_t bytes) {
  void* out = nullptr;
  FT_TRY(cuda_status(cudaMallocHost(&out, bytes), "memory of the host"));
  x_host_blocks.push_back(out);
  std::memset(out, 0, bytes);
  return static_cast<std::byte*>(out);
}

/// Waits for its own stream alone: others may be waiting for ranks that wait for this one.
Status CudaDevice::write(std::byte* to, const void* from, std::size_t bytes) {
  FT_TRY(cuda_status(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copy"));
  return cuda_status(cudaStreamSynchronize(nullptr), "copy");
}

Status CudaDevice::read(void* to, const std::byte* from, std::size_t bytes) {
  FT_TRY(cuda_status(cudaDeviceSynchronize(), "copy"));
  return cuda_status(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copy");
}

Status CudaDevice::fill_random(std::byte* to, DType type, std::int64_t count, const Fill& fill) {
  x_problem.reset();
  device::fill_on_cuda(nullptr, *this, to, type, count, fill);
  if (x_problem) return *x_problem;
  return cuda_status(cudaStreamSynchronize(nullptr), "random content");
}

Status CudaDevice::begin() {
  FT_TRY(cuda_status(cudaSetDevice(x_number), "device"));
  x_host_work.clear();
  if (x_streams.empty()) return ok_status();
  FT_TRY(cuda_status(cudaEventRecord(x_origin, x_streams[0]), "event"));
  for (cudaStream_t stream : x_streams) {
    FT_TRY(cuda_status(cudaStreamWaitEvent(stream, x_origin, 0), "event"));
  }
  return ok_status();
}

/// In a captured piece an event that is recorded as external takes the time; only another one can
/// order streams.
Status CudaDevice::mark(std::size_t stream, std::size_t mark) {
  if (!x_capturing) return cuda_status(cudaEventRecord(x_marks[mark], x_streams[stream]), "event");
  FT_TRY(cuda_status(
      cudaEventRecordWithFlags(x_marks[mark], x_streams[stream], cudaEventRecordExternal),
      "event of a graph"));
  x_ordered[mark] = true;
  return cuda_status(cudaEventRecord(x_orders[mark], x_streams[stream]), "event of a graph");
}

Status CudaDevice::wait(std::size_t stream, std::size_t mark) {
  if (!x_capturing) {
    return cuda_status(cudaStreamWaitEvent(x_streams[stream], x_marks[mark], 0), "event");
  }
  // Pieces follow each other on one stream: what an earlier one did is over.
  if (!x_ordered[mark]) return ok_status();
  return cuda_status(cudaStreamWaitEvent(x_streams[stream], x_orders[mark], 0), "event of a graph");
}

Status CudaDevice::begin_piece(std::size_t piece) {
  if (x_fork == nullptr) {
    FT_TRY(cuda_status(cudaEventCreateWithFlags(&x_fork, cudaEventDisableTiming), "event"));
  }
  while (x_orders.size() < x_marks.size()) {
    cudaEvent_t event = nullptr;
    FT_TRY(cuda_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event"));
    x_orders.push_back(event);
  }
  if (x_pieces.size() <= piece) x_pieces.resize(piece + 1, nullptr);
  x_ordered.assign(x_marks.size(), false);
  // Relaxed: a kernel may still ask for scratch memory.
  FT_TRY(cuda_status(cudaStreamBeginCapture(x_streams[0], cudaStreamCaptureModeRelaxed), "graph"));
  x_capturing = true;
  FT_TRY(cuda_status(cudaEventRecord(x_fork, x_streams[0]), "graph"));
  for (std::size_t s = 1; s < x_streams.size(); ++s) {
    FT_TRY(cuda_status(cudaStreamWaitEvent(x_streams[s], x_fork, 0), "graph"));
  }
  return ok_status();
}

/// What changes from step to step (the number of the step, the seeds of dropout) is in the kernels'
/// arguments, so every step is captured and updates the graph of the step before.
Status CudaDevice::end_piece(std::size_t piece) {
  for (std::size_t s = 1; s < x_streams.size(); ++s) {
    FT_TRY(cuda_status(cudaEventRecord(x_fork, x_streams[s]), "graph"));
    FT_TRY(cuda_status(cudaStreamWaitEvent(x_streams[0], x_fork, 0), "graph"));
  }
  x_capturing = false;
  cudaGraph_t graph = nullptr;
  FT_TRY(cuda_status(cudaStreamEndCapture(x_streams[0], &graph), "graph"));
  cudaGraphExec_t& made = x_pieces[piece];
  if (made != nullptr) {
    cudaGraphExecUpdateResultInfo info{};
    if (cudaGraphExecUpdate(made, graph, &info) != cudaSuccess) {
      (void)cudaGetLastError();
      FT_TRY(cuda_status(cudaGraphExecDestroy(made), "graph"));
      made = nullptr;
    }
  }
  Status done = ok_status();
  if (made == nullptr) done = cuda_status(cudaGraphInstantiate(&made, graph, 0), "graph");
  cudaGraphDestroy(graph);
  FT_TRY(done);
  return cuda_status(cudaGraphLaunch(made, x_streams[0]), "graph");
}

Status CudaDevice::wait_on_host(std::size_t mark) {
  return cuda_status(cudaEventSynchronize(x_marks[mark]), "event");
}

/// Of its own streams: what holds SMs goes on.
Status CudaDevice::finish() {
  for (cudaStream_t stream : x_streams) {
    FT_TRY(cuda_status(cudaStreamSynchronize(stream), "step"));
  }
  return ok_status();
}

Status CudaDevice::hold_sms(int sms, bool copies) {
  if (x_holder == nullptr) {
    FT_ASSIGN(x_holder, SmHolder::create());
  }
  return x_holder->hold(sms, copies);
}

Result<double> CudaDevice::release_sms() {
  if (x_holder == nullptr) return 0.0;
  return x_holder->release();
}

Result<Time> CudaDevice::time_of(std::size_t mark) {
  float milliseconds = 0;
  FT_TRY(cuda_status(cudaEventElapsedTime(&milliseconds, x_origin, x_marks[mark]), "time"));
  return Time{std::llround(static_cast<double>(milliseconds) * 1e9)};
}

#ifdef FORETRAIN_CUPTI
void CudaDevice::record(bool on) { collect_activity(on); }
void CudaDevice::begin_op(std::size_t op) { begin_activity(x_rank.value, op); }
void CudaDevice::end_op() { end_activity(); }
std::vector<Time> CudaDevice::busy_times(std::size_t ops) {
  return take_activity(x_rank.value, ops);
}
#else
void CudaDevice::record(bool) {}
void CudaDevice::begin_op(std::size_t) {}
void CudaDevice::end_op() {}
std::vector<Time> CudaDevice::busy_times(std::size_t) { return {}; }
#endif

Status CudaDevice::copy(std::size_t stream, std::byte* to, const std::byte* from,
                        std::size_t bytes) {
  return cuda_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, x_streams[stream]),
                     "copy");
}

/// What it does stays until the step has ended: a graph calls it then.
Status CudaDevice::on_host(std::size_t stream, std::function<void()> work) {
  x_host_work.push_back(std::move(work));
  const auto call = [](void* what) { (*static_cast<std::function<void()>*>(what))(); };
  return cuda_status(cudaLaunchHostFunc(x_streams[stream], call, &x_host_work.back()),
                     "work of the host");
}

Status CudaDevice::fill(std::size_t stream, std::byte* to, int byte, std::size_t bytes) {
  return cuda_status(cudaMemsetAsync(to, byte, bytes, x_streams[stream]), "fill");
}

Status CudaDevice::compute(std::size_t stream, const Work& work, const OpContext& context,
                           const DeviceOperands& x) {
  x_problem.reset();
  const auto* attention = std::get_if<Attention>(&work);
  if (attention != nullptr && attention->kernel == AttentionKernel::kCudnn) {
    return cudnn_attention(stream, *attention, x);
  }
  device::compute_on_cuda(x_streams[stream], stream, *this, work, context, x);
  return x_problem ? Status(*x_problem) : ok_status();
}

#ifdef FORETRAIN_CUDNN
Status CudaDevice::cudnn_attention(std::size_t stream, const Attention& work,
                                   const DeviceOperands& x) {
  constexpr int kOfAttention = 3;
  if (x_cudnn == nullptr) {
    FT_ASSIGN(x_cudnn, Cudnn::create());
  }
  FT_ASSIGN(const CudnnAttention* const made, x_cudnn->attention(work));
  void* const memory = scratch(stream, kOfAttention, Cudnn::scratch_bytes(*made));
  if (memory == nullptr) return *x_problem;
  return x_cudnn->run(work, *made, x, memory, x_streams[stream]);
}
#else
Status CudaDevice::cudnn_attention(std::size_t, const Attention&, const DeviceOperands&) {
  return unsupported("this build has no cuDNN: set kernels.attention to flash or unfused");
}
#endif

Status CudaDevice::collectives(std::size_t stream, GroupId group,
                               std::span<const DeviceCollective> calls) {
  return x_nccl->collectives(group, calls, x_streams[stream]);
}

Status CudaDevice::exchange(std::size_t stream, std::span<const MessageCall> messages) {
  return x_nccl->exchange(messages, x_streams[stream]);
}

/// Grows; the old block stays until the end, what is queued may still use it.
void* CudaDevice::scratch(std::size_t stream, int which, std::size_t bytes) {
  Scratch& own = x_scratch[{stream, which}];
  if (own.bytes >= bytes) return own.data;
  const std::size_t size = std::max(bytes, 2 * own.bytes);
  void* data = nullptr;
  const Status taken = cuda_status(cudaMalloc(&data, size), "scratch memory");
  if (!taken.ok()) {
    fail(taken.error().message);
    return nullptr;
  }
  x_blocks.push_back(data);
  own = {data, size};
  return data;
}

const float* CudaDevice::rope_table(std::int64_t length, std::int64_t head_dim) {
  const float*& known = x_tables[{length, head_dim}];
  if (known != nullptr) return known;
  const std::vector<float> table = make_rope_table(length, head_dim);
  void* data = nullptr;
  const std::size_t bytes = table.size() * sizeof(float);
  const Status taken = cuda_status(cudaMalloc(&data, bytes), "table of rotary positions");
  if (!taken.ok()) {
    fail(taken.error().message);
    return nullptr;
  }
  x_blocks.push_back(data);
  const Status copied = write(static_cast<std::byte*>(data), table.data(), bytes);
  if (!copied.ok()) fail(copied.error().message);
  known = static_cast<const float*>(data);
  return known;
}

/// A one in memory of the device.
const float* CudaDevice::one() {
  if (x_one != nullptr) return x_one;
  constexpr float kOne = 1;
  void* data = nullptr;
  const Status taken = cuda_status(cudaMalloc(&data, sizeof kOne), "scale of operands");
  if (!taken.ok()) {
    fail(taken.error());
    return nullptr;
  }
  x_blocks.push_back(data);
  const Status written = write(static_cast<std::byte*>(data), &kOne, sizeof kOne);
  if (!written.ok()) fail(written.error());
  return x_one = static_cast<const float*>(data);
}

void CudaDevice::product(cudaStream_t stream, std::size_t index, const Product& asked) {
  constexpr int kOfProducts = 2;
  void* const workspace = scratch(index, kOfProducts, Blas::kWorkspace);
  if (workspace == nullptr) return;
  Product product = asked;
  if (product.in == DType::kFp8) {
    product.scale_a = product.scale_b = one();
    if (product.scale_a == nullptr) return;
  }
  Status done = x_blas->multiply(product, workspace, stream);
  if (!done.ok() && product.bias != nullptr && product.ldc == product.n) {
    Product plain = product;
    plain.bias = nullptr;
    done = x_blas->multiply(plain, workspace, stream);
    if (done.ok()) device::add_bias_on_cuda(stream, index, *this, product);
  }
  if (!done.ok()) fail(done.error());
}

void CudaDevice::fail(const std::string& what) { fail(input_error(what)); }

void CudaDevice::fail(const Error& what) {
  if (!x_problem) x_problem = what;
}

}  // namespace foretrain
