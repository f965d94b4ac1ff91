// The output of an earlier pass, added to the embedding: models/step/passes/recycle_outputs.cpp.
#include "models/emit/tasks.h"

namespace foretrain {

void add_returned(Stage& stage, MicrobatchState& passage, std::int32_t mb) {
  if (!stage.segments.adds_returned.valid()) {
    LayoutWriter events("add returned", 3);
    SegmentWriter w(stage.builder, "add returned", events);
    const auto hidden = [&stage](std::int16_t frame) {
      return Ref{frame, kHiddenBuffer, stage.plan.precision.compute,
                 hidden_elements(stage.model, stage.plan)};
    };
    w.wait(EventRef{formal::kEmbedded, kReady});
    w.wait(EventRef{formal::kReturnedOutput, kReady});
    w.compute(
        "embedding.recycled",
        kernel_of(KernelKind::kAdd, stage.plan.rows(),
                  stage.model.hidden / stage.plan.column_parts(), stage.plan.precision.compute),
        {hidden(0).view(), hidden(1).view()}, {hidden(2).view()});
    w.record(EventRef{formal::kSum, kReady});
    w.segment().frames = {stage.holds.layer.hidden, stage.holds.layer.hidden,
                          stage.holds.layer.hidden};
    stage.segments.adds_returned = stage.builder.segment(std::move(w.segment()));
  }
  const FrameId returned =
      passage.returned.valid() ? passage.returned : stage.values.returned.at(mb);
  stage.builder.call(Call{stage.segments.adds_returned,
                          -1,
                          mb,
                          {passage.embedded, returned, passage.hidden.front()},
                          {}});
}

}  // namespace foretrain
