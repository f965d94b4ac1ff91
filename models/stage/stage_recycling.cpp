// The output of an earlier pass, added to the embedding: models/step/passes/recycle_outputs.cpp.
#include "models/stage/stage_writer.h"

namespace foretrain {

void StageWriter::add_returned(Passage& passage, std::int32_t mb) {
  if (!x_adds_returned.valid()) {
    LayoutWriter events("add returned", 3);
    SegmentWriter w(x_builder, "add returned", events);
    const auto hidden = [this](std::int16_t frame) {
      return Ref{frame, kHiddenBuffer, x_plan.precision.compute, hidden_elements(x_model, x_plan)};
    };
    w.wait(EventRef{0, kReady});
    w.wait(EventRef{1, kReady});
    w.compute("embedding.recycled",
              kernel_of(KernelKind::kAdd, x_plan.rows(), x_model.hidden / x_plan.column_parts(),
                        x_plan.precision.compute),
              {hidden(0).view(), hidden(1).view()}, {hidden(2).view()});
    w.record(EventRef{2, kReady});
    w.segment().frames = {x_layer.hidden, x_layer.hidden, x_layer.hidden};
    x_adds_returned = x_builder.segment(std::move(w.segment()));
  }
  const FrameId returned = passage.returned.valid() ? passage.returned : x_returned.at(mb);
  x_builder.call(
      Call{x_adds_returned, -1, mb, {passage.embedded, returned, passage.hidden.front()}, {}});
}

}  // namespace foretrain
