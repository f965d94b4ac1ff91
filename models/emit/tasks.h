// Emission: a task becomes calls of segments. A kind of task each.
#pragma once

#include "models/stage.h"

namespace foretrain {

// models/emit/returned.cpp
void add_returned(Stage& stage, MicrobatchState& passage, std::int32_t mb);

// models/emit/activations.cpp
void emit_move(Stage& stage, TaskId id);
void wait_loaded(Stage& stage, const MicrobatchState& passage, std::int64_t l, Call& call);

// models/emit/vocabulary.cpp
void embedding_inner_forward(Stage& stage, Chunk& chunk, MicrobatchState& passage,
                             const Task& task);
void embedding_inner_backward(Stage& stage, Chunk& chunk, MicrobatchState& passage,
                              const Task& task);
void head_inner_backward(Stage& stage, Chunk& chunk, MicrobatchState& passage, const Task& task);

// models/emit/messages.cpp
void message(Stage& stage, const Task& task, FrameId frame, bool send);
void host_takes_time(Stage& stage, bool backward, std::int32_t mb);
void gather_message(Stage& stage, bool backward, std::int32_t mb, FrameId arrived);
void gather_output(Stage& stage, MicrobatchState& passage, std::int32_t mb);
void wait_on_host(Stage& stage, const Task& task);
void keep_part(Stage& stage, MicrobatchState& passage, std::int32_t mb);
void let_go_of_output(Stage& stage, const Chunk& chunk, const MicrobatchState& passage,
                      std::int32_t mb);
void let_go_of_casts(Stage& stage, const Chunk& chunk, const MicrobatchState& passage,
                     const Task& task);

// models/emit/slices.cpp
void call_slice_heads(Stage& stage, TaskId id, Call call, const std::vector<SegmentId>& slices);
void call_slice_bodies(Stage& stage, const Task& task);
void call_slice_tails(Stage& stage, const Task& task);

// models/emit/weight_passes.cpp
Call for_weights(Stage& stage, Call call, SegmentId segment);

// models/emit/layers_and_ends.cpp
StageContext context(Stage& stage);
StreamWait point(Stage& stage, const Task& task);
std::vector<StreamWait> waits_of(Stage& stage, const Task& task, SegmentId segment);
void load_ahead(Stage& stage);
StreamWait zero(Stage& stage, std::size_t c);
StreamWait call_marked(Stage& stage, SegmentWriter& w, const char* event,
                       std::vector<FrameId> frames, std::vector<StreamWait> waits = {});
void load_inputs(Stage& stage, MicrobatchState& passage, std::int32_t microbatch);
FrameId inputs_of(Stage& stage, std::int32_t microbatch);
void need_input(Stage& stage, std::int32_t c, std::int32_t mb, bool gradient);
void embedding_forward(Stage& stage, Chunk& chunk, MicrobatchState& passage, const Task& task);
void layer_forward(Stage& stage, Chunk& chunk, MicrobatchState& passage, TaskId id);
void layer_again(Stage& stage, Chunk& chunk, MicrobatchState& passage, const Task& task);
void checkpoint(Stage& stage, std::int32_t mb);
void quantize_weights(Stage& stage, Chunk& chunk, const Task& task);
void head_forward(Stage& stage, Chunk& chunk, MicrobatchState& passage, const Task& task);
void head_backward(Stage& stage, Chunk& chunk, MicrobatchState& passage, TaskId id);
void layer_backward(Stage& stage, Chunk& chunk, MicrobatchState& passage, TaskId id);
void embedding_backward(Stage& stage, Chunk& chunk, MicrobatchState& passage, TaskId id);
void weight_gradients(Stage& stage, Chunk& chunk, TaskId id);

// models/emit/interleave.cpp
const std::vector<SegmentId>& blocks_of(Stage& stage, SegmentId id);
void interleave_paired_passes(Stage& stage);

// models/emit/scales.cpp
void share_scales(Stage& stage, const Task& task);

/// Writes the calls of a task.
void emit(Stage& stage, TaskId id);

}  // namespace foretrain
