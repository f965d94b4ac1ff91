#include "executor/cuda/sm_holder.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "executor/cuda/cuda_check.h"
#include "executor/cuda/hold_launch.h"

namespace foretrain {
namespace {

constexpr std::int64_t kBytes = std::int64_t{256} << 20;  ///< read, and as many written
constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;
constexpr std::uint64_t kMostNs = 10'000'000'000;
constexpr auto kLongestStart = std::chrono::seconds(2);

/// What the device writes while the host looks.
int seen(int& flag) { return std::atomic_ref<int>(flag).load(std::memory_order_acquire); }
void tell(int& flag, int value) {
  std::atomic_ref<int>(flag).store(value, std::memory_order_release);
}

Status cannot(const Status& status) {
  if (status.ok()) return status;
  return unsupported("SMs cannot be held: " + status.error().message);
}

}  // namespace

Result<std::unique_ptr<SmHolder>> SmHolder::create() {
  std::unique_ptr<SmHolder> out(new SmHolder());
  FT_TRY(cannot(out->open()));
  return out;
}

std::size_t SmHolder::memory_bytes() { return static_cast<std::size_t>(2 * kBytes); }

Status SmHolder::open() {
  int device = 0;
  FT_TRY(cuda_status(cudaGetDevice(&device), "device"));
  FT_TRY(cuda_status(cudaDeviceGetAttribute(&x_sms, cudaDevAttrMultiProcessorCount, device),
                     "number of SMs"));
  FT_TRY(cuda_status(
      cudaDeviceGetAttribute(&x_shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
      "shared memory"));
  FT_TRY(cuda_status(cudaStreamCreateWithFlags(&x_stream, cudaStreamNonBlocking), "stream"));
  FT_TRY(cuda_status(cudaMalloc(&x_memory, 2 * kBytes), "memory to copy"));
  FT_TRY(cuda_status(cudaMemset(x_memory, 1, 2 * kBytes), "memory to copy"));
  void* flags = nullptr;
  FT_TRY(cuda_status(cudaHostAlloc(&flags, sizeof(device::HoldFlags), cudaHostAllocMapped),
                     "flags in memory of the host"));
  x_flags = new (flags) device::HoldFlags();
  void* there = nullptr;
  FT_TRY(cuda_status(cudaHostGetDevicePointer(&there, flags, 0), "flags in memory of the host"));
  x_flags_on_device = static_cast<device::HoldFlags*>(there);
  return ok_status();
}

SmHolder::~SmHolder() {
  if (x_holds) (void)release();
  if (x_stream != nullptr) cudaStreamDestroy(x_stream);
  if (x_flags != nullptr) cudaFreeHost(x_flags);
  if (x_memory != nullptr) cudaFree(x_memory);
}

Status SmHolder::hold(int sms, bool copies) {
  if (x_holds) FT_TRY(release());
  if (sms < 1 || sms >= x_sms || sms > device::kMostHeldSms) {
    return unsupported("of " + std::to_string(x_sms) + " SMs " + std::to_string(sms) +
                       " cannot be held: at least one, at most " +
                       std::to_string(device::kMostHeldSms) + ", and one is left");
  }
  *x_flags = {};
  using Word = device::HoldCopy::Word;
  auto* const words = static_cast<Word*>(x_memory);
  const std::int64_t count = kBytes / static_cast<std::int64_t>(sizeof(Word));
  const device::HoldCopy copy{words, words + count, copies ? count : 0,
                              kChunkBytes / static_cast<std::int64_t>(sizeof(Word))};
  FT_TRY(cannot(cuda_status(
      device::launch_hold(x_stream, copy, x_flags_on_device, sms, x_shared_bytes, kMostNs),
      "kernel that holds SMs")));
  x_holds = true;
  x_held = sms;
  const auto until = std::chrono::steady_clock::now() + kLongestStart;
  const auto first = x_flags->running.begin();
  const auto count_running = [&] { return std::count_if(first, first + sms, seen); };
  while (count_running() < sms) {
    if (std::chrono::steady_clock::now() > until) {
      const auto started = count_running();
      FT_TRY(release());
      return unsupported("of " + std::to_string(sms) + " SMs to hold " + std::to_string(started) +
                         " were free within 2 s: something else runs on the device");
    }
    std::this_thread::yield();
  }
  return ok_status();
}

Result<double> SmHolder::release() {
  if (!x_holds) return 0.0;
  x_holds = false;
  tell(x_flags->stop, 1);
  FT_TRY(cuda_status(cudaStreamSynchronize(x_stream), "end of what holds SMs"));
  if (seen(x_flags->late) == 0) return x_flags->gb_per_s(x_held);
  return input_error("SMs were to be held for longer than 10 s: the step beside them is too long");
}

}  // namespace foretrain
