// Sharded units: what they are, and how they are gathered and reduced (ZeRO-2, ZeRO-3, FSDP).
#pragma once

#include <utility>

#include "models/stage.h"

namespace foretrain {

/// Gathers of MiCS: models/units/levels.cpp.
inline bool gathers_in_levels(const Stage& stage, const ShardLayout& shape) {
  return stage.plan.units.inner_group > 1 && shape.holders.shards > 1;
}
/// Where the shards of a unit's parameters lie.
inline Memory shard_memory(const Stage& stage, const ShardLayout& shape) {
  return shape.on_host ? stage.plan.offload.parameters : Memory::kDevice;
}

// models/units/units.cpp
FrameId gradients_of(Stage& stage, Unit& unit, std::int32_t mb);

// models/units/shapes.cpp
std::size_t shape_of(Stage& stage, ShardLayout shape, const UnitContent& content);
const std::vector<Piece>& pieces_of(Stage& stage, const ShardLayout& shape);
SegmentId gather_part(Stage& stage, std::size_t shape, std::int16_t from, std::int16_t to);
void add_host_states(Stage& stage, FrameLayout& states, std::int64_t own);
Op unit_op(Stage& stage, const char* stream, const char* name, Work work, Phase phase);
View own_shard(Stage& stage, std::int16_t frame, std::int16_t buffer, const ShardLayout& shape,
               DType type);

// models/units/tied.cpp
StreamWait sum_tied(Stage& stage, Unit& unit);

// models/units/units.cpp
void make_units(Stage& stage, Chunk& chunk);
std::vector<LayoutId> owners_of(Stage& stage, Chunk& chunk, std::int64_t layer);
void push_unit(Stage& stage, Chunk& chunk, std::size_t shape, std::int64_t first,
               std::int64_t last);
Unit& unit_of(Chunk& chunk, std::int64_t layer);
Unit* root_of(Chunk& chunk);
Unit* small_unit(Chunk& chunk);
void fill_last_pages(Stage& stage, Bytes page);
StreamWait zero_units(Stage& stage);
void open_unit(Stage& stage, Unit& unit, const Task& task);
void gather_weights(Stage& stage, Unit& unit, StreamWait after);
void reduce_unit(Stage& stage, Unit& unit, std::int32_t mb, StreamWait after);
void bind_unit(Stage& stage, Unit& unit, bool backward, Call& call);
void bind_part(Stage& stage, Chunk& chunk, std::int64_t layer, const EndLayouts* end, bool backward,
               Call& call);
const LayerSegments& layer_segments(Stage& stage, Chunk& chunk, std::int64_t layer);
void bind_units(Stage& stage, SegmentWriter& w, Call& call, std::vector<UpdatedArrays>& out);

// models/units/quantized.cpp
void add_quantized(Stage& stage, const ShardLayout& shape, FrameLayout& weights,
                   FrameLayout& gradients);
bool gathers_quantized(Stage& stage, const ShardLayout& shape);
void gather_quantized(Stage& stage, const ShardLayout& shape, const Ref& shard, const Ref& whole,
                      Segment& segment);
void write_secondary(Stage& stage, ShardLayout& shape, const Ref& whole, Segment& forward);
void reduce_quantized(Stage& stage, const ShardLayout& shape, const Ref& whole, const Ref& part,
                      const PushOp& push);

// models/units/runs.cpp
void append_layout(Stage& stage, UnitContent& out, const FrameLayout& layout, std::int64_t layer);
std::vector<std::int64_t> unit_runs(Stage& stage, const ShardLayout& shape,
                                    const UnitContent& content);
std::int64_t unit_elements(Stage& stage, const ShardLayout& shape);
std::vector<UnitRuns> gathered_together(Stage& stage, const ShardLayout& shape);
std::vector<UnitRuns> reduced_together(Stage& stage, const ShardLayout& shape);

// models/units/levels.cpp
void gather_whole(Stage& stage, const ShardLayout& shape, const View& part, const Ref& whole,
                  std::pair<std::int16_t, std::int16_t> calls, Segment& segment);

}  // namespace foretrain
