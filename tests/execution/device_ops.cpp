#include "tests/execution/device_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>

#include "executor/cuda/fill_kernels.h"
#include "executor/cuda/host_loops.h"
#include "executor/kernels.h"

namespace foretrain {
namespace {

/// Numbers that keep every kernel away from overflow: logarithms and roots take them too.
std::vector<std::byte> random_content(const Buffer& buffer, std::int64_t vocabulary,
                                      std::uint64_t key) {
  std::vector<std::byte> out(static_cast<std::size_t>(buffer.bytes()));
  const auto fill = [&](auto* to, const auto& value) {
    for (std::int64_t i = 0; i < buffer.count; ++i) to[i] = value(i);
  };
  if (buffer.dtype == DType::kInt64) {
    fill(reinterpret_cast<std::int64_t*>(out.data()), [&](std::int64_t i) {
      return static_cast<std::int64_t>(uniform_at(key, i) * static_cast<double>(vocabulary));
    });
  } else if (buffer.dtype == DType::kUint8) {
    fill(reinterpret_cast<std::uint8_t*>(out.data()), [&](std::int64_t i) {
      return static_cast<std::uint8_t>(uniform_at(key, i) < 0.8 ? 1 : 0);
    });
  } else {
    with_type(buffer.dtype, [&](auto tag) {
      using T = typename decltype(tag)::Type;
      fill(reinterpret_cast<T*>(out.data()), [&](std::int64_t i) {
        return stored<T>(static_cast<float>(0.1 + 0.4 * uniform_at(key, i)));
      });
    });
  }
  return out;
}

/// What the op leaves in its buffers.
std::vector<std::vector<std::byte>> run(const MicroOp& op, Device& device) {
  std::vector<std::byte*> memory;
  for (std::size_t b = 0; b < op.buffers.size(); ++b) {
    const auto content = random_content(op.buffers[b], op.batch.vocabulary, 1000 + b);
    auto taken = device.take(content.size());
    EXPECT_TRUE(taken.ok() && device.write(taken.value(), content.data(), content.size()).ok());
    if (!taken.ok()) return {};
    memory.push_back(taken.value());
  }
  const auto operand = [&](const View& view) {
    const auto b = static_cast<std::size_t>(view.buffer);
    const Bytes element = bytes_of(op.buffers[b].dtype, 1);
    return Operand{memory[b] + view.offset, view.bytes / element, view.offset / element,
                   &op.buffers[b]};
  };
  DeviceOperands x;
  for (const View& view : op.op.reads) x.reads.push_back(operand(view));
  for (const View& view : op.op.writes) x.writes.push_back(operand(view));
  const std::vector<Place> places(16);
  OpContext context;
  context.batch = op.batch;
  context.batch.split_over = GroupSlot();
  context.layer = context.microbatch = 0;
  context.op = &op.op;
  context.places = &places;
  Status status = device.begin();
  if (status.ok()) status = device.compute(0, op.work, context, x);
  if (status.ok()) status = device.finish();
  EXPECT_TRUE(status.ok()) << status.error().message;
  std::vector<std::vector<std::byte>> out;
  for (std::size_t b = 0; b < memory.size(); ++b) {
    out.emplace_back(static_cast<std::size_t>(op.buffers[b].bytes()));
    EXPECT_TRUE(device.read(out.back().data(), memory[b], out.back().size()).ok());
  }
  return out;
}

void expect_close(const Buffer& buffer, const std::vector<std::byte>& a,
                  const std::vector<std::byte>& b, double tolerance) {
  if (!is_real(buffer.dtype)) {
    EXPECT_EQ(a, b) << buffer.name;
    return;
  }
  with_type(buffer.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto* const left = reinterpret_cast<const T*>(a.data());
    const auto* const right = reinterpret_cast<const T*>(b.data());
    double largest = 1e-6;
    double worst = 0;
    for (std::int64_t i = 0; i < buffer.count; ++i) {
      const auto x = static_cast<double>(to_float(left[i]));
      const auto y = static_cast<double>(to_float(right[i]));
      largest = std::max(largest, std::abs(x));
      const double apart = std::abs(x - y);
      worst = apart <= worst ? worst : apart;  // NaN stays
    }
    EXPECT_LE(worst, tolerance * largest) << buffer.name;
  });
}

MicroOp small_kernel(KernelKind kind, const std::vector<std::pair<DType, std::int64_t>>& operands) {
  constexpr std::int64_t kRows = 37;
  constexpr std::int64_t kCols = 50;
  MicroOp out;
  Kernel kernel;
  kernel.kind = kind;
  kernel.rows = kRows;
  kernel.cols = kCols;
  out.work = kernel;
  out.op.name = name_of(kind);
  for (const auto& [type, count] : operands) {
    Buffer buffer;
    buffer.name = "operand " + std::to_string(out.buffers.size());
    buffer.dtype = type;
    buffer.count = count;
    const View view{0,          static_cast<std::int16_t>(out.buffers.size()), 0, buffer.bytes(), 1,
                    GroupSlot()};
    (out.buffers.size() + 1 == operands.size() ? out.op.writes : out.op.reads).push_back(view);
    out.buffers.push_back(std::move(buffer));
  }
  return out;
}

std::size_t last_read(const Op& op) { return static_cast<std::size_t>(op.reads.back().buffer); }

/// The host backend's kernels behind the interface of a device.
class HostKernels final : public Device {
 public:
  Status open(std::size_t, std::size_t) override { return ok_status(); }
  Result<std::size_t> free_bytes() override { return std::size_t{1} << 30; }
  Result<std::byte*> take(std::size_t bytes) override {
    x_blocks.emplace_back(bytes / sizeof(std::uint64_t) + 1);
    return reinterpret_cast<std::byte*>(x_blocks.back().data());
  }
  Result<std::byte*> take_host(std::size_t bytes) override { return take(bytes); }
  Status write(std::byte* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
    return ok_status();
  }
  Status read(void* to, const std::byte* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
    return ok_status();
  }
  Status fill_random(std::byte* to, DType type, std::int64_t count,
                     const Content& content) override {
    device::HostLoops loops;
    device::fill_random(loops, to, type, count, content);
    return ok_status();
  }
  Status begin() override { return ok_status(); }
  Status end() override { return ok_status(); }
  Status mark(std::size_t, std::size_t) override { return ok_status(); }
  Status wait(std::size_t, std::size_t) override { return ok_status(); }
  Status wait_on_host(std::size_t) override { return ok_status(); }
  Status begin_piece(std::size_t) override { return ok_status(); }
  Status end_piece(std::size_t) override { return ok_status(); }
  Status finish() override { return ok_status(); }
  Result<Time> time_of(std::size_t) override { return Time{}; }
  Result<Time> step_time() override { return Time{}; }
  Status copy(std::size_t, std::byte* to, const std::byte* from, std::size_t bytes) override {
    return write(to, from, bytes);
  }
  Status on_host(std::size_t, std::function<void()> work) override {
    work();
    return ok_status();
  }
  Status fill(std::size_t, std::byte* to, int byte, std::size_t bytes) override {
    std::memset(to, byte, bytes);
    return ok_status();
  }
  Status compute(std::size_t, const Work& work, const OpContext& context,
                 const DeviceOperands& x) override {
    const Operands<float> operands{x.reads, x.writes};
    if (const auto* gemm = std::get_if<Gemm>(&work)) run_gemm(*gemm, operands);
    if (const auto* attention = std::get_if<Attention>(&work)) {
      run_attention(*attention, context, operands);
    }
    if (const auto* kernel = std::get_if<Kernel>(&work)) run_kernel(*kernel, context, operands);
    return ok_status();
  }
  Status collectives(std::size_t, GroupId, std::span<const DeviceCollective>) override {
    return input_error("no communication");
  }
  Status exchange(std::size_t, std::span<const MessageCall>) override {
    return input_error("no communication");
  }

