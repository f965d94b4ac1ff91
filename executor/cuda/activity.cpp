#include "executor/cuda/activity.h"

#include <cuda_runtime.h>
#include <cupti.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>

#include "executor/cuda/busy_times.h"
#include "executor/cuda/open_library.h"

namespace foretrain {
namespace {

#if CUDART_VERSION >= 13000
using KernelRecord = CUpti_ActivityKernel10;
using CopyRecord = CUpti_ActivityMemcpy6;
#else
using KernelRecord = CUpti_ActivityKernel9;
using CopyRecord = CUpti_ActivityMemcpy5;
#endif
using FillRecord = CUpti_ActivityMemset4;

/// Launches are tied to ops through the calls of both interfaces: cuBLASLt and NCCL use either.
constexpr std::array kKinds = {CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                               CUPTI_ACTIVITY_KIND_RUNTIME,
                               CUPTI_ACTIVITY_KIND_DRIVER,
                               CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                               CUPTI_ACTIVITY_KIND_MEMCPY,
                               CUPTI_ACTIVITY_KIND_MEMSET};

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;
constexpr std::size_t kAlignment = 8;  // CUPTI's
constexpr int kRankShift = 40;         // ops below, ranks above

/// The functions of the library that is loaded.
struct Cupti {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped = nullptr;
  decltype(&cuptiActivityPushExternalCorrelationId) push = nullptr;
  decltype(&cuptiActivityPopExternalCorrelationId) pop = nullptr;
  decltype(&cuptiGetResultString) text = nullptr;
};

/// What the process has collected and no rank has taken.
struct Collected {
  Cupti cupti;
  bool open = false;
  std::atomic<bool> on{false};
  std::mutex mutex;
  std::vector<Launched> launches;  ///< `op` with the rank above
  std::vector<Ran> ran;
  std::size_t lost = 0;
};
Collected& collected() {
  static Collected only;
  return only;
}

Status load(Cupti& out) {
  const std::string versioned = "libcupti.so." + std::to_string(CUDART_VERSION / 1000);
  FT_ASSIGN(void* const library, open_library({versioned}, library_places()));
  const bool whole =
      find_function(library, "cuptiActivityRegisterCallbacks", out.register_callbacks) &&
      find_function(library, "cuptiActivityEnable", out.enable) &&
      find_function(library, "cuptiActivityDisable", out.disable) &&
      find_function(library, "cuptiActivityFlushAll", out.flush) &&
      find_function(library, "cuptiActivityGetNextRecord", out.next) &&
      find_function(library, "cuptiActivityGetNumDroppedRecords", out.dropped) &&
      find_function(library, "cuptiActivityPushExternalCorrelationId", out.push) &&
      find_function(library, "cuptiActivityPopExternalCorrelationId", out.pop) &&
      find_function(library, "cuptiGetResultString", out.text);
  return whole ? ok_status() : Status(input_error(versioned + " lacks a function"));
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kAlignment, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;
}

template <typename Record>
void note(const CUpti_Activity* record, std::vector<Ran>& out) {
  const auto* r = reinterpret_cast<const Record*>(record);
  out.push_back(
      {r->correlationId, static_cast<std::int64_t>(r->start), static_cast<std::int64_t>(r->end)});
}

void read_record(const CUpti_Activity* record, Collected& out) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return note<KernelRecord>(record, out.ran);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return note<CopyRecord>(record, out.ran);
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return note<FillRecord>(record, out.ran);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
      const auto* r = reinterpret_cast<const CUpti_ActivityExternalCorrelation*>(record);
      out.launches.push_back({r->correlationId, r->externalId});
      return;
    }
    default:
      return;
  }
}

void CUPTIAPI take_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer,
                          std::size_t, std::size_t valid) {
  Collected& out = collected();
  const std::lock_guard lock(out.mutex);
  CUpti_Activity* record = nullptr;
  while (valid > 0 && out.cupti.next(buffer, valid, &record) == CUPTI_SUCCESS) {
    read_record(record, out);
  }
  std::size_t lost = 0;
  if (out.cupti.dropped(context, stream, &lost) == CUPTI_SUCCESS) out.lost += lost;
  std::free(buffer);
}

Status open(Collected& out) {
  FT_TRY(load(out.cupti));
  const auto check = [&out](CUptiResult result, const char* what) {
    if (result == CUPTI_SUCCESS) return ok_status();
    const char* text = nullptr;
    out.cupti.text(result, &text);
    return Status(input_error(std::string(what) + ": " + (text == nullptr ? "unknown" : text)));
  };
  FT_TRY(check(out.cupti.register_callbacks(give_buffer, take_buffer), "its callbacks"));
  for (const CUpti_ActivityKind kind : kKinds) {
    FT_TRY(check(out.cupti.enable(kind), "its records"));
    FT_TRY(check(out.cupti.disable(kind), "its records"));
  }
  out.open = true;
  return ok_status();
}

}  // namespace

Status open_activity() {
  static const Status first = open(collected());
  return first;
}

void collect_activity(bool on) {
  Collected& out = collected();
  if (!out.open || out.on.exchange(on) == on) return;
  for (const CUpti_ActivityKind kind : kKinds) {
    (void)(on ? out.cupti.enable(kind) : out.cupti.disable(kind));
  }
}

void begin_activity(int rank, std::size_t op) {
  Collected& out = collected();
  if (!out.on) return;
  const auto id = (static_cast<std::uint64_t>(rank) << kRankShift) + op;
  out.cupti.push(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, id);
}

void end_activity() {
  Collected& out = collected();
  std::uint64_t id = 0;
  if (out.on) out.cupti.pop(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &id);
}

std::vector<Time> take_activity(int rank, std::size_t ops) {
  Collected& out = collected();
  if (!out.on || out.cupti.flush(0) != CUPTI_SUCCESS) return {};
  const std::lock_guard lock(out.mutex);
  // What runs on behalf of other ranks of this process stays for them.
  const auto own = std::stable_partition(
      out.launches.begin(), out.launches.end(), [rank](const Launched& launch) {
        return launch.op >> kRankShift != static_cast<std::size_t>(rank);
      });
  std::vector<Launched> launches(own, out.launches.end());
  out.launches.erase(own, out.launches.end());
  for (Launched& launch : launches) launch.op &= (std::size_t{1} << kRankShift) - 1;
  std::vector<Time> busy = busy_times(launches, out.ran, ops);
  if (out.launches.empty()) out.ran.clear();
  if (out.lost > 0) busy.clear();
  out.lost = 0;
  return busy;
}

}  // namespace foretrain
