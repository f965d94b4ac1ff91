#include "executor/host_memory.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "sim/base/check.h"

namespace foretrain {

namespace {

bool is_number(DType type) { return type == DType::kFp32 || type == DType::kTf32; }

}  // namespace

template <typename T>
std::size_t HostMemory<T>::scale(DType type) {
  return is_number(type) ? kWidth<T> : 1;
}

template <typename T>
std::size_t HostMemory<T>::size_of(const Buffer& buffer) {
  return static_cast<std::size_t>(buffer.bytes()) * scale(buffer.dtype);
}

template <typename T>
HostMemory<T>::HostMemory(const Program& program, const std::vector<Place>& places, bool poison)
    : x_program(program),
      x_layout(program, places),
      x_poison(poison),
      x_data(x_layout.size(), nullptr) {}

template <typename T>
std::size_t HostMemory<T>::size_of(const Operand& operand) {
  const DType type = operand.buffer->dtype;
  return static_cast<std::size_t>(bytes_of(type, operand.count)) * scale(type);
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
  auto* const block = new (std::nothrow) std::byte[size + sizeof(std::size_t)];
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
      const bool stored = layout.buffers[b].memory == Memory::kStorage && bytes > 0;
      std::byte* const data = stored ? x_files.map(bytes) : take(bytes);
      if (data == nullptr) {
        return input_error((stored ? "no room for a file in the folder for temporary files: "
                                   : "out of memory: ") +
                           layout.buffers[b].name + " needs " + std::to_string(bytes >> 20) +
                           " MiB; use a smaller model or more ranks");
      }
      std::memset(data, 0, bytes);
      x_data[x_layout.index_of(FrameId(f), static_cast<std::int16_t>(b))] = data;
    }
  }
  for (const TensorSlice& slice : x_layout.slices()) {
    const ParameterDraw draw = draw_of(slice, seed);
    T* const out = values(slice.owner) + draw.at;
    for (std::int64_t i = 0; i < draw.count; ++i) out[i] = static_cast<T>(draw.real(i));
  }
  return ok_status();
}

template <typename T>
T* HostMemory<T>::values(FrameId frame) const {
  return reinterpret_cast<T*>(x_data[x_layout.index_of(frame, 0)]);
}

template <typename T>
Status HostMemory<T>::allocate(const Call& call, const BufferRef& ref) {
  const std::size_t index = x_layout.index_of(call, ref);
  const Buffer& buffer = x_layout.buffer(index);
  const std::size_t bytes = size_of(buffer);
  std::byte* const data = take(bytes);
  if (data == nullptr) {
    return input_error("out of memory: " + buffer.name + " needs " + std::to_string(bytes >> 20) +
                       " MiB");
  }
  x_data[index] = data;
  if (!x_poison) return ok_status();
  if (is_number(buffer.dtype)) {
    std::fill_n(reinterpret_cast<T*>(data), buffer.count, std::numeric_limits<T>::quiet_NaN());
  } else {
    std::memset(data, 0xff, bytes);
  }
  return ok_status();
}

template <typename T>
void HostMemory<T>::release(const Call& call, const BufferRef& ref) {
  const std::size_t index = x_layout.index_of(call, ref);
  FT_CHECK(x_data[index] != nullptr, "a buffer is freed that is not allocated");
  constexpr std::size_t kPage = 4096;
  const std::size_t bytes = size_of(x_layout.buffer(index));
  const std::size_t size = std::max(kPage, (bytes + kPage - 1) / kPage * kPage);
  const std::lock_guard lock(x_mutex);
  x_free.emplace(size, x_data[index]);
  x_data[index] = nullptr;
}

template <typename T>
Operand HostMemory<T>::at(const Call& call, const View& view) const {
  const MemoryLayout::Home home = x_layout.home(call, view);
  const Buffer& owner = x_layout.buffer(home.buffer);
  const Bytes element = bytes_of(owner.dtype, 1);
  FT_CHECK(x_data[home.buffer] != nullptr, "an op touches a buffer that is not allocated");
  Operand out;
  out.data = x_data[home.buffer] + static_cast<std::size_t>(home.offset) * scale(owner.dtype);
  out.count = view.bytes / element;
  out.begin = home.offset / element;
  out.buffer = &owner;
  return out;
}

template class HostMemory<float>;
template class HostMemory<double>;

}  // namespace foretrain
