// StageWriter: builds a stage's Program in three steps: frames and segments, the schedule, the
// update.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/chunk.h"
#include "models/schedule.h"
#include "models/stage.h"

namespace foretrain {

class StageWriter {
 public:
  StageWriter(const Model& model, const Plan& plan, std::int64_t stage);
  Program run() &&;

 private:
  // --- Frames and segments (stage_parts.cpp) ---
  void write_layouts();
  void write_segments();
  void make_chunk(std::int64_t index);
  void place_parts(Chunk& chunk);
  void make_buckets(Chunk& chunk);
  PartFrames place(const ParameterLayouts& parameters, LayoutId weights, LayoutId gradients,
                   LayoutId shared, LayoutId shared_gradients, std::int32_t layer);
  bool tied_across() const;
  bool sharded(const Replicas& replicas) const {
    return x_plan.sharding == Sharding::kOptimizer && replicas.ranks > 1;
  }
  const LayerLayouts& kind_of(const Chunk& chunk, std::int64_t l) const {
    return x_model.sparse(chunk.first_layer + l) ? x_sparse_layer : x_layer;
  }
  void own_buffers(Chunk& chunk, std::int64_t elements);
  /// The chunk of experts that belongs to chunk `index` (stage_experts.cpp).
  void make_experts(std::size_t index);
  void add_experts(const Chunk& chunk, std::int64_t l, Call& call) const;
  void reduce_experts_ready(const Chunk& chunk, std::int64_t l, FrameId frame, std::int16_t event);
  void add_expert_norm(SegmentWriter& w);
  bool own_expert_norm() const {
    return x_model.has_experts() && x_plan.sharding == Sharding::kNone;
  }
  bool recomputed(std::int64_t layer_of_stage) const;

  // --- The schedule (stage_writer.cpp) ---
  struct Passage {                ///< one microbatch in one chunk
    std::vector<FrameId> hidden;  ///< residual stream: before layer 0, after layer 0, ...
    std::vector<FrameId> saved;   ///< by layer
    FrameId embedding_saved, head_saved, inputs;
    FrameId gradient;  ///< of the residual stream, as the backward pass comes down
  };
  void step_begins();
  void gather_parameters(Chunk& chunk);
  void forward(std::int32_t chunk, std::int32_t microbatch);
  void backward(std::int32_t chunk, std::int32_t microbatch, bool last);
  void load_inputs(Passage& passage, std::int32_t microbatch);
  void embedding_forward(const Chunk& chunk, Passage& passage, std::int32_t mb);
  void head_forward(const Chunk& chunk, Passage& passage, std::int32_t mb);
  void head_backward(const Chunk& chunk, Passage& passage, std::int32_t mb);
  void embedding_backward(Chunk& chunk, Passage& passage, std::int32_t mb, bool last);
  void layer_forward(const Chunk& chunk, Passage& passage, std::int64_t l, std::int32_t mb);
  void layer_backward(const Chunk& chunk, Passage& passage, std::int64_t l, std::int32_t mb);
  void wait_gathered(const Chunk& chunk, const PartFrames& part, Call& call) const;
  void message(SegmentId segment, FrameId frame, std::int32_t microbatch, bool send);
  SegmentId message_segment(const std::string& stream, const char* channel, LayoutId layout,
                            bool send);

  // --- Reductions and the update (stage_update.cpp) ---
  void reduce_ready(Chunk& chunk, std::int64_t reached, FrameId frame, std::int16_t event);
  void reduce_bucket(Chunk& chunk, Bucket& bucket, FrameId frame, std::int16_t event);
  void finish_chunk(Chunk& chunk, FrameId frame, std::int16_t event);
  /// Elements [begin, end) of a chunk's gradients.
  using Range = std::pair<std::int64_t, std::int64_t>;
  /// All-reduces parts of the gradients over a small group; returns where the last one's event is.
  StreamWait reduce_parts(const char* stream, const char* group, const Chunk& chunk,
                          const std::vector<Range>& parts, std::int16_t mark, StreamWait after);
  std::vector<Range> partial_gradients(const Chunk& chunk) const;
  void reduce_rest();
  void update();
  void write_clipping(SegmentWriter& w);
  void write_updates(SegmentWriter& w);
  void gather_bucket(Chunk& chunk, Bucket& bucket, StreamWait after);
  void reduce_loss();
  /// This rank's part of a bucket in formal frame `frame`; all of it when the optimizer is not
  /// sharded.
  View shard_view(std::int16_t frame, const Bucket& bucket, DType type) const;
  std::int64_t shard_elements(const Bucket& bucket) const;
  LayoutId layout_of(FrameId frame) const {
    return x_builder.program().frames[frame.index()].layout;
  }

  const Model& x_model;
  const Plan& x_plan;
  std::int64_t x_stage;
  ProgramBuilder x_builder;
  LayerLayouts x_layer, x_sparse_layer;
  EndLayouts x_embedding, x_head;
  LayoutId x_inputs, x_scalars, x_bucket, x_marks;
  std::map<std::pair<bool, bool>, LayerSegments> x_layer_segments;  ///< by experts, recomputed
  std::optional<EndSegments> x_embedding_segments, x_head_segments;
  SegmentId x_load;
  SegmentId x_send_activation, x_receive_activation, x_send_gradient, x_receive_gradient;
  FrameId x_scalar_frame;
  std::vector<Chunk> x_chunks;
  std::map<std::pair<std::int32_t, std::int32_t>, Passage> x_passages;
  std::map<std::int32_t, FrameId> x_input_frames;
  std::vector<StreamWait> x_before_next;    ///< compute waits for these before its next call
  std::vector<StreamWait> x_before_update;  ///< gradients that are not reduced over data
  bool x_first_pass = false;
};

}  // namespace foretrain
