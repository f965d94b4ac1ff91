#include "models/schedule.h"

#include <algorithm>
#include <array>

#include "sim/base/check.h"

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

/// The list of every stage for zb-v, from a run in which every pass takes one unit of time.
class VShape {
 public:
  VShape(std::int64_t p, std::int64_t m)
      : x_stages(p), x_microbatches(m), x_out(static_cast<std::size_t>(p)) {
    x_kept.resize(static_cast<std::size_t>(p));
    for (auto& done : x_done) done.resize(static_cast<std::size_t>(2 * p));
  }

  std::vector<std::vector<Pass>> run() && {
    for (std::int64_t left = 6 * x_stages * x_microbatches; left > 0;) {
      std::vector<Taken> taken;
      for (std::int64_t s = 0; s < x_stages; ++s) take(s, taken);
      FT_CHECK(!taken.empty(), "zb-v waits for ever");
      // All begin together, so what they make is there for the next unit of time.
      for (const Taken& t : taken) finish(t);
      left -= static_cast<std::int64_t>(taken.size());
    }
    return std::move(x_out);
  }

 private:
  struct Taken {
    std::int64_t stage, index, kind;  ///< kind: 0 forward, 1 of inputs, 2 of weights
  };
  std::int64_t chunk(std::int64_t stage, std::int64_t index) const {
    return index == 0 ? stage : 2 * x_stages - 1 - stage;
  }
  std::int64_t& done(std::int64_t kind, std::int64_t chunk) {
    return x_done[static_cast<std::size_t>(kind)][static_cast<std::size_t>(chunk)];
  }
  /// What has to be done before the next pass of this kind is done for its microbatch.
  bool ready(std::int64_t kind, std::int64_t chunk) {
    const std::int64_t next = done(kind, chunk);
    if (next == x_microbatches) return false;
    if (kind == 0) return chunk == 0 || done(0, chunk - 1) > next;
    if (kind == 2) return done(1, chunk) > next;
    return chunk == 2 * x_stages - 1 ? done(0, chunk) > next : done(1, chunk + 1) > next;
  }
  void take(std::int64_t stage, std::vector<Taken>& taken) {
    constexpr std::int64_t kOrder[][2] = {{0, 1}, {1, 0}, {1, 1}, {0, 0}, {2, 1}, {2, 0}};
    for (const auto& [kind, index] : kOrder) {
      const bool full = x_kept[static_cast<std::size_t>(stage)] == 2 * x_stages;
      if ((kind == 0 && full) || !ready(kind, chunk(stage, index))) continue;
      taken.push_back({stage, index, kind});
      return;
    }
  }
  void finish(const Taken& t) {
    constexpr PassKind kKinds[] = {PassKind::kForward, PassKind::kInputGradients,
                                   PassKind::kWeightGradients};
    const auto stage = static_cast<std::size_t>(t.stage);
    std::int64_t& count = done(t.kind, chunk(t.stage, t.index));
    x_out[stage].push_back(Pass{static_cast<std::int32_t>(t.index),
                                static_cast<std::int32_t>(count++),
                                kKinds[static_cast<std::size_t>(t.kind)]});
    if (t.kind == 0) ++x_kept[stage];
    if (t.kind == 2) --x_kept[stage];
  }

  std::int64_t x_stages, x_microbatches;
  std::vector<std::vector<Pass>> x_out;
  std::vector<std::int64_t> x_kept;                 ///< by stage: passes whose activations it keeps
  std::array<std::vector<std::int64_t>, 3> x_done;  ///< by kind and chunk: microbatches
};

}  // namespace

std::vector<Pass> schedule_passes(Schedule schedule, std::int64_t stage, std::int64_t pipeline,
                                  std::int64_t virtual_pipeline, std::int64_t microbatches) {
  if (schedule == Schedule::kZbH1)
    return delayed_weights(pipeline - stage - 1, stage, microbatches);
  if (schedule == Schedule::kZbH2) {
    return delayed_weights(2 * (pipeline - stage - 1), 2 * stage, microbatches);
  }
  if (schedule == Schedule::kZbV) {
    return VShape(pipeline, microbatches).run()[static_cast<std::size_t>(stage)];
  }
  const std::int64_t v = schedule == Schedule::kInterleaved ? virtual_pipeline : 1;
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

std::vector<std::vector<Pass>> passes_of(const Plan& plan) {
  if (plan.schedule == Schedule::kFile) return plan.passes;
  if (plan.schedule == Schedule::kZbV) return VShape(plan.pipeline, plan.microbatches()).run();
  std::vector<std::vector<Pass>> out;
  for (std::int64_t s = 0; s < plan.pipeline; ++s) {
    out.push_back(schedule_passes(plan.schedule, s, plan.pipeline, plan.virtual_pipeline,
                                  plan.microbatches()));
  }
  return out;
}

bool Plan::splits_backward() const {
  if (schedule != Schedule::kFile) {
    return schedule == Schedule::kZbH1 || schedule == Schedule::kZbH2 || schedule == Schedule::kZbV;
  }
  return !passes.empty() &&
         std::any_of(passes.front().begin(), passes.front().end(),
                     [](const Pass& pass) { return pass.kind == PassKind::kWeightGradients; });
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
