// Values of the buffers of a rank on a device, written and read between steps.
#include <cstring>

#include "executor/cuda/device_rank.h"
#include "executor/cuda/fill_kernels.h"
#include "executor/cuda/host_loops.h"
#include "executor/cuda/packing.h"

namespace foretrain {
namespace {

Status fill(Device& device, const Operand& to, const Content& content) {
  if (is_on_device(to)) return device.fill_random(to.data, to.buffer->dtype, to.count, content);
  device::HostLoops loops;
  device::fill_random(loops, to.data, to.buffer->dtype, to.count, content);
  return ok_status();
}

/// Both lie on the device.
Status cast(Device& device, std::size_t stream, const Operand& from, const Operand& to) {
  Kernel work;
  work.kind = KernelKind::kCast;
  work.cols = to.count;
  DeviceOperands x;
  x.reads = {from};
  x.writes = {to};
  return device.compute(stream, Work{work}, OpContext{}, x);
}

}  // namespace

Status DeviceRank::write(const Operand& to, const void* from, std::size_t bytes) {
  if (is_on_device(to)) return x_device->write(to.data, from, bytes);
  std::memcpy(to.data, from, bytes);
  return ok_status();
}

Status DeviceRank::read(void* to, const Operand& from, std::size_t bytes) {
  if (is_on_device(from)) return x_device->read(to, from.data, bytes);
  std::memcpy(to, from.data, bytes);
  return ok_status();
}

/// All memory is zero until now.
Status DeviceRank::draw() {
  for (const TensorSlice& slice : x_layout.slices()) {
    const std::size_t b = x_layout.index_of(slice.owner, 0);
    if (x_plan.buffers[b].bytes == 0 || !is_real(x_layout.buffer(b).dtype)) continue;
    const ParameterDraw draw = draw_of(slice, x_options.training.seed);
    Operand to = whole(b);
    to.data += bytes_of(to.buffer->dtype, draw.at);
    to.count = draw.count;
    FT_TRY(fill(*x_device, to, draw));
  }
  return ok_status();
}

/// A master copy starts as the weights.
Status DeviceRank::start_masters() {
  for (const Launch& launch : x_launches) {
    const std::optional<UpdatedWeights> update = updated_weights(x_list, *launch.task);
    if (!update || !update->master) continue;
    const Operand weights = kept(launch, update->weights);
    const Operand master = kept(launch, *update->master);
    if (is_on_device(weights) && is_on_device(master)) {
      FT_TRY(cast(*x_device, launch.stream, weights, master));
      continue;
    }
    std::vector<std::byte> bytes(bytes_of(weights));
    FT_TRY(read(bytes.data(), weights, bytes.size()));
    const std::vector<float> values = unpack(bytes, weights.buffer->dtype);
    FT_TRY(write(master, values.data(), values.size() * sizeof(float)));
  }
  return x_device->finish();
}

Status DeviceRank::set_values(FrameId frame, std::int16_t buffer,
                              const std::function<double(std::int64_t)>& value) {
  const Operand to = whole(x_layout.index_of(frame, buffer));
  std::vector<double> values;
  for (std::int64_t i = 0; i < to.count; ++i) values.push_back(value(i));
  const std::vector<std::byte> bytes = pack(values, to.buffer->dtype);
  return write(to, bytes.data(), bytes.size());
}

/// Packed once; what is longer is the same bytes again.
Status DeviceRank::repeat_values(FrameId frame, std::int16_t buffer,
                                 const std::vector<double>& pattern) {
  const Operand to = whole(x_layout.index_of(frame, buffer));
  const std::vector<std::byte> once = pack(pattern, to.buffer->dtype);
  std::vector<std::byte> bytes(bytes_of(to));
  for (std::size_t at = 0; at < bytes.size(); at += once.size()) {
    std::memcpy(bytes.data() + at, once.data(), std::min(once.size(), bytes.size() - at));
  }
  return write(to, bytes.data(), bytes.size());
}

DType DeviceRank::type_of(FrameId frame, std::int16_t buffer) const {
  return x_layout.buffer(x_layout.index_of(frame, buffer)).dtype;
}

Status DeviceRank::fill_values(FrameId frame, std::int16_t buffer, const Fill& fill_with) {
  return fill(*x_device, whole(x_layout.index_of(frame, buffer)), fill_with);
}

Result<std::vector<float>> DeviceRank::values(FrameId frame) {
  const Operand from = whole(x_layout.index_of(frame, 0));
  std::vector<std::byte> bytes(bytes_of(from));
  FT_TRY(read(bytes.data(), from, bytes.size()));
  return unpack(bytes, from.buffer->dtype);
}

}  // namespace foretrain
