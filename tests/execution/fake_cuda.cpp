#include "tests/execution/fake_cuda.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "executor/cuda/hold_launch.h"

namespace foretrain::fake {

/// How many works of each stream come before.
using Clock = std::map<const CUstream_st*, std::size_t>;

static void join(Clock& clock, const Clock& other) {
  for (const auto& [stream, count] : other) clock[stream] = std::max(clock[stream], count);
}

struct Capture {
  std::vector<std::function<void()>> works;
  std::vector<const void*> communicators;
  std::vector<CUstream_st*> streams;
  bool over = false;
};

namespace {

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t said(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void refer(const std::vector<const void*>& communicators, int more) {
  const std::lock_guard lock(state().mutex);
  for (const void* communicator : communicators) state().graphs_with[communicator] += more;
}

}  // namespace

State& state() {
  static State only;
  return only;
}

void count(const char* call) {
  const std::lock_guard lock(state().mutex);
  ++state().calls[call];
}

void lives(const char* what, int more) {
  const std::lock_guard lock(state().mutex);
  state().alive[what] += more;
}

void fault(const std::string& what) {
  const std::lock_guard lock(state().mutex);
  state().faults.push_back(what);
}

}  // namespace foretrain::fake

namespace fake = foretrain::fake;

struct CUstream_st {
  int device = 0;
  std::shared_ptr<fake::Capture> capture;
  fake::Clock clock;
  foretrain::device::HoldFlags* hold = nullptr;
  int held = 0;
};
struct CUevent_st {
  bool timed = true;
  std::int64_t time = -1;
  std::shared_ptr<fake::Capture> capture;  ///< that it was recorded in
  fake::Clock clock;
};
struct CUgraph_st {
  std::shared_ptr<fake::Capture> content;
};
struct CUgraphExec_st {
  std::shared_ptr<fake::Capture> content;
};

namespace foretrain::fake {
namespace {

std::int64_t next_time() {
  const std::lock_guard lock(state().mutex);
  return ++state().now;
}

cudaError_t allocate(void** out, std::size_t bytes, int device) {
  const std::lock_guard lock(state().mutex);
  if (device >= 0 && state().used[device] + bytes > state().memory) {
    return said(cudaErrorMemoryAllocation);
  }
  *out = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*out, 0xfe, bytes);  // NaN, in any type
  if (device >= 0) state().used[device] += bytes;
  state().blocks[*out] = {device, bytes};
  return cudaSuccess;
}

cudaError_t release(void* block) {
  const std::lock_guard lock(state().mutex);
  const auto found = state().blocks.find(block);
  if (found == state().blocks.end()) {
    state().faults.emplace_back("memory freed that was not taken");
    return said(cudaErrorInvalidValue);
  }
  if (found->second.first >= 0 && state().holding > 0) {
    state().faults.emplace_back("memory freed while SMs are held, which waits for what holds them");
  }
  if (found->second.first >= 0) state().used[found->second.first] -= found->second.second;
  state().blocks.erase(found);
  std::free(block);
  return cudaSuccess;
}

}  // namespace

void enqueue(cudaStream_t stream, std::function<void()> work, const void* communicator) {
  if (stream == nullptr || stream->capture == nullptr) return work();
  stream->capture->works.push_back(std::move(work));
  if (communicator != nullptr) stream->capture->communicators.push_back(communicator);
  ++stream->clock[stream];
}

}  // namespace foretrain::fake

namespace foretrain::device {

/// Holds until it is told to stop; a stream that is waited for before would take ten seconds.
cudaError_t launch_hold(cudaStream_t stream, const HoldCopy& copy, HoldFlags* flags, int blocks,
                        int, std::uint64_t) {
  for (int b = 0; b < blocks; ++b) {
    flags->running.at(static_cast<std::size_t>(b)) = 1;
    flags->moved.at(static_cast<std::size_t>(b)) = copy.words > 0 ? 3000 : 0;
  }
  if (stream->hold == nullptr) {
    const std::lock_guard lock(fake::state().mutex);
    ++fake::state().holding;
  }
  stream->hold = flags;
  stream->held = blocks;
  return cudaSuccess;
}

}  // namespace foretrain::device

// NOLINTBEGIN(readability-identifier-naming): the library's names
extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = fake::state().devices;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= fake::state().devices) return fake::said(cudaErrorInvalidDevice);
  fake::current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = fake::current_device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int) {
  *out = {};
  std::strcpy(out->name, "Fake");
  out->multiProcessorCount = 132;
  out->l2CacheSize = 1 << 20;
  out->major = 9;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* out, int, int) {
  std::strcpy(out, "0000:00:00.0");
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* out, cudaDeviceAttr which, int) {
  *out = which == cudaDevAttrMultiProcessorCount ? 132 : 227 << 10;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorOfTheFake";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "refused";
}
cudaError_t cudaGetLastError() { return std::exchange(fake::last_error, cudaSuccess); }

