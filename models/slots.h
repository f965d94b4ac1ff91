// Names of the slots of groups and channels, which segments use and the lowering binds.
#pragma once

#include <cstdint>
#include <string>

namespace foretrain {

/// The segments that reduce buckets of gradients.
inline constexpr const char* kReduceGradients = "reduce gradients";

/// Names of slots that `lower` binds.
inline constexpr const char* kTensorGroup = "tensor";
inline constexpr const char* kDataGroup = "data";
/// ReplicaGroup of the chunks of each way: ranks of two stages.
inline constexpr const char* kWayGroups[] = {"data down", "data up"};
inline constexpr const char* kExpertWayGroups[] = {"expert data down", "expert data up"};
inline constexpr const char* kMirrorGroup = "twins";               ///< same place on the two stages
inline constexpr const char* kTensorMirrorGroup = "tensor twins";  ///< their tensor groups together
inline constexpr const char* kShardGroup = "shards";      ///< where it is not all of "data"
inline constexpr const char* kReplicaGroup = "replicas";  ///< same shard, other groups
inline constexpr const char* kInnerGroup = "inner data";  ///< gradients.inner_group ranks
inline constexpr const char* kOuterGroup = "outer data";  ///< same place in other inner groups
/// sharding.inner_group ranks, and those at the same place in other such groups of "shards"
inline constexpr const char* kInnerShardGroup = "inner shards";
inline constexpr const char* kOuterShardGroup = "outer shards";
inline constexpr const char* kSecondaryGroup = "secondary shards";  ///< sharding.secondary_group
inline constexpr const char* kNormGroup = "gradient norm";
inline constexpr const char* kStageNormGroup = "gradient norm of a stage";
inline constexpr const char* kScaleGroup = "stage";  ///< all ranks that hold its layers
inline constexpr const char* kTensorScaleGroup = "tensor scales";  ///< on a stream of their own
inline constexpr const char* kStagesGroup = "stages";              ///< of a pipeline
inline constexpr const char* kVocabularyGroup = "vocabulary";      ///< and their tensor groups
// The same stages; what the spread passes of the vocabulary exchange does not wait for each other.
inline constexpr const char* kStagesGradientGroup = "stages gradients";
inline constexpr const char* kStagesEmbeddingGroup = "stages embedding";
inline constexpr const char* kStagesEmbeddingGradientGroup = "stages embedding gradients";
inline constexpr const char* kTiedGroup = "tied embedding";
inline constexpr const char* kTiedDepthGroup = "tied embedding of all depths";
inline constexpr const char* kExpertGroup = "expert";
inline constexpr const char* kExpertTensorGroup = "expert tensor";
inline constexpr const char* kExpertModelGroup = "expert model";  ///< both together
inline constexpr const char* kExpertDataGroup = "expert data";
inline constexpr const char* kExpertShardGroup = "expert shards";      ///< see kShardGroup
inline constexpr const char* kExpertReplicaGroup = "expert replicas";  ///< see kReplicaGroup
inline constexpr const char* kExpertNormGroup = "expert gradient norm";
inline constexpr const char* kContextGroup = "context";
// Who exchanges heads, and who passes keys on, where the two go together.
inline constexpr const char* kContextInnerGroup = "context inner";
inline constexpr const char* kContextOuterGroup = "context outer";
inline constexpr const char* kBatchGroup = "batch";  ///< of "data" those with other sequences
inline constexpr const char* kContextToNext = "context to next";
inline constexpr const char* kContextFromPrevious = "context from previous";
/// To the member of the tensor group `places` on, and from the one as many places before.
inline std::string ring_channel(bool send, std::int64_t places) {
  return std::string(send ? "tensor to " : "tensor from ") + std::to_string(places);
}
inline constexpr const char* kToNext = "activations to next";
inline constexpr const char* kFromPrevious = "activations from previous";
inline constexpr const char* kToPrevious = "gradients to previous";
inline constexpr const char* kFromNext = "gradients from next";
/// Of several messages of one pass, between stages of different tensor degrees.
inline std::string message_channel(const char* slot, std::int64_t message) {
  return message == 0 ? slot : slot + (" " + std::to_string(message));
}
/// Tensor ranks that send a part each to one rank of the neighbouring stage.
inline constexpr const char* kPartsToNext = "parts to next";
inline constexpr const char* kPartsToPrevious = "parts to previous";
// Of chunks that go up the stages again.
inline constexpr const char* kUpToPrevious = "activations to previous";
inline constexpr const char* kUpFromNext = "activations from next";
inline constexpr const char* kUpToNext = "gradients to next";
inline constexpr const char* kUpFromPrevious = "gradients from previous";

// What stages know of the norm of the gradients: models/step/passes/post_validate.cpp.
inline constexpr const char* kNormToNext = "norm to next";
inline constexpr const char* kNormFromPrevious = "norm from previous";
inline constexpr const char* kStateToPrevious = "whole norm to previous";
inline constexpr const char* kStateFromNext = "whole norm from next";

}  // namespace foretrain
