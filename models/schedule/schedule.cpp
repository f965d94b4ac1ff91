#include "models/schedule/schedule.h"

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
  pass.kind = backward ? PassKind::kBackward : PassKind::kForward;
  return pass;
}

std::vector<Pass> breadth_first(std::int64_t v, std::int64_t m) {
  std::vector<Pass> out;
  for (std::int64_t k = 0; k < 2 * v * m; ++k) {
    const bool backward = k >= v * m;
    const std::int64_t chunk = backward ? 2 * v - 1 - k / m : k / m;
    out.push_back(Pass{static_cast<std::int32_t>(chunk), static_cast<std::int32_t>(k % m),
                       backward ? PassKind::kBackward : PassKind::kForward});
  }
  return out;
}

/// zb-h1 and zb-h2: `warmup` forwards, then a forward and a backward in turn, gradients of weights
/// `delay` microbatches behind.
std::vector<Pass> delayed_weights(std::int64_t warmup, std::int64_t delay, std::int64_t m) {
  std::vector<Pass> out;
  const auto add = [&out](std::int64_t microbatch, PassKind kind) {
    out.push_back(Pass{0, static_cast<std::int32_t>(microbatch), kind});
  };
  for (std::int64_t k = 0; k < std::min(warmup, m); ++k) add(k, PassKind::kForward);
  for (std::int64_t k = 0; k < m; ++k) {
    if (k + warmup < m) add(k + warmup, PassKind::kForward);
    add(k, PassKind::kInputGradients);
    if (k >= delay) add(k - delay, PassKind::kWeightGradients);
  }
  for (std::int64_t k = std::max<std::int64_t>(0, m - delay); k < m; ++k) {
    add(k, PassKind::kWeightGradients);
  }
  return out;
}

/// The list of place `r` from the open end of a V of `n` stages through which m microbatches go:
/// chunk 0 on the way down, 1 on the way up.
class DualList {
 public:
  std::vector<Pass> run(std::int64_t n, std::int64_t r, std::int64_t m) && {
    times(2 * (n - r - 1), [this] { forward(0); });
    times(r + 1, [this] {
      forward(0);
      forward(1);
    });
    times(n - r - 1, [this] {
      inputs(1);
      weights();
      forward(1);
    });
    bool pairs = r < n - 1;  // the bottom of the V does not join its first two
    times(m - 2 * n + r + 1, [this, &pairs] {
      forward(0, pairs);
      backward(1);
      pairs = true;
      forward(1, true);
      backward(0);
    });
    times(n - r - 1, [this] {
      backward(1);
      forward(1, true);
      backward(0);
    });
    // From half of these on the gradients of weights are left for the end.
    for (std::int64_t k = 0; k < 2 * (r + 1); ++k) {
      k > r ? inputs(1 - k % 2) : backward(1 - k % 2);
    }
    times(n - r - 1, [this] {
      weights();
      inputs(0);
    });
    times(r + 1, [this] { weights(); });
    return std::move(x_out);
  }

 private:
  template <typename Body>
  static void times(std::int64_t count, Body body) {
    for (std::int64_t k = 0; k < count; ++k) body();
  }
  void forward(std::int64_t chunk, bool joined = false) {
    add(chunk, x_forwards[chunk]++, PassKind::kForward, joined);
  }
  void inputs(std::int64_t chunk) {
    add(chunk, x_backwards[chunk]++, PassKind::kInputGradients, false);
    x_later.push_back(x_out.back());
  }
  void backward(std::int64_t chunk) {
    add(chunk, x_backwards[chunk], PassKind::kInputGradients, true);
    add(chunk, x_backwards[chunk]++, PassKind::kWeightGradients, false);
  }
  void weights() {
    const Pass& pass = x_later[x_taken++];
    add(pass.chunk, pass.microbatch, PassKind::kWeightGradients, false);
  }
  void add(std::int64_t chunk, std::int64_t microbatch, PassKind kind, bool joined) {
    x_out.push_back(Pass{static_cast<std::int32_t>(chunk), static_cast<std::int32_t>(microbatch),
                         kind, joined});
  }

  std::vector<Pass> x_out, x_later;
  std::size_t x_taken = 0;
  std::int64_t x_forwards[2] = {}, x_backwards[2] = {};
};

/// Both halves of the stages run the list of a V of half of them; the V of the second half begins
/// at the last stage, and what goes down there goes up the stages.
std::vector<Pass> dual_pipe(std::int64_t stage, std::int64_t p, std::int64_t m) {
  const bool second = stage >= p / 2;
  const std::int64_t place = second ? p - 1 - stage : stage;
  std::vector<Pass> out = DualList().run(p / 2, place, m / 2);
  for (Pass& pass : out) {
    if (second) pass.chunk = 1 - pass.chunk;
    if (pass.chunk == 1) pass.microbatch += static_cast<std::int32_t>(m / 2);
  }
  return out;
}

