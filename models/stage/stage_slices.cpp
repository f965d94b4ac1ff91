// Layers' passes in slices of a microbatch: models/step/passes/slice_microbatch.cpp.
#include <utility>

#include "models/stage/stage_writer.h"
#include "sim/base/check.h"

namespace foretrain {

/// The first blocks of a layer's slices, each behind the last one of the layer before.
void StageWriter::call_slice_heads(TaskId id, Call call, const std::vector<SegmentId>& slices) {
  Sliced sliced;
  for (const SegmentId segment : slices) sliced.blocks.push_back(blocks_of(segment));
  FT_CHECK(sliced.blocks.front().size() > 1, "a slice without a collective that compute waits for");
  const TaskId before = x_step[id].of;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    if (before.valid()) call_block(x_sliced.at(before), i, x_sliced.at(before).last());
    Call first = call;
    first.segment = sliced.blocks[i][0];
    call.waits.clear();
    x_builder.call(std::move(first));
  }
  if (before.valid()) x_sliced.erase(before);
  sliced.call = std::move(call);
  x_sliced.emplace(id, std::move(sliced));
}

void StageWriter::call_slice_bodies(const Task& task) {
  const Sliced& sliced = x_sliced.at(task.of);
  for (std::size_t k = 1; k < sliced.last(); ++k) {
    for (std::size_t i = 0; i < sliced.blocks.size(); ++i) call_block(sliced, i, k);
  }
}

void StageWriter::call_slice_tails(const Task& task) {
  const Sliced& sliced = x_sliced.at(task.of);
  for (std::size_t i = 0; i < sliced.blocks.size(); ++i) call_block(sliced, i, sliced.last());
  x_sliced.erase(task.of);
}

void StageWriter::call_block(const Sliced& sliced, std::size_t slice, std::size_t block) {
  Call call = sliced.call;
  call.segment = sliced.blocks[slice][block];
  x_builder.call(std::move(call));
}

}  // namespace foretrain
