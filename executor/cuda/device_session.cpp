#include "executor/cuda/device_session.h"

#include <algorithm>
#include <string>

#include "executor/cuda/cuda_check.h"
#ifdef FORETRAIN_CUDNN
#include "executor/cuda/cudnn_attention.h"
#endif
#include "executor/cuda/rope_table.h"
#include "executor/cuda/sm_holder.h"

namespace foretrain {
namespace {

constexpr std::size_t kMostFreeOfHost = std::size_t{1} << 30;

/// The launch of a kernel must not find the error of an allocation.
void* given(cudaError_t error, void* block, cudaError_t& refused) {
  if (error == cudaSuccess) return block;
  (void)cudaGetLastError();
  refused = error;
  return nullptr;
}

/// kUnsupported where the device is too small.
Error too_much(cudaError_t refused, const char* what) {
  Error out = cuda_status(refused, what).error();
  if (refused == cudaErrorMemoryAllocation) out.kind = ErrorKind::kUnsupported;
  return out;
}

}  // namespace

DeviceSession::DeviceSession(int number, std::size_t most_free)
    : x_number(number),
      x_blocks(
          [this](std::size_t bytes) {
            void* out = nullptr;
            const cudaError_t error = cudaMalloc(&out, bytes);
            return given(error, out, x_refused);
          },
          [](void* block) { cudaFree(block); }, most_free),
      x_host_blocks(
          [this](std::size_t bytes) {
            void* out = nullptr;
            const cudaError_t error = cudaMallocHost(&out, bytes);
            return given(error, out, x_refused);
          },
          [](void* block) { cudaFreeHost(block); }, kMostFreeOfHost) {}

/// A quarter of the memory may lie unused: libraries take theirs by themselves.
Result<std::shared_ptr<DeviceSession>> DeviceSession::create(int number) {
  FT_TRY(cuda_status(cudaSetDevice(number), "device"));
  std::size_t free = 0;
  std::size_t total = 0;
  FT_TRY(cuda_status(cudaMemGetInfo(&free, &total), "free memory"));
  std::shared_ptr<DeviceSession> out(new DeviceSession(number, total / 4));
  FT_ASSIGN(out->x_blas, Blas::create());
  return out;
}

DeviceSession::~DeviceSession() {
  cudaSetDevice(x_number);
  x_holder.reset();
  cudaDeviceSynchronize();
  x_worlds.clear();
  x_blas.reset();
  x_cudnn.reset();
  for (const std::vector<cudaEvent_t>& events : x_events) {
    for (cudaEvent_t event : events) cudaEventDestroy(event);
  }
  for (cudaStream_t stream : x_streams) cudaStreamDestroy(stream);
}

Status DeviceSession::make_current() const {
  return cuda_status(cudaSetDevice(x_number), "device");
}

#ifdef FORETRAIN_CUDNN
Result<Cudnn*> DeviceSession::cudnn() {
  if (x_cudnn == nullptr) {
    FT_ASSIGN(x_cudnn, Cudnn::create());
  }
  return x_cudnn.get();
}
#else
Result<Cudnn*> DeviceSession::cudnn() {
  return unsupported("this build has no cuDNN: set kernels.attention to flash or unfused");
}
#endif

Result<SmHolder*> DeviceSession::holder() {
  if (x_holder == nullptr) {
    x_blocks.clear();
    FT_ASSIGN(x_holder, SmHolder::create());
  }
  return x_holder.get();
}

Result<std::size_t> DeviceSession::free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  FT_TRY(cuda_status(cudaMemGetInfo(&free, &total), "free memory"));
  free += x_blocks.free_bytes();
  // As below, these are given up first.
  for (const auto& [place, block] : x_scratch) free += block.bytes;
  if (x_holder != nullptr && !x_holder->holds()) free += SmHolder::memory_bytes();
  return free;
}

