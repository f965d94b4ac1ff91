// The memory of one rank: where every buffer of its Program lies.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "executor/operands.h"
#include "sim/base/result.h"
#include "sim/program/program.h"

namespace foretrain {

/// fp32 buffers are stored as T. Buffers that ops allocate come from a pool; with `poison` they
/// start as NaN (integers: a value that is no token), so that what nothing wrote shows.
template <typename T>
class HostMemory {
 public:
  HostMemory(const Program& program, const std::vector<Place>& places, bool poison);

  /// Allocates the persistent buffers, zeroed, and draws the parameters.
  Status set_up(std::uint64_t seed);

  Status allocate(const Call& call, const BufferRef& ref);
  void release(const Call& call, const BufferRef& ref);
  Operand at(const Call& call, const View& view) const;

  /// One slice of a logical tensor in a persistent buffer.
  struct Slice {
    const Tensor* tensor = nullptr;
    std::int32_t layer = -1;
    std::int64_t first_row = 0, first_col = 0, rows = 0, cols = 0;
    FrameId owner;             ///< frame of the buffer that holds it
    std::int64_t element = 0;  ///< its first element there
  };
  const std::vector<Slice>& slices() const { return x_slices; }
  /// The first buffer of a frame that owns memory.
  T* values(FrameId frame) const;

 private:
  struct Home {
    std::size_t buffer = 0;  ///< index of the buffer that owns the memory
    Bytes offset = 0;        ///< program bytes
  };
  struct Slot {
    const Buffer* buffer = nullptr;
    std::byte* data = nullptr;
  };
  static std::size_t scale(DType type);
  static std::size_t size_of(const Buffer& buffer);
  std::size_t own_index(FrameId frame, std::int16_t buffer) const {
    return x_base[frame.index()] + static_cast<std::size_t>(buffer);
  }
  std::byte* take(std::size_t bytes);
  void draw(const Slice& slice, std::uint64_t seed);
  void collect_slices();

  const Program& x_program;
  const std::vector<Place>& x_places;
  bool x_poison;
  std::vector<std::size_t> x_base;  ///< by frame
  std::vector<Home> x_homes;        ///< by frame and buffer
  std::vector<Slot> x_slots;
  std::vector<Slice> x_slices;
  std::mutex x_mutex;  ///< of the pool
  std::multimap<std::size_t, std::byte*> x_free;
  std::vector<std::unique_ptr<std::byte[]>> x_blocks;
};

}  // namespace foretrain
