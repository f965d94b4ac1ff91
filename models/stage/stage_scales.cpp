// Scales that ranks share.
//
// With delayed scaling (Transformer Engine's DelayedScaling) a tensor's scale comes of the largest
// values that it had in earlier microbatches. Ranks that compute parts of a tensor, or the same
// layers on other tokens, agree on them: at the end of a chunk's forward pass the largest values of
// inputs and weights of its linears are put together, all-reduced and turned into the next scales,
// at the end of the backward pass those of output gradients. Compute waits for it, so that ranks of
// a stage keep step with each other in every pass. Left out: what the exchange of joined passes
// (two chunks at once) would be; they have none.
#include "models/stage/stage_writer.h"

namespace foretrain {

std::int64_t StageWriter::scaled_linears(const Chunk& chunk) const {
  constexpr std::int64_t kOfAttention = 2;
  constexpr std::int64_t kOfMlp = 2;
  std::int64_t out = 0;
  for (std::int64_t l = 0; l < chunk.layers; ++l) {
    out += kOfAttention;
    if (!kind_of(chunk, l).sparse) {
      out += kOfMlp;
      continue;
    }
    out += kOfMlp * (x_model.experts.count / x_plan.experts.expert);
    if (x_model.experts.shared_width > 0) out += kOfMlp;
  }
  return out;
}

void StageWriter::share_scales(const Chunk& chunk, std::int32_t mb, bool backward) {
  const Precision& p = x_plan.precision;
  if (!p.delayed() || p.scales == ScaleSharing::kNone || x_joined) return;
  const bool tensor = p.scales == ScaleSharing::kTensor;
  const std::int64_t ranks = tensor ? x_plan.tensor : x_plan.tensor * x_plan.data;
  const std::int64_t largest = scaled_linears(chunk) * (backward ? 1 : 2);
  if (ranks < 2 || largest == 0) return;
  const auto [found, fresh] = x_scales.try_emplace({largest, backward});
  if (fresh) {
    LayoutWriter scales("scales", 0);
    scales.add("largest values", BufferKind::kWorkspace, DType::kFp32, largest);
    for (Buffer& buffer : scales.layout().buffers) buffer.persistent = true;
    SegmentWriter w(x_builder, backward ? "scales of gradients" : "scales", scales);
    w.phase = backward ? Phase::kBackward : Phase::kForward;
    const View all = Ref{0, 0, DType::kFp32, largest}.view();
    w.compute(
        "scales.reduce",
        Collective{CollectiveKind::kAllReduce, x_builder.group(tensor ? kTensorGroup : kScaleGroup),
                   largest, DType::kFp32, false},
        {all}, {all});
    w.segment().ops.back().category = tensor ? Category::kTensor : Category::kData;
    // Histories put together before, taken apart and turned into scales after.
    constexpr std::int32_t kLaunches = 4;
    Kernel update = kernel_of(KernelKind::kScale, 1, largest, DType::kFp32);
    update.launches = kLaunches;
    w.compute("scales.update", update, {all}, {all});
    const LayoutId layout = x_builder.layout(scales.layout());
    w.segment().frames = {layout};
    found->second = {x_builder.segment(std::move(w.segment())), x_builder.frame(layout)};
  }
  Call call{found->second.first, -1, mb, {found->second.second}, std::move(x_before_next)};
  x_before_next.clear();
  x_builder.call(std::move(call));
}

}  // namespace foretrain
