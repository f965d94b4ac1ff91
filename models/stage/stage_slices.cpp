// Slices of a microbatch that take turns, so that tensor-parallel collectives of one travel under
// the products of the others (DeepSpeed-Domino, Wang et al., arXiv 2409.15241, section 3: the cut
// of the inputs by rows).
//
// A layer's pass over a slice is cut into blocks wherever compute would wait for a collective. Of n
// slices compute takes the k-th blocks one after another, so that between the op before a
// collective and the op that waits for it stand the blocks of n - 1 slices; the last blocks of a
// layer go together with the first ones of the next:
//
//   compute  s0: attention | s1: attention | s0: MLP | s1: MLP | s0: next layer | s1: next layer
//   tensor                 | s0: reduce    | s1: reduce | s0: reduce | s1: reduce   |
//
// Backward likewise. What is reduced is the same, in n times as many collectives; products of 1/n
// of the rows, and n gradients of every matrix that add up, are what it costs. Left out: the cut of
// the second matrices by columns (Domino's second dimension), sequence parallelism, whose scattered
// rows would have to be those of the slices.
#include <utility>

#include "models/stage/stage_writer.h"
#include "sim/base/check.h"

namespace foretrain {

/// One layer's pass in slices. The last blocks wait for the next layer, or for `finish_slices`.
void StageWriter::call_slices(Call call, const std::vector<SegmentId>& slices) {
  std::vector<std::vector<SegmentId>> blocks;
  for (const SegmentId id : slices) blocks.push_back(blocks_of(id));
  const std::size_t most = blocks.front().size();
  FT_CHECK(most > 1, "a slice without a collective that compute waits for");
  std::vector<Call> before = std::move(x_slice_ends);
  x_slice_ends.clear();
  for (std::size_t k = 0; k < most; ++k) {
    for (std::size_t i = 0; i < slices.size(); ++i) {
      if (k == 0 && i < before.size()) x_builder.call(std::move(before[i]));
      Call part = call;
      part.segment = blocks[i][k];
      call.waits.clear();
      if (k + 1 < most) {
        x_builder.call(std::move(part));
      } else {
        x_slice_ends.push_back(std::move(part));
      }
    }
    if (k == 0) after_slices(nullptr);
  }
}

/// What the layer before left to do once its slices were over is done; `next` follows this one's.
void StageWriter::after_slices(std::function<void()> next) {
  if (x_after_slices && !next) x_after_slices();
  x_after_slices = std::move(next);
}

/// Before anything that works on the whole microbatch.
void StageWriter::finish_slices() {
  for (Call& call : x_slice_ends) x_builder.call(std::move(call));
  x_slice_ends.clear();
  after_slices(nullptr);
}

}  // namespace foretrain
