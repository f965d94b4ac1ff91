// What PyTorch's caching allocator reserves for a Program: its rules of rounding, segments,
// splitting and merging, applied to the Program's allocations and frees in issue order.
#pragma once

#include <vector>

#include "sim/program/program.h"
#include "sim/program/rounds.h"

namespace foretrain {

/// c10/cuda/CUDACachingAllocator.cpp (configs/memory.json, `allocator`).
struct AllocatorRules {
  Bytes round = 512;            ///< sizes are multiples of it
  Bytes small_limit = 1 << 20;  ///< up to here blocks come from small segments
  Bytes small_segment = 2 << 20;
  Bytes middle_limit = 10 << 20;  ///< below, from middle segments
  Bytes middle_segment = 20 << 20;
  Bytes large_round = 2 << 20;  ///< segments of larger blocks are multiples of it
  /// Segments grow at their end (`expandable_segments:True`), by small and middle segments.
  bool expandable = false;
  /// What pools beside compute's hold is free again once the host knows that both streams are
  /// through (`record_stream`): when it has waited for the device (a HostSync, a retry), or holds a
  /// gather back until an earlier pass is over. It is taken to be ahead of the device otherwise.
  bool records_streams = false;
};

/// No segment could be had before cached ones were given back, which waits for the device.
struct AllocatorRetry {
  std::int32_t call = 0;  ///< in which an op allocates
  Bytes given_back = 0;
  bool operator==(const AllocatorRetry&) const = default;
};

struct AllocatorUse {
  Bytes reserved = 0;                   ///< most bytes of segments, torch.cuda.max_memory_reserved
  Bytes allocated = 0;                  ///< most bytes of blocks, rounded
  std::vector<AllocatorRetry> retries;  ///< of the second step, in order (`num_alloc_retries`)
  bool fits = true;                     ///< false: not even then; the walk ends there
  bool known = true;  ///< false: more rounds than were walked, and they have not repeated
};

/// Two steps, so that the second finds what the first left: the persistent buffers, then the
/// Program's own. Segments are had up to `limit` bytes (0: without end). Buffers come from the
/// pool that they name. Left out: blocks of compute's pool that other streams use
/// (`record_stream`), tensors inside operations, `max_split_size_mb`, `roundup_power2_divisions`,
/// where in a free block its pages begin, and that expandable segments prefer holes to their end.
/// With `more` rounds the Program stands for a longer one; calls of retries are its own.
AllocatorUse caching_allocator(const Program& program, const AllocatorRules& rules, Bytes limit,
                               const MoreRounds& more = {});

/// The Program with what its retries cost: before the call in which some take place the host waits
/// once for all streams of the device, then gives memory back and takes it again, `per_gib` of it.
/// Left out: where in the call they take place.
Program with_retries(Program program, const std::vector<AllocatorRetry>& retries, Time per_gib);

}  // namespace foretrain
