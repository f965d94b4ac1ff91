// The memory of one rank: where every buffer of its Program lies.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "executor/file_memory.h"
#include "executor/memory_layout.h"
#include "executor/operands.h"
#include "sim/base/result.h"
#include "sim/program/program.h"

namespace foretrain {

/// fp32 buffers are stored as T. What a plan keeps in storage lies in files. Buffers that ops
/// allocate come from a pool; with `poison` they start as NaN (integers: a value that is no token),
/// so that what nothing wrote shows.
template <typename T>
class HostMemory {
 public:
  HostMemory(const Program& program, const std::vector<Place>& places, bool poison);
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  HostMemory(HostMemory&&) = delete;
  HostMemory& operator=(HostMemory&&) = delete;
  ~HostMemory() = default;

  /// Allocates the persistent buffers, zeroed, and draws the parameters.
  Status set_up(std::uint64_t seed);

  Status allocate(const Call& call, const BufferRef& ref);
  void release(const Call& call, const BufferRef& ref);
  Operand at(const Call& call, const View& view) const;

  static std::size_t size_of(const Operand& operand);

  const std::vector<TensorSlice>& slices() const { return x_layout.slices(); }
  /// The first buffer of a frame that owns memory.
  T* values(FrameId frame) const;

 private:
  static std::size_t scale(DType type);
  static std::size_t size_of(const Buffer& buffer);
  std::byte* take(std::size_t bytes);

  const Program& x_program;
  MemoryLayout x_layout;
  bool x_poison;
  std::vector<std::byte*> x_data;  ///< by buffer; none where it is not allocated
  std::mutex x_mutex;              ///< of the pool
  std::multimap<std::size_t, std::byte*> x_free;
  std::vector<std::unique_ptr<std::byte[]>> x_blocks;
  FileMemory x_files;
};

}  // namespace foretrain
