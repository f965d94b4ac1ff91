#include "executor/cuda/cuda_device.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#ifdef FORETRAIN_CUPTI
#include "executor/cuda/activity.h"
#endif
#include "executor/cuda/cuda_check.h"
#ifdef FORETRAIN_CUDNN
#include "executor/cuda/cudnn_attention.h"
#endif
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
  if (!x_session->make_current().ok()) return;
  let_sms_go();
  for (cudaStream_t stream : x_streams) cudaStreamSynchronize(stream);
  // A communicator's end waits for the graphs that have captured its calls.
  destroy_graphs();
  x_nccl.reset();
  x_session->end_step();
  const auto give_back = [this](const std::vector<cudaEvent_t>& events, bool timed) {
    for (cudaEvent_t event : events) {
      if (event != nullptr) x_session->give_back(event, timed);
    }
  };
  give_back(x_marks, true);
  give_back(x_ends, true);
  give_back(x_origin, true);
  give_back(x_orders, false);
  give_back(x_fork, false);
  for (void* block : x_blocks) x_session->give_back(block);
  for (void* block : x_host_blocks) x_session->give_back_host(block);
}

/// Before what may free memory, which waits for all kernels.
void CudaDevice::let_sms_go() {
  if (!x_session->has_holder()) return;
  const auto holder = x_session->holder();
  if (holder.ok()) (void)holder.value()->release();
}

void CudaDevice::destroy_graphs() {
  for (cudaGraphExec_t piece : x_pieces) {
    if (piece != nullptr) cudaGraphExecDestroy(piece);
  }
  x_pieces.clear();
}

Status CudaDevice::open(std::size_t streams, std::size_t marks) {
  FT_TRY(x_session->make_current());
  for (std::size_t s = 0; s < streams; ++s) {
    FT_ASSIGN(const cudaStream_t stream, x_session->stream(s));
    x_streams.push_back(stream);
  }
  x_marks.assign(marks, nullptr);
  x_orders.assign(marks, nullptr);
  x_ends.assign(streams, nullptr);
  x_origin.assign(1, nullptr);
  x_fork.assign(1, nullptr);
  FT_ASSIGN(x_nccl, x_session->groups(x_workload, x_rank, x_transport));
  return ok_status();
}

Result<cudaEvent_t> CudaDevice::event(std::vector<cudaEvent_t>& of, std::size_t number,
                                      bool timed) {
  if (of[number] == nullptr) {
    FT_ASSIGN(of[number], x_session->event(timed));
  }
  return of[number];
}

Status CudaDevice::record_event(std::vector<cudaEvent_t>& of, std::size_t number, bool timed,
                                std::size_t stream) {
  FT_ASSIGN(const cudaEvent_t made, event(of, number, timed));
  return cuda_status(cudaEventRecord(made, x_streams[stream]), "event");
}

Result<std::size_t> CudaDevice::free_bytes() { return x_session->free_bytes(); }

/// Of its own stream alone, as below.
Result<std::byte*> CudaDevice::take(std::size_t bytes) {
  FT_TRY(x_session->make_current());
  FT_ASSIGN(void* const out, x_session->take(bytes));
  x_blocks.push_back(out);
  FT_TRY(cuda_status(cudaMemsetAsync(out, 0, bytes, nullptr), "memory"));
  FT_TRY(cuda_status(cudaStreamSynchronize(nullptr), "memory"));
  return static_cast<std::byte*>(out);
}

Result<std::byte*> CudaDevice::take_host(std::size_t bytes) {
  FT_TRY(x_session->make_current());
  FT_ASSIGN(void* const out, x_session->take_host(bytes));
  x_host_blocks.push_back(out);
  std::memset(out, 0, bytes);
  return static_cast<std::byte*>(out);
}

