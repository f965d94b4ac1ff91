// ProgramBuilder: writes a Program. It interns works, fills in the bytes of memory-bound kernels
// from their operands, and derives where buffers are allocated and freed.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sim/program/program.h"

namespace foretrain {

/// The place of `work` among the Program's, added if none is equal.
WorkId interned(Program& program, Work work);

class ProgramBuilder {
 public:
  explicit ProgramBuilder(std::string name);

  StreamId stream(const std::string& name);      ///< the stream of that name, new if need be
  GroupSlot group(const std::string& name);      ///< likewise
  ChannelSlot channel(const std::string& name);  ///< likewise
  TensorId tensor(Tensor tensor);                ///< the tensor of that name, new if need be
  LayoutId layout(FrameLayout layout);           ///< the one equal to it, new if need be
  FrameId frame(LayoutId layout, std::int32_t layer = -1, std::int32_t microbatch = -1);
  /// A frame whose buffers lie in `buffer` of `owner` from `offset` on.
  FrameId alias(LayoutId layout, FrameId owner, std::int16_t buffer, Bytes offset,
                std::int32_t layer = -1);

  /// The segment equal to this one, new if need be; ops whose Work is a Kernel get their bytes
  /// here.
  SegmentId segment(Segment segment);
  WorkId work(Work work);
  void call(Call call) { x_program.calls.push_back(std::move(call)); }
  /// Takes back all calls from number `first` on, to be made in another order.
  std::vector<Call> take_calls(std::size_t first);

  void batch(const Batch& batch) { x_program.batch = batch; }

  const Program& program() const { return x_program; }

  /// Derives allocations and frees (sim/program/lives.h), and hands the Program over.
  Program build() &&;

 private:
  Program x_program;
  std::unordered_multimap<std::uint64_t, WorkId> x_works;        ///< by a hash of part of each
  std::unordered_multimap<std::uint64_t, SegmentId> x_segments;  ///< likewise
};

}  // namespace foretrain
