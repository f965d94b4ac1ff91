// Layers' passes in slices of a microbatch: models/step/passes/slice_microbatch.cpp.
#include <utility>

#include "models/emit/frames.h"
#include "models/emit/tasks.h"
#include "models/emit/update.h"
#include "models/gradients/buckets.h"
#include "models/units/units.h"
#include "sim/base/check.h"

namespace foretrain {

static void call_block(Stage& stage, const SlicedPass& sliced, std::size_t slice,
                       std::size_t block);

/// The first blocks of a layer's slices, each behind the last one of the layer before.
void call_slice_heads(Stage& stage, TaskId id, Call call, const std::vector<SegmentId>& slices) {
  SlicedPass sliced;
  for (const SegmentId segment : slices) sliced.blocks.push_back(blocks_of(stage, segment));
  FT_CHECK(sliced.blocks.front().size() > 1, "a slice without a collective that compute waits for");
  const TaskId before = stage.step[id].of;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    if (before.valid())
      call_block(stage, stage.values.sliced.at(before), i, stage.values.sliced.at(before).last());
    Call first = call;
    first.segment = sliced.blocks[i][0];
    call.waits.clear();
    stage.builder.call(std::move(first));
  }
  if (before.valid()) stage.values.sliced.erase(before);
  sliced.call = std::move(call);
  stage.values.sliced.emplace(id, std::move(sliced));
}

void call_slice_bodies(Stage& stage, const Task& task) {
  const SlicedPass& sliced = stage.values.sliced.at(task.of);
  for (std::size_t k = 1; k < sliced.last(); ++k) {
    for (std::size_t i = 0; i < sliced.blocks.size(); ++i) call_block(stage, sliced, i, k);
  }
}

void call_slice_tails(Stage& stage, const Task& task) {
  const SlicedPass& sliced = stage.values.sliced.at(task.of);
  for (std::size_t i = 0; i < sliced.blocks.size(); ++i)
    call_block(stage, sliced, i, sliced.last());
  stage.values.sliced.erase(task.of);
}

void call_block(Stage& stage, const SlicedPass& sliced, std::size_t slice, std::size_t block) {
  Call call = sliced.call;
  call.segment = sliced.blocks[slice][block];
  stage.builder.call(std::move(call));
}

}  // namespace foretrain