/// Waits for its own stream alone: others may be waiting for ranks that wait for this one.
Status CudaDevice::write(std::byte* to, const void* from, std::size_t bytes) {
  FT_TRY(x_session->make_current());
  FT_TRY(cuda_status(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copy"));
  return cuda_status(cudaStreamSynchronize(nullptr), "copy");
}

Status CudaDevice::read(void* to, const std::byte* from, std::size_t bytes) {
  FT_TRY(x_session->make_current());
  FT_TRY(finish());
  return cuda_status(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copy");
}

Status CudaDevice::fill_random(std::byte* to, DType type, std::int64_t count,
                               const Content& content) {
  FT_TRY(x_session->make_current());
  x_problem.reset();
  device::fill_on_cuda(nullptr, *this, to, type, count, content);
  if (x_problem) return *x_problem;
  return cuda_status(cudaStreamSynchronize(nullptr), "random content");
}

/// Never for long: where a queue has no room left the host waits for the device.
Status CudaDevice::hold_back() {
  FT_TRY(x_session->make_current());
  if (x_streams.empty()) return ok_status();
  x_go.store(false);
  const auto wait = [](void* of) {
    constexpr auto kLongest = std::chrono::milliseconds(20);
    const auto& go = *static_cast<const std::atomic<bool>*>(of);
    const auto until = std::chrono::steady_clock::now() + kLongest;
    while (!go.load() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  };
  return cuda_status(cudaLaunchHostFunc(x_streams[0], wait, &x_go), "work of the host");
}

Status CudaDevice::begin() {
  FT_TRY(x_session->make_current());
  x_host_work.clear();
  x_in_pieces = false;
  if (x_streams.empty()) return ok_status();
  FT_TRY(record_event(x_origin, 0, true, 0));
  for (cudaStream_t stream : x_streams) {
    FT_TRY(cuda_status(cudaStreamWaitEvent(stream, x_origin[0], 0), "event"));
  }
  return ok_status();
}

Status CudaDevice::end() {
  for (std::size_t s = 0; s < x_streams.size(); ++s) FT_TRY(record_event(x_ends, s, true, s));
  return ok_status();
}

/// In a captured piece an event that is recorded as external takes the time; only another one can
/// order streams.
Status CudaDevice::mark(std::size_t stream, std::size_t mark) {
  if (!x_capturing) return record_event(x_timed ? x_marks : x_orders, mark, x_timed, stream);
  if (x_timed) {
    FT_ASSIGN(const cudaEvent_t timed, event(x_marks, mark, true));
    FT_TRY(cuda_status(cudaEventRecordWithFlags(timed, x_streams[stream], cudaEventRecordExternal),
                       "event of a graph"));
  }
  x_ordered[mark] = true;
  return record_event(x_orders, mark, false, stream);
}

Status CudaDevice::wait(std::size_t stream, std::size_t mark) {
  // Pieces follow each other on one stream: what an earlier one did is over.
  if (x_capturing && !x_ordered[mark]) return ok_status();
  cudaEvent_t event = (x_timed && !x_capturing ? x_marks : x_orders)[mark];
  if (event == nullptr) return input_error("a wait for what is not queued yet");
  return cuda_status(cudaStreamWaitEvent(x_streams[stream], event, 0), "event");
}

Status CudaDevice::begin_piece(std::size_t piece) {
  if (x_pieces.size() <= piece) x_pieces.resize(piece + 1, nullptr);
  x_ordered.assign(x_marks.size(), false);
  x_in_pieces = true;
  // Relaxed: a kernel may still ask for scratch memory.
  FT_TRY(cuda_status(cudaStreamBeginCapture(x_streams[0], cudaStreamCaptureModeRelaxed), "graph"));
  x_capturing = true;
  FT_TRY(record_event(x_fork, 0, false, 0));
  for (std::size_t s = 1; s < x_streams.size(); ++s) {
    FT_TRY(cuda_status(cudaStreamWaitEvent(x_streams[s], x_fork[0], 0), "graph"));
  }
  return ok_status();
}

/// What changes from step to step (the number of the step, the seeds of dropout) is in the kernels'
/// arguments, so every step is captured and updates the graph of the step before.
Status CudaDevice::end_piece(std::size_t piece) {
  for (std::size_t s = 1; s < x_streams.size(); ++s) {
    FT_TRY(record_event(x_fork, 0, false, s));
    FT_TRY(cuda_status(cudaStreamWaitEvent(x_streams[0], x_fork[0], 0), "graph"));
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

/// An event within a graph is waited for by way of the stream that the graph runs on.
Status CudaDevice::wait_on_host(std::size_t mark) {
  if (x_in_pieces) return cuda_status(cudaStreamSynchronize(x_streams[0]), "graph");
  return cuda_status(cudaEventSynchronize((x_timed ? x_marks : x_orders)[mark]), "event");
}

/// Of its own streams: what holds SMs goes on, and memory is given back when it has ended.
Status CudaDevice::finish() {
  for (cudaStream_t stream : x_streams) {
    FT_TRY(cuda_status(cudaStreamSynchronize(stream), "step"));
  }
  x_session->end_step();
  return ok_status();
}

/// Graphs first, as above. A capture that an error left open ends with it.
void CudaDevice::abandon() {
  let_sms_go();
  if (x_capturing) {
    cudaGraph_t graph = nullptr;
    (void)cudaStreamEndCapture(x_streams[0], &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    x_capturing = false;
  }
  destroy_graphs();
  if (x_nccl != nullptr) x_nccl->abort();
  (void)cudaGetLastError();
}

Status CudaDevice::hold_sms(int sms, bool copies) {
  FT_TRY(x_session->make_current());
  FT_ASSIGN(SmHolder* const holder, x_session->holder());
  return holder->hold(sms, copies);
}

Result<double> CudaDevice::release_sms() {
  if (!x_session->has_holder()) return 0.0;
  FT_ASSIGN(SmHolder* const holder, x_session->holder());
  Result<double> out = holder->release();
  x_session->end_step();
  return out;
}

Result<Time> CudaDevice::since_origin(cudaEvent_t event) const {
  float milliseconds = 0;
  FT_TRY(cuda_status(cudaEventElapsedTime(&milliseconds, x_origin[0], event), "time"));
  return Time{std::llround(static_cast<double>(milliseconds) * 1e9)};
}

Result<Time> CudaDevice::time_of(std::size_t mark) { return since_origin(x_marks[mark]); }

Result<Time> CudaDevice::step_time() {
  Time out;
  for (cudaEvent_t end : x_ends) {
    FT_ASSIGN(const Time time, since_origin(end));
    out = max(out, time);
  }
  return out;
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
  FT_ASSIGN(Cudnn* const cudnn, x_session->cudnn());
  FT_ASSIGN(const CudnnAttention* const made, cudnn->attention(work));
  void* const memory = scratch(stream, kOfAttention, Cudnn::scratch_bytes(*made));
  if (memory == nullptr) return *x_problem;
  return cudnn->run(work, *made, x, memory, x_streams[stream]);
}
#else
Status CudaDevice::cudnn_attention(std::size_t, const Attention&, const DeviceOperands&) {
  FT_TRY(x_session->cudnn());
  return ok_status();
}
#endif

Status CudaDevice::collectives(std::size_t stream, GroupId group,
                               std::span<const DeviceCollective> calls) {
  return x_nccl->collectives(group, calls, x_streams[stream]);
}

Status CudaDevice::exchange(std::size_t stream, std::span<const MessageCall> messages) {
  return x_nccl->exchange(messages, x_streams[stream]);
}

/// None, and the problem is noted, where there is an error.
template <typename T>
T* CudaDevice::got(Result<T*> result) {
  if (result.ok()) return result.value();
  fail(result.error());
  return nullptr;
}

void* CudaDevice::scratch(std::size_t stream, int which, std::size_t bytes) {
  return got(x_session->scratch(stream, which, bytes));
}

const float* CudaDevice::rope_table(std::int64_t length, std::int64_t head_dim) {
  return got(x_session->rope_table(length, head_dim));
}

void CudaDevice::product(cudaStream_t stream, std::size_t index, const Product& asked) {
  constexpr int kOfProducts = 2;
  void* const workspace = scratch(index, kOfProducts, Blas::kWorkspace);
  if (workspace == nullptr) return;
  Product product = asked;
  if (product.in == DType::kFp8) {
    product.scale_a = product.scale_b = got(x_session->one());
    if (product.scale_a == nullptr) return;
  }
  Status done = x_session->blas().multiply(product, workspace, stream);
  if (!done.ok() && product.bias != nullptr && product.ldc == product.n) {
    Product plain = product;
    plain.bias = nullptr;
    done = x_session->blas().multiply(plain, workspace, stream);
    if (done.ok()) device::add_bias_on_cuda(stream, index, *this, product);
  }
  if (!done.ok()) fail(done.error());
}

void CudaDevice::fail(const std::string& what) { fail(input_error(what)); }

void CudaDevice::fail(const Error& what) {
  if (!x_problem) x_problem = what;
}

}  // namespace foretrain