/// The steps of 1f1b-interlaced; those of the vocabulary's passes lie between two.
std::vector<Pass> shared_vocabulary(std::int64_t stage, std::int64_t p, std::int64_t m) {
  const auto backward_step = [p](std::int64_t s) {
    std::int64_t step = p;
    for (std::int64_t at = p - 2; at >= s; --at) step += (p - at) % 2 == 0 ? 3 : 1;
    return step;
  };
  // In half steps, of microbatch 0. All stages meet once in two steps: where the head's passes
  // fall.
  const std::int64_t head = 2 * (p - 1) + 1;
  const std::int64_t forward = 2 * stage;
  const std::int64_t backward = 2 * backward_step(stage);
  const std::int64_t embedding = p % 2 == 0 ? -1 : -3;
  const std::int64_t gradients = 2 * backward_step(0) + (p % 2 == 0 ? 1 : 3);
  std::vector<std::pair<std::int64_t, Pass>> timed;
  for (std::int64_t k = 0; k < m; ++k) {
    const auto add = [&timed, k](std::int64_t time, PassKind kind) {
      timed.emplace_back(time + 4 * k, Pass{0, static_cast<std::int32_t>(k), kind});
    };
    add(gradients, PassKind::kEmbeddingGradients);
    add(head, PassKind::kHead);
    add(embedding, PassKind::kEmbedding);
    add(forward, PassKind::kForward);
    add(backward, PassKind::kBackward);
  }
  // What falls on the same time keeps one order on all stages, though of different microbatches.
  const auto rank = [](PassKind kind) {
    return kind == PassKind::kEmbeddingGradients ? 0 : kind == PassKind::kHead ? 1 : 2;
  };
  std::sort(timed.begin(), timed.end(), [&rank](const auto& x, const auto& y) {
    return std::pair(x.first, rank(x.second.kind)) < std::pair(y.first, rank(y.second.kind));
  });
  std::vector<Pass> out;
  for (const auto& [time, pass] : timed) out.push_back(pass);
  return out;
}

/// gpipe, 1f1b and interleaved-1f1b: `warmup` forwards, then a forward and a backward in turn.
std::vector<Pass> in_turn(Schedule schedule, std::int64_t stage, std::int64_t pipeline,
                          std::int64_t v, std::int64_t microbatches, bool paired) {
  const std::int64_t total = microbatches * v;
  const auto pass = [&](std::int64_t k, bool backward) {
    if (v > 1) return interleaved_pass(k, pipeline, v, backward);
    const PassKind kind = backward ? PassKind::kBackward : PassKind::kForward;
    return Pass{0, static_cast<std::int32_t>(k), kind};
  };
  std::int64_t warmup = std::min(pipeline - stage - 1, total);
  if (v > 1) {
    warmup = std::min(2 * (pipeline - stage - 1) + (v - 1) * pipeline, total);
    if (microbatches == pipeline) warmup = total;
  }
  if (paired) warmup = std::min(warmup + 1, total);
  if (schedule == Schedule::kGpipe) warmup = total;
  std::vector<Pass> out;
  for (std::int64_t k = 0; k < warmup; ++k) out.push_back(pass(k, false));
  for (std::int64_t k = warmup; k < total; ++k) {
    out.push_back(pass(k, false));
    out.back().joined = paired;
    out.push_back(pass(k - warmup, true));
  }
  if (schedule == Schedule::kGpipe) {
    for (std::int64_t k = total; k-- > 0;) out.push_back(pass(k, true));
    return out;
  }
  for (std::int64_t k = total - warmup; k < total; ++k) out.push_back(pass(k, true));
  return out;
}

}  // namespace

std::vector<Pass> schedule_passes(Schedule schedule, std::int64_t stage, std::int64_t pipeline,
                                  std::int64_t virtual_pipeline, std::int64_t microbatches,
                                  bool paired) {
  const std::int64_t below = pipeline - stage - 1;
  switch (schedule) {
    case Schedule::kZbH1:
      return delayed_weights(below, stage, microbatches);
    case Schedule::kZbH2:
      return delayed_weights(2 * below, 2 * stage, microbatches);
    case Schedule::kDualPipe:
      return dual_pipe(stage, pipeline, microbatches);
    case Schedule::kDualPipeV:
      return DualList().run(pipeline, stage, microbatches);
    case Schedule::kSharedVocabulary:
      return shared_vocabulary(stage, pipeline, microbatches);
    case Schedule::kBreadthFirst:
      return breadth_first(virtual_pipeline, microbatches);
    case Schedule::kInterleaved:
      return in_turn(schedule, stage, pipeline, virtual_pipeline, microbatches, paired);
    default:
      return in_turn(schedule, stage, pipeline, 1, microbatches, paired);
  }
}

