// Memory of a Program, from its allocations and frees in issue order (what a caching allocator
// sees: the host allocates and frees as it issues, whatever the streams are doing). Left out:
// rounding, fragmentation, and what frameworks and libraries take beside tensors.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "sim/program/program.h"
#include "sim/program/rounds.h"

namespace foretrain {

using BytesByKind = std::array<Bytes, static_cast<std::size_t>(BufferKind::kCount)>;

struct MemoryPeak {
  Bytes bytes = 0;
  BytesByKind by_kind{};            ///< at the moment of the peak
  std::int32_t call = -1, op = -1;  ///< where it is reached; -1: from the start
  Bytes saved = 0;       ///< most bytes of buffers kept from forward to backward, at any moment
  Bytes persistent = 0;  ///< parameters, gradients, optimizer states: live throughout
};

/// Whether every round leaves as many bytes of each kind, wherever they lie, as it found.
bool keeps_level(const Program& program, const Rounds& rounds);

/// Whether both allocate and free the same buffers, call by call, and record and wait for the same
/// events: they may differ in names, layers, and what is computed.
bool same_memory(const Program& a, const Program& b);

/// One walk over the Program; of what lives in `where`.
MemoryPeak memory_peak(const Program& program, Memory where = Memory::kDevice);

/// Change of live bytes by one op: before it runs and after.
struct MemoryChange {
  std::int32_t call = 0, op = 0;
  BufferKind kind = BufferKind::kActivations;
  Bytes bytes = 0;  ///< negative: freed
};
/// Visits all changes of the device's memory in issue order; persistent buffers are not among them.
void each_memory_change(const Program& program,
                        const std::function<void(const MemoryChange&)>& visit);
std::vector<MemoryChange> memory_changes(const Program& program);

/// Bytes of the persistent buffers by kind.
BytesByKind persistent_bytes(const Program& program, Memory where = Memory::kDevice);

}  // namespace foretrain
