#include "executor/host_memory.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "sim/base/check.h"

namespace foretrain {

namespace {

bool is_real(DType type) { return type == DType::kFp32 || type == DType::kTf32; }

}  // namespace

template <typename T>
std::size_t HostMemory<T>::scale(DType type) {
  return is_real(type) ? sizeof(T) / sizeof(float) : 1;
}

template <typename T>
std::size_t HostMemory<T>::size_of(const Buffer& buffer) {
  return static_cast<std::size_t>(buffer.bytes()) * scale(buffer.dtype);
}

template <typename T>
HostMemory<T>::HostMemory(const Program& program, const std::vector<Place>& places, bool poison)
    : x_program(program), x_places(places), x_poison(poison) {
  std::size_t total = 0;
  for (const Frame& frame : program.frames) {
    x_base.push_back(total);
    total += program.layouts[frame.layout.index()].buffers.size();
  }
  x_homes.resize(total);
  x_slots.resize(total);
  for (std::size_t f = 0; f < program.frames.size(); ++f) {
    const Frame& frame = program.frames[f];
    Bytes offset = frame.alias_offset;
    const FrameLayout& layout = program.layouts[frame.layout.index()];
    for (std::size_t b = 0; b < layout.buffers.size(); ++b) {
      const std::size_t own = x_base[f] + b;
      x_slots[own].buffer = &layout.buffers[b];
      x_homes[own] = frame.alias_of.valid()
                         ? Home{own_index(frame.alias_of, frame.alias_buffer), offset}
                         : Home{own, 0};
      offset += layout.buffers[b].bytes();
    }
  }
  collect_slices();
}

template <typename T>
void HostMemory<T>::collect_slices() {
  for (std::size_t f = 0; f < x_program.frames.size(); ++f) {
    const Frame& frame = x_program.frames[f];
    const FrameLayout& layout = x_program.layouts[frame.layout.index()];
    for (std::size_t b = 0; b < layout.buffers.size(); ++b) {
      const Home& home = x_homes[x_base[f] + b];
      for (const Piece& piece : layout.buffers[b].pieces) {
        const auto place = [this](GroupSlot slot) {
          return slot.valid() ? x_places[slot.index()].index : 0;
        };
        Slice slice;
        slice.tensor = &x_program.tensors[piece.tensor.index()];
        slice.layer = frame.layer;
        slice.rows = piece.row_count;
        slice.cols = piece.col_count;
        slice.first_row = place(piece.rows_split_over) * piece.row_count;
        slice.first_col = place(piece.cols_split_over) * piece.col_count;
        slice.owner = frame.alias_of.valid() ? frame.alias_of : FrameId(f);
        slice.element = home.offset / 4 + piece.offset;
        x_slices.push_back(slice);
      }
    }
  }
}

template <typename T>
std::byte* HostMemory<T>::take(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  const std::size_t size = std::max(kPage, (bytes + kPage - 1) / kPage * kPage);
  const std::lock_guard lock(x_mutex);
  const auto found = x_free.lower_bound(size);
  // A block may be up to twice as large as asked for.
  if (found != x_free.end() && found->first <= 2 * size) {
    std::byte* const block = found->second;
    x_free.erase(found);
    return block;
  }
  std::byte* const block = new (std::nothrow) std::byte[size + sizeof(std::size_t)];
  if (block == nullptr) return nullptr;
  x_blocks.emplace_back(block);
  return block;
}

template <typename T>
Status HostMemory<T>::set_up(std::uint64_t seed) {
  for (std::size_t f = 0; f < x_program.frames.size(); ++f) {
    if (x_program.frames[f].alias_of.valid()) continue;
    const FrameLayout& layout = x_program.layouts[x_program.frames[f].layout.index()];
    for (std::size_t b = 0; b < layout.buffers.size(); ++b) {
      if (!layout.buffers[b].persistent) continue;
      const std::size_t bytes = size_of(layout.buffers[b]);
      std::byte* const data = take(bytes);
      if (data == nullptr) {
        return input_error("out of memory: " + layout.buffers[b].name + " needs " +
                           std::to_string(bytes >> 20) + " MiB; use a smaller model or more ranks");
      }
      std::memset(data, 0, bytes);
      x_slots[x_base[f] + b].data = data;
    }
  }
  for (const Slice& slice : x_slices) draw(slice, seed);
  return ok_status();
}

template <typename T>
void HostMemory<T>::draw(const Slice& slice, std::uint64_t seed) {
  const Tensor& tensor = *slice.tensor;
  const std::uint64_t key = mix(mix(mix(seed, "parameters"), tensor.name),
                                static_cast<std::uint64_t>(std::int64_t{slice.layer}));
  T* out = values(slice.owner) + slice.element;
  for (std::int64_t r = 0; r < slice.rows; ++r) {
    for (std::int64_t c = 0; c < slice.cols; ++c, ++out) {
      const std::int64_t row = slice.first_row + r;
      if (row >= tensor.rows) continue;  // padding stays zero
      if (tensor.init == Init::kOnes) *out = T(1);
      if (tensor.init != Init::kNormal) continue;
      const std::int64_t index = row * tensor.cols + slice.first_col + c;
      *out = static_cast<T>(static_cast<float>(tensor.deviation * normal_at(key, index)));
    }
  }
}

template <typename T>
T* HostMemory<T>::values(FrameId frame) const {
  return reinterpret_cast<T*>(x_slots[x_base[frame.index()]].data);
}

template <typename T>
Status HostMemory<T>::allocate(const Call& call, const BufferRef& ref) {
  const FrameId frame = call.frames[static_cast<std::size_t>(ref.frame)];
  Slot& slot = x_slots[own_index(frame, ref.buffer)];
  const std::size_t bytes = size_of(*slot.buffer);
  slot.data = take(bytes);
  if (slot.data == nullptr) {
    return input_error("out of memory: " + slot.buffer->name + " needs " +
                       std::to_string(bytes >> 20) + " MiB");
  }
  if (!x_poison) return ok_status();
  if (is_real(slot.buffer->dtype)) {
    std::fill_n(reinterpret_cast<T*>(slot.data), slot.buffer->count,
                std::numeric_limits<T>::quiet_NaN());
  } else {
    std::memset(slot.data, 0xff, bytes);
  }
  return ok_status();
}

template <typename T>
void HostMemory<T>::release(const Call& call, const BufferRef& ref) {
  const FrameId frame = call.frames[static_cast<std::size_t>(ref.frame)];
  Slot& slot = x_slots[own_index(frame, ref.buffer)];
  FT_CHECK(slot.data != nullptr, "a buffer is freed that is not allocated");
  constexpr std::size_t kPage = 4096;
  const std::size_t bytes = size_of(*slot.buffer);
  const std::size_t size = std::max(kPage, (bytes + kPage - 1) / kPage * kPage);
  const std::lock_guard lock(x_mutex);
  x_free.emplace(size, slot.data);
  slot.data = nullptr;
}

template <typename T>
Operand HostMemory<T>::at(const Call& call, const View& view) const {
  const FrameId frame = call.frames[static_cast<std::size_t>(view.frame)];
  const Home& home = x_homes[own_index(frame, view.buffer)];
  const Slot& slot = x_slots[home.buffer];
  Bytes offset = home.offset + view.offset;
  if (view.shards > 1) offset += view.bytes * x_places[view.shard_group.index()].index;
  const Bytes element = bytes_of(slot.buffer->dtype, 1);
  FT_CHECK(slot.data != nullptr, "an op touches a buffer that is not allocated");
  Operand out;
  out.data = slot.data + static_cast<std::size_t>(offset) * scale(slot.buffer->dtype);
  out.count = view.bytes / element;
  out.begin = offset / element;
  out.buffer = slot.buffer;
  return out;
}

template class HostMemory<float>;
template class HostMemory<double>;

}  // namespace foretrain