 private:
  std::deque<std::vector<std::uint64_t>> x_blocks;
};

}  // namespace

void expect_ops_alike(const Workload& workload, Device& one, Device& other, double tolerance,
                      bool unfused) {
  std::vector<MicroOp> ops = distinct_ops(workload);
  constexpr std::int64_t kAll = 37 * 50;
  for (const KernelKind kind : {KernelKind::kAdd, KernelKind::kBiasAdd}) {
    const std::int64_t second = kind == KernelKind::kAdd ? kAll : 50;
    ops.push_back(
        small_kernel(kind, {{DType::kFp32, kAll}, {DType::kFp32, second}, {DType::kFp32, kAll}}));
  }
  ops.push_back(small_kernel(KernelKind::kCast, {{DType::kFp32, kAll}, {DType::kFp32, kAll}}));
  for (const MicroOp& op : ops) {
    const bool computes = std::holds_alternative<Gemm>(op.work) ||
                          std::holds_alternative<Attention>(op.work) ||
                          std::holds_alternative<Kernel>(op.work);
    const auto* attention = std::get_if<Attention>(&op.work);
    const bool keeps_scores =
        attention != nullptr && attention->kernel == AttentionKernel::kUnfused;
    const auto* kernel = std::get_if<Kernel>(&op.work);
    // Random maps and places name more rows of a token than it has.
    const bool sums_rows = kernel != nullptr && kernel->kind == KernelKind::kUnpermute &&
                           !is_real(op.buffers.at(last_read(op.op)).dtype);
    if (!computes || sums_rows || (keeps_scores && !unfused)) continue;
    SCOPED_TRACE(op.op.name + ": " + text_of(op.work));
    const auto a = run(op, one);
    const auto b = run(op, other);
    for (std::size_t i = 0; i < op.buffers.size() && i < a.size() && i < b.size(); ++i) {
      expect_close(op.buffers[i], a[i], b[i], tolerance);
    }
  }
}

std::unique_ptr<Device> make_host_kernels_device() { return std::make_unique<HostKernels>(); }

}  // namespace foretrain
