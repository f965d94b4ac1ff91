// Gradient buckets: where they are cut, and how they are reduced.
#pragma once

#include "models/stage.h"

namespace foretrain {

// models/gradients/buckets.cpp
void make_buckets(Stage& stage, Chunk& chunk);
DType travelling_type(Stage& stage);
void reduce_bucket(Stage& stage, Chunk& chunk, Bucket& bucket, FrameId frame, std::int16_t event);
Op& bucket_op(Stage& stage, const Bucket& bucket, Segment& segment, const char* name, Work work,
              std::vector<View> reads, std::vector<View> writes);
View gradients_of(Stage& stage, const Bucket& bucket);
bool scatters(Stage& stage, const Bucket& bucket);
void sum_over_ranks(Stage& stage, const Bucket& bucket, Segment& segment, const View& all,
                    const View& part, DType type, EventRef done);
void sum_copies(Stage& stage, const Bucket& bucket, const Ref& copied, Segment& segment);
void pad(Stage& stage, const Bucket& bucket, const Ref& rest, Segment& segment);
Ref copy_in(Stage& stage, const Bucket& bucket, Segment& segment);

// models/gradients/contiguous.cpp
void copy_in(Stage& stage, Chunk& chunk, FrameId from, std::int64_t begin, StreamWait after = {});

// models/gradients/buckets.cpp
void copy_back(Stage& stage, Chunk& chunk);
void collect_pass(Stage& stage, Chunk& chunk, bool last);
StreamWait add_pass(Stage& stage, const Chunk& chunk);

// models/gradients/coordinator.cpp
std::vector<std::int64_t> list_begins(Stage& stage, const Chunk& chunk);
void number_lists(Stage& stage, Chunk& chunk);
void coordinate(Stage& stage, const Chunk& chunk, const Bucket& bucket, Segment& segment);

// models/gradients/compression.cpp
void write_narrowed(Stage& stage, Bucket& bucket, Segment& segment, Call& call, const View& from);
void stage_factors(Stage& stage, Chunk& chunk, const AddBuffer& add);
void write_factors(Stage& stage, Bucket& bucket, Segment& segment, const View& all);
void stage_signs(Chunk& chunk, const AddBuffer& add);
void write_signs(Stage& stage, Bucket& bucket, Segment& segment, const View& all);

// models/gradients/contiguous.cpp
std::vector<std::int64_t> contiguous_begins(Stage& stage, const Chunk& chunk);
Buffer own_gradients(Stage& stage, const Chunk& chunk, const Bucket& bucket);
void make_own(Stage& stage, Chunk& chunk);
void fresh_end(Stage& stage, Chunk& chunk, PartFrames& part, const EndLayouts& end);
void bind_tied(Stage& stage, const Chunk& chunk, bool backward, Call& call);
void reduce_contiguous(Stage& stage, Chunk& chunk, Bucket& bucket, StreamWait after);
void finish_contiguous(Stage& stage, Chunk& chunk, FrameId frame, std::int16_t event, bool last);

// models/gradients/owners.cpp
std::vector<Op> scattered(Stage& stage, const ReplicaGroup& holders, const View& whole,
                          const View& part, std::int64_t count, DType type,
                          const std::vector<std::int64_t>& runs = {});
std::vector<Op> sums(Stage& stage, const Bucket& bucket, const View& all, const View& part,
                     DType type);
std::vector<Op> from_owners(Stage& stage, const ReplicaGroup& holders, const View& whole,
                            std::int64_t count, DType type, Phase phase);

}  // namespace foretrain