bool fits_durations(Schedule schedule) {
  return schedule == Schedule::kZbAuto || schedule == Schedule::kZbV ||
         schedule == Schedule::kChimera;
}

std::vector<std::vector<Pass>> passes_of(const Plan& plan) {
  const bool given = plan.schedule == Schedule::kFile || fits_durations(plan.schedule);
  if (given && !plan.passes.empty()) return plan.passes;
  if (plan.schedule == Schedule::kZbV || plan.schedule == Schedule::kChimera) {
    return ranked_passes(plan);
  }
  if (plan.schedule == Schedule::kZbAuto) {
    return automatic_passes(plan.automatic, plan.pipeline, plan.microbatches());
  }
  std::vector<std::vector<Pass>> out;
  for (std::int64_t s = 0; s < plan.pipeline; ++s) out.push_back(passes_of(plan, s));
  return out;
}

std::vector<Pass> passes_of(const Plan& plan, std::int64_t stage) {
  switch (plan.schedule) {
    case Schedule::kFile:
    case Schedule::kZbAuto:
    case Schedule::kZbV:
    case Schedule::kChimera:
      if (!plan.passes.empty()) return plan.passes[static_cast<std::size_t>(stage)];
      return passes_of(plan)[static_cast<std::size_t>(stage)];
    case Schedule::kVocabulary1:
    case Schedule::kVocabulary2:
      return vocabulary_passes(plan, stage);
    case Schedule::k3F1B:
      return recycling_passes(plan, stage);
    default:
      return schedule_passes(plan.schedule, stage, plan.pipeline, plan.virtual_pipeline,
                             plan.microbatches(), plan.overlap.passes);
  }
}

ChunkPlacement Plan::placement() const {
  switch (schedule) {
    case Schedule::kZbV:
    case Schedule::kDualPipeV:
      return ChunkPlacement::kV;
    case Schedule::kDualPipe:
    case Schedule::kChimera:
      return ChunkPlacement::kBidirectional;
    case Schedule::kFile:
      return file.placement;
    default:
      return ChunkPlacement::kRound;
  }
}

std::int64_t Plan::chunk_at(std::int64_t stage, std::int64_t index) const {
  switch (placement()) {
    case ChunkPlacement::kRound:
      break;
    case ChunkPlacement::kV:
      if (index % 2 == 1) return (index + 1) * pipeline - 1 - stage;
      break;
    case ChunkPlacement::kBidirectional:
      return index == 0 ? stage : pipeline - 1 - stage;
  }
  return index * pipeline + stage;
}

std::int64_t Plan::stage_of(std::int64_t chunk, std::int64_t way) const {
  const std::int64_t at = chunk % pipeline;
  const bool up = way == 1 || (placement() == ChunkPlacement::kV && chunk / pipeline % 2 == 1);
  return up ? pipeline - 1 - at : at;
}

bool Plan::interleaves_pairs() const {
  const auto joins = [](const std::vector<Pass>& list) {
    return std::any_of(list.begin(), list.end(), [](const Pass& pass) { return pass.joined; });
  };
  return overlap.passes || schedule == Schedule::kDualPipe || schedule == Schedule::kDualPipeV ||
         (schedule == Schedule::kFile && std::any_of(passes.begin(), passes.end(), joins));
}

bool Plan::splits_backward() const {
  switch (schedule) {
    case Schedule::kZbH1:
    case Schedule::kZbH2:
    case Schedule::kZbV:
    case Schedule::kZbAuto:
    case Schedule::kDualPipe:
    case Schedule::kDualPipeV:
      return true;
    case Schedule::kFile:
      // A "B" is the gradients of inputs as soon as any stage has a "W" (read_schedule_file).
      return !passes.empty() &&
             std::any_of(passes.front().begin(), passes.front().end(),
                         [](const Pass& pass) { return pass.kind == PassKind::kInputGradients; });
    default:
      return false;
  }
}

std::vector<std::int64_t> default_layout(std::int64_t layers, std::int64_t chunks, bool ends) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(chunks), layers / chunks);
  if (layers % chunks == 0) return out;
  if (ends && (layers + 2) % chunks == 0) {
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
