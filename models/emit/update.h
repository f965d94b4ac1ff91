// The end of a step: the update on the device or the host, and what follows it.
#pragma once

#include "models/stage.h"

namespace foretrain {

// models/emit/update.cpp
std::int64_t shard_elements(Stage& stage, const Bucket& bucket);
View shard_view(Stage& stage, std::int16_t frame, const Bucket& bucket, DType type);
void reduce_over_replicas(Stage& stage, Segment& segment, const ReplicaGroup& holders,
                          const View& shard, std::int64_t count, DType type, EventRef before,
                          EventRef after);
StreamWait reduce_parts(Stage& stage, const char* stream, const char* group, const Chunk& chunk,
                        const std::vector<ElementRange>& parts, std::int16_t mark,
                        StreamWait after);
StreamWait reduce_parts_of(Stage& stage, Chunk& chunk, const Task& task);
StreamWait update(Stage& stage, const Task& task);
void write_clips(Stage& stage, SegmentWriter& w, const std::vector<UpdatedArrays>& updated);
void write_updates(Stage& stage, SegmentWriter& w, const std::vector<UpdatedArrays>& updated);
void gather_bucket(Stage& stage, Chunk& chunk, Bucket& bucket, StreamWait after);
void reduce_loss(Stage& stage, const Task& task);

// models/emit/validation.cpp
void pass_down(Stage& stage, SegmentWriter& w, const std::string& name, const Ref& value);
void validate_last_step(Stage& stage, const Task& task);

// models/emit/host_states.cpp
Op& side_op(Stage& stage, Segment& segment, const char* stream, const std::string& name, Work work,
            std::vector<View> reads, std::vector<View> writes);
void gradients_to_host(Stage& stage, Segment& segment, const View& part, std::int64_t own,
                       bool first);
void make_host_buckets(Stage& stage, Chunk& chunk);
void bucket_to_host(Stage& stage, const Chunk& chunk, Bucket& bucket, StreamWait after);
void shard_from_host(Stage& stage, Segment& segment, const View& shard, const View& to);
bool kept_on_host(Stage& stage, const Chunk& chunk, std::int64_t last);
void update_on_host(Stage& stage, bool at_begin);
void update_on_device(Stage& stage);
void load_weights(Stage& stage, const Task& task);
StreamWait host_updated(Stage& stage, const Unit& unit);

}  // namespace foretrain
