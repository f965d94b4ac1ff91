// What a stage holds: frames of parameters, gradients and states, by chunk, and the segments of its
// layers and ends.
#pragma once

#include "models/stage.h"

namespace foretrain {

// models/emit/experts.cpp
void make_experts(Stage& stage, std::size_t index);
Unit* expert_unit(Stage& stage, const Chunk& chunk, std::int64_t layer);
void bind_experts(Stage& stage, const Chunk& chunk, std::int64_t l, bool backward, Call& call);
void add_expert_norm(Stage& stage, SegmentWriter& w);

// models/emit/encoder_decoder.cpp
LayoutId paired_inputs(Stage& stage);
void write_stacks(Stage& stage);
void write_stack_ends(Stage& stage);
const LayerSegments& stack_segments(Stage& stage, Chunk& chunk, std::int64_t l);
void bind_memory(Stage& stage, Chunk& chunk, MicrobatchState& passage, std::int64_t l,
                 bool backward, Call& call);

// models/emit/shared_blocks.cpp
/// Gives the kinds of layers with such a block its frames, once the embedding's layouts are there.
void add_block_frames(Stage& stage);
void bind_block(Stage& stage, const Chunk& chunk, MicrobatchState& passage, std::int64_t l,
                bool backward, Call& call);

// models/emit/network.cpp
LayoutId image_inputs(Stage& stage);
void write_blocks(Stage& stage);
void bind_loss(Stage& stage, const Chunk& chunk, std::int64_t l, Call& call);

// models/emit/fp8_weights.cpp
void map_weights(Stage& stage, Chunk& chunk, bool head_table);
void map_expert_weights(Stage& stage, Chunk& experts, const Chunk& owner);
Bytes weight_byte(Stage& stage, const Chunk& chunk, std::int64_t element);
View weights_of(Stage& stage, std::int16_t frame, const Chunk& chunk, const Bucket& bucket);
View own_weights(Stage& stage, std::int16_t frame, const Chunk& chunk, const Bucket& bucket);
Buffer weight_buffer(Stage& stage, Chunk& chunk, std::int64_t elements);

// models/emit/frames.cpp
template <typename Layouts>
void parameter_frames(Stage& stage, Layouts& out, const std::string& name,
                      const std::vector<Parameter>& parameters);
void write_layouts(Stage& stage);
void write_segments(Stage& stage);
void write_ends(Stage& stage, bool embedding, bool head);
void make_chunk(Stage& stage, std::int64_t index);
std::vector<GridPart> grid_parts(Stage& stage, const Chunk& chunk, std::int64_t cut_begin,
                                 std::int64_t cut_end);
void own_buffers(Stage& stage, Chunk& chunk, std::int64_t elements, std::vector<Replica> replicas);

/// The layouts of a layer of an encoder-decoder: models/emit/encoder_decoder.cpp.
const LayerLayouts& stack_layouts(const Stage& stage, std::int64_t layer);
/// The microbatches of the stage's Program, for executors.
Batch batch(Stage& stage);

}  // namespace foretrain