/// Where there is no room, what the next step would take again anyhow is given up first.
Result<void*> DeviceSession::take(std::size_t bytes) {
  void* out = x_blocks.take(bytes);
  if (out != nullptr) return out;
  free_scratch();
  if (x_holder != nullptr && !x_holder->holds()) x_holder.reset();
  x_blocks.clear();
  out = x_blocks.take(bytes);
  if (out != nullptr) return out;
  return too_much(x_refused, "memory");
}

void DeviceSession::free_scratch() {
  for (const auto& [place, block] : x_scratch) x_blocks.give_back(block.data);
  x_scratch.clear();
}

Result<void*> DeviceSession::take_host(std::size_t bytes) {
  void* const out = x_host_blocks.take(bytes);
  if (out != nullptr) return out;
  return cuda_status(x_refused, "memory of the host").error();
}

Result<void*> DeviceSession::scratch(std::size_t stream, int which, std::size_t bytes) {
  Scratch& own = x_scratch[{stream, which}];
  if (own.bytes >= bytes && own.data != nullptr) return own.data;
  const std::size_t size = std::max<std::size_t>({bytes, own.bytes + own.bytes / 4, 1});
  void* const data = x_blocks.take(size);
  if (data == nullptr) return too_much(x_refused, "scratch memory");
  if (own.data != nullptr) x_moved.push_back(own.data);
  own = {data, size};
  return data;
}

void DeviceSession::end_step() {
  if (x_holder != nullptr && x_holder->holds()) return;
  for (void* block : x_moved) x_blocks.give_back(block);
  x_moved.clear();
}

/// Waits for its own stream alone: others may be waiting for ranks that wait for this one.
Result<void*> DeviceSession::keep(const void* content, std::size_t bytes, const char* what) {
  void* const out = x_blocks.take(bytes);
  if (out == nullptr) return cuda_status(x_refused, what).error();
  FT_TRY(cuda_status(cudaMemcpy(out, content, bytes, cudaMemcpyHostToDevice), what));
  FT_TRY(cuda_status(cudaStreamSynchronize(nullptr), what));
  return out;
}

Result<const float*> DeviceSession::rope_table(std::int64_t length, std::int64_t head_dim) {
  const float*& known = x_tables[{length, head_dim}];
  if (known == nullptr) {
    const std::vector<float> table = make_rope_table(length, head_dim);
    FT_ASSIGN(void* const made,
              keep(table.data(), table.size() * sizeof(float), "table of rotary positions"));
    known = static_cast<const float*>(made);
  }
  return known;
}

/// A one in memory of the device.
Result<const float*> DeviceSession::one() {
  if (x_one == nullptr) {
    constexpr float kOne = 1;
    FT_ASSIGN(void* const made, keep(&kOne, sizeof kOne, "scale of operands"));
    x_one = static_cast<const float*>(made);
  }
  return x_one;
}

Result<cudaStream_t> DeviceSession::stream(std::size_t index) {
  while (x_streams.size() <= index) {
    cudaStream_t made = nullptr;
    FT_TRY(cuda_status(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "stream"));
    x_streams.push_back(made);
  }
  return x_streams[index];
}

Result<cudaEvent_t> DeviceSession::event(bool timed) {
  std::vector<cudaEvent_t>& unused = x_events[timed ? 1 : 0];
  cudaEvent_t out = nullptr;
  if (unused.empty()) {
    const unsigned flags = timed ? cudaEventDefault : cudaEventDisableTiming;
    FT_TRY(cuda_status(cudaEventCreateWithFlags(&out, flags), "event"));
    return out;
  }
  out = unused.back();
  unused.pop_back();
  return out;
}

Result<std::unique_ptr<NcclGroups>> DeviceSession::groups(const Workload& workload, RankId rank,
                                                          Transport& transport) {
  return NcclGroups::create(workload, rank, transport, x_worlds, [this] { x_blocks.clear(); });
}

Result<std::shared_ptr<DeviceSession>> DeviceSessions::of(int number) {
  const std::lock_guard lock(x_mutex);
  std::shared_ptr<DeviceSession>& session = x_sessions[number];
  if (session == nullptr) {
    FT_ASSIGN(session, DeviceSession::create(number));
  }
  return session;
}

}  // namespace foretrain
