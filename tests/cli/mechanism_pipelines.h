// What tests of model-parallel systems share: the small model's sizes, and what a stage of two does
// in turn under a schedule, told as `Story` tells it.
#pragma once

#include <cstdint>
#include <set>

#include "tests/cli/story.h"

namespace foretrain {

/// The model and the microbatch of `lowered`.
struct SmallModel {
  static constexpr std::int64_t kHidden = 256, kInner = 512, kTokens = 128, kVocabulary = 1024;
  /// Elements of a layer's matrices.
  static constexpr std::int64_t kMatrices = 4 * kHidden * kHidden + 3 * kHidden * kInner;
  /// Bytes of b s h in 16 bits.
  static constexpr std::int64_t kStream = 2 * kTokens * kHidden;
};

std::int64_t padded_to(std::int64_t count, std::int64_t unit);

/// Settings of four layers on two stages of two tensor and two data ranks, four microbatches.
Lines pipelined_by(Lines more);

/// ": all-gather of 8 B on tensor", behind an operation of `ops_of`.
std::string moved(const char* kind, std::int64_t bytes, const char* stream);

/// `lines` with <gather>, <scatter> and <reduce> for collectives of the whole residual stream.
Lines streams_in(Lines lines);

/// A stage of a pipeline that has two of them and four layers.
struct PipelineStage {
  std::int64_t stage = 0, chunks = 1, microbatches = 4;
  bool host_waits = false;  ///< for what it receives
  std::string suffix = "";  ///< of a layer's passes
  bool again = false;       ///< backward passes begin with the forward passes of their layers
};

/// A pass of a microbatch through a chunk of the stage.
struct ListedPass {
  bool forward = true;
  std::int64_t chunk = 0, microbatch = 0;
};

/// Warm-up, one forward and one backward pass by turns, the rest; several chunks take turns after
/// as many microbatches as there are stages.
std::vector<ListedPass> one_forward_one_backward(const PipelineStage& stage);

/// The passes with what stands at the ends of the model and what is sent and received.
Lines lines_of(const PipelineStage& stage, const std::vector<ListedPass>& passes);

/// Of a pipelined story: passes and messages in order, without sizes and what they wait for.
Lines passes_of(const Lines& story);

/// Bytes of the story's messages.
std::set<std::int64_t> message_sizes(const Lines& story);

}  // namespace foretrain
