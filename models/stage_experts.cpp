#include "models/stage_writer.h"

namespace foretrain {

void StageWriter::make_experts(std::size_t index) {
  std::int64_t elements = 0;
  for (std::int64_t l = 0; l < x_chunks[index].layers; ++l) {
    elements += kind_of(x_chunks[index], l).parameters.expert_elements;
  }
  if (elements == 0) return;
  Chunk chunk;
  chunk.replicas = Replicas{kExpertDataGroup, "expert data", x_plan.expert_data()};
  chunk.marks = x_builder.frame(x_marks);
  own_buffers(chunk, elements);
  const Chunk& owner = x_chunks[index];
  std::int64_t at = 0;
  for (std::int64_t l = 0; l < owner.layers; ++l) {
    PartFrames part;
    part.cut_begin = at;
    if (const LayerLayouts& kind = kind_of(owner, l); kind.sparse) {
      const auto alias = [&](LayoutId layout, FrameId of, DType type) {
        return x_builder.alias(layout, of, 0, bytes_of(type, at),
                               static_cast<std::int32_t>(owner.first_layer + l));
      };
      part.weights = alias(kind.experts, chunk.parameters, x_plan.precision.compute);
      part.gradients = alias(kind.expert_gradients, chunk.gradients, x_plan.precision.gradients);
      at += kind.parameters.expert_elements;
    }
    part.cut_end = at;
    chunk.parts.push_back(part);
  }
  make_buckets(chunk);
  x_chunks[index].experts = static_cast<int>(x_chunks.size());
  x_chunks.push_back(std::move(chunk));
}

/// Binds the experts of layer `l` to its call; in the first pass they must have been gathered.
void StageWriter::add_experts(const Chunk& chunk, std::int64_t l, Call& call) const {
  if (!kind_of(chunk, l).sparse) return;
  const Chunk& experts = x_chunks[static_cast<std::size_t>(chunk.experts)];
  const PartFrames& part = experts.parts[static_cast<std::size_t>(l)];
  call.frames.push_back(part.weights);
  call.frames.push_back(part.gradients);
  wait_gathered(experts, part, call);
}

/// After the backward pass of layer `l`; at the first layer all experts of the chunk are done.
void StageWriter::reduce_experts_ready(const Chunk& chunk, std::int64_t l, FrameId frame,
                                       std::int16_t event) {
  if (chunk.experts < 0) return;
  Chunk& experts = x_chunks[static_cast<std::size_t>(chunk.experts)];
  if (l == 0) return finish_chunk(experts, frame, event);
  reduce_ready(experts, experts.parts[static_cast<std::size_t>(l)].cut_begin, frame, event);
}

/// Without a sharded optimizer the experts' squares are summed over the ranks that hold different
/// ones, which are not those over which the others' are.
void StageWriter::add_expert_norm(SegmentWriter& w) {
  const Ref norm{0, kNormSquare, DType::kFp32, 1};
  const Ref experts{0, kExpertNormSquare, DType::kFp32, 1};
  w.compute("gradients.norm.experts.reduce",
            Collective{CollectiveKind::kAllReduce, x_builder.group(kExpertNormGroup), 1,
                       DType::kFp32, false},
            {experts.view()}, {experts.view()});
  w.segment().ops.back().category = Category::kData;
  Kernel add;
  add.kind = KernelKind::kAdd;
  add.rows = add.cols = 1;
  add.dtype = DType::kFp32;
  w.compute("gradients.norm.add", add, {experts.view(), norm.view()}, {norm.view()});
}

}  // namespace foretrain
