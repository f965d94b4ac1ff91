#include "models/schedule.h"

#include <algorithm>

namespace foretrain {
namespace {

/// The k-th forward pass of an interleaved stage: groups of p microbatches run through chunk 0,
/// then through chunk 1, ... The k-th backward is the same with the chunks reversed.
Pass interleaved_pass(std::int64_t k, std::int64_t p, std::int64_t v, bool backward) {
  const std::int64_t group = k / (p * v);
  const std::int64_t chunk = k / p % v;
  Pass pass;
  pass.chunk = static_cast<std::int32_t>(backward ? v - 1 - chunk : chunk);
  pass.microbatch = static_cast<std::int32_t>(group * p + k % p);
  pass.backward = backward;
  return pass;
}

}  // namespace

std::vector<Pass> schedule_passes(Schedule schedule, std::int64_t stage, std::int64_t pipeline,
                                  std::int64_t virtual_pipeline, std::int64_t microbatches) {
  const std::int64_t v = schedule == Schedule::kInterleaved ? virtual_pipeline : 1;
  const std::int64_t total = microbatches * v;
  const auto pass = [&](std::int64_t k, bool backward) {
    if (v > 1) return interleaved_pass(k, pipeline, v, backward);
    return Pass{0, static_cast<std::int32_t>(k), backward};
  };
  std::int64_t warmup = std::min(pipeline - stage - 1, total);
  if (v > 1) {
    warmup = std::min(2 * (pipeline - stage - 1) + (v - 1) * pipeline, total);
    if (microbatches == pipeline) warmup = total;
  }
  if (schedule == Schedule::kGpipe) warmup = total;
  std::vector<Pass> out;
  for (std::int64_t k = 0; k < warmup; ++k) out.push_back(pass(k, false));
  for (std::int64_t k = warmup; k < total; ++k) {
    out.push_back(pass(k, false));
    out.push_back(pass(k - warmup, true));
  }
  if (schedule == Schedule::kGpipe) {
    for (std::int64_t k = total; k-- > 0;) out.push_back(pass(k, true));
    return out;
  }
  for (std::int64_t k = total - warmup; k < total; ++k) out.push_back(pass(k, true));
  return out;
}

std::vector<std::int64_t> default_layout(std::int64_t layers, std::int64_t chunks) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(chunks), layers / chunks);
  if (layers % chunks == 0) return out;
  if ((layers + 2) % chunks == 0) {
    std::fill(out.begin(), out.end(), (layers + 2) / chunks);
    --out.front();
    --out.back();
    return out;
  }
  // The chunks that get one layer more stand in the middle.
  const std::int64_t longer = layers % chunks;
  const std::int64_t first = (chunks - longer) / 2;
  for (std::int64_t c = first; c < first + longer; ++c) ++out[static_cast<std::size_t>(c)];
  return out;
}

}  // namespace foretrain