cudaError_t cudaMalloc(void** out, std::size_t bytes) {
  fake::count("cudaMalloc");
  return fake::allocate(out, bytes, fake::current_device);
}
cudaError_t cudaFree(void* block) { return fake::release(block); }
cudaError_t cudaMallocHost(void** out, std::size_t bytes) {
  fake::count("cudaMallocHost");
  return fake::allocate(out, bytes, -1);
}
cudaError_t cudaHostAlloc(void** out, std::size_t bytes, unsigned) {
  return fake::allocate(out, bytes, -1);
}
cudaError_t cudaFreeHost(void* block) { return fake::release(block); }
cudaError_t cudaHostGetDevicePointer(void** out, void* host, unsigned) {
  *out = host;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const std::lock_guard lock(fake::state().mutex);
  *total = fake::state().memory;
  *free = *total - fake::state().used[fake::current_device];
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  fake::enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  fake::enqueue(stream, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t work, void* of) {
  fake::enqueue(stream, [=] { work(of); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) {
  fake::lives("streams", 1);
  fake::count("cudaStreamCreateWithFlags");
  *out = new CUstream_st{fake::current_device, nullptr, {}};
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  fake::lives("streams", -1);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream == nullptr) return cudaSuccess;
  if (stream->capture != nullptr) return fake::said(cudaErrorStreamCaptureUnsupported);
  if (stream->hold == nullptr) return cudaSuccess;
  if (stream->hold->stop == 0) fake::fault("waits for what holds SMs and was not told to stop");
  for (int b = 0; b < stream->held; ++b) stream->hold->ran_ns[static_cast<std::size_t>(b)] = 1000;
  stream->hold = nullptr;
  const std::lock_guard lock(fake::state().mutex);
  --fake::state().holding;
  return cudaSuccess;
}
/// Another stream's capture takes this one in; what lies outside of it cannot be waited for.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (stream->device < 0) return fake::said(cudaErrorInvalidResourceHandle);
  const bool captured = event->capture != nullptr && !event->capture->over;
  if (event->capture != nullptr && !captured) return fake::said(cudaErrorCapturedEvent);
  if (!captured && stream->capture == nullptr) return cudaSuccess;
  if (!captured || (stream->capture != nullptr && stream->capture != event->capture)) {
    return fake::said(cudaErrorStreamCaptureIsolation);
  }
  if (stream->capture == nullptr) {
    stream->capture = event->capture;
    stream->clock.clear();
    stream->capture->streams.push_back(stream);
  }
  fake::join(stream->clock, event->clock);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
  fake::lives("events", 1);
  fake::count("cudaEventCreateWithFlags");
  *out = new CUevent_st{(flags & cudaEventDisableTiming) == 0, -1, nullptr, {}};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  fake::lives("events", -1);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->capture = stream->capture;
  event->clock = stream->clock;
  if (stream->capture != nullptr) return cudaSuccess;
  event->time = fake::next_time();
  fake::count(event->timed ? "timed records" : "records without time");
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  if (flags != cudaEventRecordExternal || stream->capture == nullptr) {
    return fake::said(cudaErrorInvalidValue);
  }
  event->capture = nullptr;
  fake::enqueue(stream, [event] {
    event->time = fake::next_time();
    fake::count("timed records");
  });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->capture != nullptr) return fake::said(cudaErrorCapturedEvent);
  return event->time < 0 ? fake::said(cudaErrorInvalidResourceHandle) : cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* out, cudaEvent_t from, cudaEvent_t to) {
  if (!from->timed || !to->timed || from->time < 0 || to->time < 0) {
    return fake::said(cudaErrorInvalidResourceHandle);
  }
  *out = static_cast<float>(to->time - from->time);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream->capture != nullptr) return fake::said(cudaErrorIllegalState);
  stream->capture = std::make_shared<fake::Capture>();
  stream->capture->streams.push_back(stream);
  stream->clock.clear();
  return cudaSuccess;
}
/// All that was captured must come before what the stream does next.
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* out) {
  const std::shared_ptr<fake::Capture> capture = stream->capture;
  *out = nullptr;
  if (capture == nullptr) return fake::said(cudaErrorIllegalState);
  bool joined = true;
  for (CUstream_st* other : capture->streams) {
    joined = joined && stream->clock[other] == other->clock[other];
  }
  for (CUstream_st* other : capture->streams) other->capture = nullptr;
  capture->over = true;
  if (!joined) return fake::said(cudaErrorStreamCaptureUnjoined);
  fake::lives("graphs", 1);
  fake::refer(capture->communicators, 1);
  *out = new CUgraph_st{capture};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  fake::lives("graphs", -1);
  fake::refer(graph->content->communicators, -1);
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
  fake::count("cudaGraphInstantiate");
  fake::lives("graphs", 1);
  fake::refer(graph->content->communicators, 1);
  *out = new CUgraphExec_st{graph->content};
  return cudaSuccess;
}
/// Only of as many works as before.
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo*) {
  if (exec->content->works.size() != graph->content->works.size()) {
    return fake::said(cudaErrorGraphExecUpdateFailure);
  }
  fake::refer(graph->content->communicators, 1);
  fake::refer(exec->content->communicators, -1);
  exec->content = graph->content;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (stream->capture != nullptr) return fake::said(cudaErrorStreamCaptureUnsupported);
  fake::count("cudaGraphLaunch");
  for (const auto& work : exec->content->works) work();
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  fake::lives("graphs", -1);
  fake::refer(exec->content->communicators, -1);
  delete exec;
  return cudaSuccess;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
