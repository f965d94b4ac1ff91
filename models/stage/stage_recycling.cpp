// Forward passes whose output comes back (recycling, as AlphaFold 2 has it; 3f1b of Lin et al.,
// nnScaler, OSDI 2024).
//
// A microbatch goes n times through the layers. The first n - 1 times nothing is kept, and the last
// stage sends the residual stream behind its layers to the first one:
//
//   x_0 = embedding(tokens)   x_k = embedding(tokens) + layers(x_{k-1}), k < n
//   loss(layers(x_{n-1}))
//
// Only the last pass through the layers has gradients: none goes through what came back. Tokens
// stay from the first pass to the last. Left out: a norm of what comes back (AlphaFold 2's),
// dropout that differs between the passes, kernels that write nothing for a backward pass.
#include "models/stage/stage_writer.h"

namespace foretrain {

/// What the first stage begins a later pass with; none on other stages.
FrameId StageWriter::receive_returned(const Chunk& chunk, std::int32_t mb) {
  if (!chunk.first) return FrameId();
  if (chunk.last) return x_returned.at(mb);
  const FrameId frame = x_builder.frame(x_layer.hidden, -1, mb);
  receive(0, frame, mb, false);
  return frame;
}

/// The embedding of the tokens and what came back, added.
void StageWriter::embed_returned(Chunk& chunk, Passage& passage, std::int32_t mb,
                                 FrameId returned) {
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
  const FrameId sum = passage.hidden.front();
  const FrameId embedded = x_builder.frame(x_layer.hidden, -1, mb);
  passage.hidden.front() = embedded;
  embedding_forward(chunk, passage, mb);
  passage.hidden.front() = sum;
  x_builder.call(Call{x_adds_returned, -1, mb, {embedded, returned, sum}, {}});
}

/// What a pass that keeps nothing leaves: its output, here or on its way.
void StageWriter::forward_ends(const Chunk& chunk, const Pass& pass) {
  Passage& passage = x_passages.at({pass.chunk, pass.microbatch});
  if (chunk.first && chunk.last) {
    x_returned[pass.microbatch] = passage.hidden.back();
  } else {
    send(pass.chunk, sent_output(passage, pass.microbatch), pass.microbatch, false);
  }
  x_passages.erase({pass.chunk, pass.microbatch});
}

}  // namespace foretrain
