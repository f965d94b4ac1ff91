// Where every buffer of a Program lies: which memory an alias shares, which elements of the model's
// tensors a persistent buffer starts with.
#pragma once

#include <vector>

#include "executor/fill.h"
#include "executor/operands.h"
#include "sim/program/program.h"

namespace foretrain {

/// One slice of a logical tensor in a persistent buffer: its elements [begin, end), row-major, are
/// there, element i at `element` + i.
struct TensorSlice {
  const Tensor* tensor = nullptr;
  std::int32_t layer = -1;
  std::int64_t first_row = 0, first_col = 0, rows = 0, cols = 0;
  FrameId owner;  ///< frame of the buffer that holds it
  std::int64_t element = 0;
  std::int64_t begin = 0, end = 0;
};

/// Buffers are numbered over all frames. The Program must outlive it.
class MemoryLayout {
 public:
  MemoryLayout(const Program& program, std::vector<Place> places);

  std::size_t size() const { return x_buffers.size(); }
  std::size_t index_of(FrameId frame, std::int16_t buffer) const {
    return x_base[frame.index()] + static_cast<std::size_t>(buffer);
  }
  std::size_t index_of(const Call& call, const BufferRef& ref) const {
    return index_of(call.frames[static_cast<std::size_t>(ref.frame)], ref.buffer);
  }
  const Buffer& buffer(std::size_t index) const { return *x_buffers[index]; }
  /// The buffer that owns the memory, and the byte of it where this one begins.
  struct Home {
    std::size_t buffer = 0;
    Bytes offset = 0;
  };
  const Home& home(std::size_t index) const { return x_homes[index]; }
  /// The same of a view.
  Home home(const Call& call, const View& view) const;
  const std::vector<TensorSlice>& slices() const { return x_slices; }

 private:
  void collect_slices();
  void add_slice(const Piece& piece, std::size_t frame, const Home& home);
  void keep_slice(const TensorSlice& slice);

  const Program& x_program;
  std::vector<Place> x_places;
  std::vector<std::size_t> x_base;  ///< by frame
  std::vector<Home> x_homes;
  std::vector<const Buffer*> x_buffers;
  std::vector<TensorSlice> x_slices;
};

/// What a slice starts with; no elements where that is zero.
ParameterDraw draw_of(const TensorSlice& slice, std::uint64_t seed);

}  // namespace foretrain
