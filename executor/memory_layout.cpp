#include "executor/memory_layout.h"

#include <algorithm>
#include <utility>

namespace foretrain {

MemoryLayout::MemoryLayout(const Program& program, std::vector<Place> places)
    : x_program(program), x_places(std::move(places)) {
  std::size_t total = 0;
  for (const Frame& frame : program.frames) {
    x_base.push_back(total);
    total += program.layouts[frame.layout.index()].buffers.size();
  }
  x_homes.resize(total);
  x_buffers.resize(total);
  for (std::size_t f = 0; f < program.frames.size(); ++f) {
    const Frame& frame = program.frames[f];
    Bytes offset = frame.alias_offset;
    const FrameLayout& layout = program.layouts[frame.layout.index()];
    for (std::size_t b = 0; b < layout.buffers.size(); ++b) {
      const std::size_t own = x_base[f] + b;
      x_buffers[own] = &layout.buffers[b];
      x_homes[own] = frame.alias_of.valid()
                         ? Home{index_of(frame.alias_of, frame.alias_buffer), offset}
                         : Home{own, 0};
      offset += layout.buffers[b].bytes();
    }
  }
  collect_slices();
}

MemoryLayout::Home MemoryLayout::home(const Call& call, const View& view) const {
  const FrameId frame = call.frames[static_cast<std::size_t>(view.frame)];
  Home out = x_homes[index_of(frame, view.buffer)];
  out.offset += view.offset;
  if (view.shards > 1) {
    const std::int64_t place = x_places[view.shard_group.index()].index;
    out.offset += view.bytes * ((place + view.shards - view.hops) % view.shards);
  }
  return out;
}

void MemoryLayout::collect_slices() {
  for (std::size_t f = 0; f < x_program.frames.size(); ++f) {
    const FrameLayout& layout = x_program.layouts[x_program.frames[f].layout.index()];
    for (std::size_t b = 0; b < layout.buffers.size(); ++b) {
      const Home& home = x_homes[x_base[f] + b];
      if (!x_buffers[home.buffer]->persistent) continue;  // gathered from where they are kept
      for (const Piece& piece : layout.buffers[b].pieces) add_slice(piece, f, home);
    }
  }
}

void MemoryLayout::add_slice(const Piece& piece, std::size_t f, const Home& home) {
  const auto place = [this](GroupSlot slot) {
    return slot.valid() ? x_places[slot.index()].index : 0;
  };
  const Frame& frame = x_program.frames[f];
  const Buffer& owner = *x_buffers[home.buffer];
  TensorSlice slice;
  slice.tensor = &x_program.tensors[piece.tensor.index()];
  slice.layer = frame.layer + piece.layer;
  slice.rows = piece.row_count;
  slice.cols = piece.col_count;
  const auto first = [](std::int64_t at, const PartOf& part, std::int64_t count) {
    return (at * part.of + part.index) * count;
  };
  slice.first_row = first(place(piece.rows_split_over), piece.row_part, piece.row_count);
  slice.first_col = first(place(piece.cols_split_over), piece.col_part, piece.col_count);
  slice.owner = frame.alias_of.valid() ? frame.alias_of : FrameId(f);
  slice.element = home.offset / bytes_of(owner.dtype, 1) + piece.offset;
  const std::int64_t element = slice.element;
  const std::int64_t own = owner.shards > 1 ? place(owner.shard_group) : 0;
  for (const Buffer::Part& part : owner.parts(own)) {
    slice.element = element - part.first + part.at;
    slice.begin = std::max<std::int64_t>(0, part.at - slice.element);
    slice.end = std::min(slice.rows * slice.cols, part.at + part.count - slice.element);
    if (slice.begin < slice.end) keep_slice(slice);
  }
}

void MemoryLayout::keep_slice(const TensorSlice& slice) {
  // Aliases come and go with the calls that bind them; the first one will do.
  const auto same = [&slice](const TensorSlice& known) {
    return known.owner == slice.owner && known.element == slice.element &&
           known.tensor == slice.tensor && known.begin == slice.begin &&
           known.first_row == slice.first_row && known.first_col == slice.first_col;
  };
  if (std::none_of(x_slices.begin(), x_slices.end(), same)) x_slices.push_back(slice);
}

ParameterDraw draw_of(const TensorSlice& slice, std::uint64_t seed) {
  const Tensor& tensor = *slice.tensor;
  ParameterDraw out;
  if (tensor.init == Init::kZeros) return out;
  out.key = mix(mix(mix(seed, "parameters"), tensor.name),
                static_cast<std::uint64_t>(std::int64_t{slice.layer}));
  out.deviation = tensor.deviation;
  out.init = tensor.init;
  out.at = slice.element + slice.begin;
  out.count = slice.end - slice.begin;
  out.begin = slice.begin;
  out.cols = slice.cols;
  out.first_row = slice.first_row;
  out.first_col = slice.first_col;
  out.rows = tensor.rows;
  out.width = tensor.cols;
  return out;
}

}  // namespace foretrain
