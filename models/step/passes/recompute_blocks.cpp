// Blocks of layers that are computed again together (Megatron-LM's --recompute-method uniform with
// --recompute-num-layers above one; GPipe, arXiv 1811.06965, section 2.3, whose block is the
// stage).
//
// Of n layers the forward pass keeps the input of the first alone. Before the last of them goes
// back all n run forward once more, now keeping what their backward passes read, so that
// activations of one block and inputs of all blocks are what a stage holds. Nothing that this
// repeats depends on the gradient: a stage that waits for one may repeat its last block meanwhile
// (`early`), as GPipe does. Left out: the embedding in the first block.
#include "models/step/passes.h"

namespace foretrain {
namespace {

/// The block that ends with layer `last`, once more.
std::vector<Task> block(const StageContext& s, const Task& at, std::int64_t last) {
  const std::int64_t n = s.plan.recompute.block_layers;
  const std::int64_t first = n == 0 ? 0 : last / n * n;
  std::vector<Task> out;
  if (s.plan.checkpoint_time.ps > 0) {
    out.push_back(beside(at, TaskKind::kCheckpoint, Direction::kRecompute));
  }
  for (std::int64_t l = first; l <= last; ++l) {
    Task layer = beside(at, TaskKind::kLayer, Direction::kRecompute);
    layer.layer = static_cast<std::int32_t>(l);
    layer.form =
        static_cast<std::int16_t>((l == first ? kBlockFirst : 0) | (l == last ? kBlockLast : 0));
    out.push_back(std::move(layer));
  }
  return out;
}

}  // namespace

void recompute_blocks(const StageContext& s, StageStep& step) {
  const Recompute& r = s.plan.recompute;
  const auto early = [&](const Task& at) {  // the pass's first block
    return r.early && !s.chunk(at.chunk).last && s.chunk(at.chunk).layers > 0;
  };
  insert(
      step, false,
      [&](const Task& at) {
        if (at.direction != Direction::kBackward) return false;
        if (at.kind == TaskKind::kBegin) return early(at);
        if (at.kind != TaskKind::kLayer) return false;
        const bool first = at.layer + 1 == s.chunk(at.chunk).layers;
        if (first) return !early(at);
        return r.block_layers > 0 && (at.layer + 1) % r.block_layers == 0;
      },
      [&](TaskId, const Task& at) {
        const bool begin = at.kind == TaskKind::kBegin;
        return block(s, at, begin ? s.chunk(at.chunk).layers - 1 : at.layer);
      });
}

}  // namespace foretrain
