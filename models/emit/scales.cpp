// The exchange of scales: models/step/passes/share_scales.cpp.
#include "models/emit/tasks.h"

namespace foretrain {

void share_scales(Stage& stage, const Task& task) {
  const bool backward = task.direction == Direction::kBackward;
  const bool tensor = stage.plan.precision.scales == ScaleSharing::kTensor;
  const std::int64_t largest = task.index;
  const auto [found, fresh] = stage.segments.scales.try_emplace({largest, backward});
  if (fresh) {
    LayoutWriter scales("scales", 0);
    scales.add("largest values", BufferKind::kWorkspace, DType::kFp32, largest);
    for (Buffer& buffer : scales.layout().buffers) buffer.persistent = true;
    SegmentWriter w(stage.builder, backward ? "scales of gradients" : "scales", scales);
    w.phase = backward ? Phase::kBackward : Phase::kForward;
    const View all = Ref{formal::kScalars, kOnlyBuffer, DType::kFp32, largest}.view();
    w.compute("scales.reduce",
              Collective{CollectiveKind::kAllReduce,
                         stage.builder.group(tensor ? kTensorScaleGroup : kScaleGroup), largest,
                         DType::kFp32, false},
              {all}, {all});
    w.segment().ops.back().category = tensor ? Category::kTensor : Category::kData;
    // Histories put together before, taken apart and turned into scales after.
    constexpr std::int32_t kLaunches = 4;
    Kernel update = kernel_of(KernelKind::kScale, 1, largest, DType::kFp32);
    update.launches = kLaunches;
    w.compute("scales.update", update, {all}, {all});
    const LayoutId layout = stage.builder.layout(scales.layout());
    w.segment().frames = {layout};
    found->second = {stage.builder.segment(std::move(w.segment())), stage.builder.frame(layout)};
  }
  const SegmentId segment = found->second.first;
  stage.builder.call(
      Call{segment, -1, task.microbatch, {found->second.second}, waits_of(stage, task, segment)});
}

}  // namespace foretrain
