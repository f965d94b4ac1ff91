// 1f1b-vocab-1 and -2 (Yeung et al., arXiv 2411.05288, sections 4 and 5): see
// models/schedule/schedule.h.
#include <algorithm>
#include <tuple>

#include "models/schedule/schedule.h"

namespace foretrain {
namespace {

/// A pass at its time in the repeated pattern, in halves of a forward pass. What falls on the same
/// time goes in the order of `rank`.
struct Timed {
  std::int64_t time = 0;
  int rank = 0;
  Pass pass;
};

/// The passes of one stage but for those of the embedding: a forward pass takes 2 halves, the
/// backward pass `x_backward`, the vocabulary's none.
class VocabularyPattern {
 public:
  VocabularyPattern(const Plan& plan, std::int64_t stage)
      : x_plan(plan),
        x_stage(stage),
        x_stages(plan.pipeline),
        x_backward(plan.recompute.layer ? 6 : 4),
        x_interval(2 + x_backward) {}

  /// Microbatches that are looked up before the forward pass of the first of them.
  std::int64_t ahead() const { return 3 + (2 * x_stage + x_interval - 1) / x_interval; }

  /// Backward passes from that of the microbatch whose embedding's gradients are summed next: so
  /// many until the first stage's is over, where all others stand ready one turn later.
  std::int64_t behind() const {
    if (x_stage == 0) return 2;
    return (x_backward * (x_stage + 1) + x_interval - 1) / x_interval;
  }

  std::vector<Timed> run() {
    const std::int64_t barriers = x_plan.vocabulary_barriers();
    const std::int64_t below = x_stages - 1 - x_stage;
    // The last stage begins with barriers + 1 forward passes at once, then takes turns.
    const std::int64_t saved = barriers * (x_interval - 2);
    for (std::int64_t m = 0; m < x_plan.microbatches(); ++m) {
      const std::int64_t turn = m * x_interval - saved;
      const std::int64_t forward = m <= barriers ? 2 * m : turn;
      // On the last stage: when its forward pass is over, when its backward pass begins.
      const std::int64_t over = forward + 2 * x_stages;
      const std::int64_t back = turn + 2 * x_stages + barriers * x_interval;
      add(forward + 2 * x_stage, 2, m, PassKind::kForward);
      add(over + (below == 0 ? 0 : 1), 0, m, PassKind::kHeadForward);
      // With one barrier T may follow B, but for the last, after which all gradients are there.
      const bool after = below > 0 || m + 1 < x_plan.microbatches();
      add(barriers == 1 ? back + (after ? 1 : 0) : std::max(back - x_interval, over + 2), 1, m,
          PassKind::kHeadBackward);
      add(back + x_backward * below, 2, m, PassKind::kBackward);
    }
    std::sort(x_out.begin(), x_out.end(), [](const Timed& x, const Timed& y) {
      return std::tie(x.time, x.rank) < std::tie(y.time, y.rank);
    });
    return std::move(x_out);
  }

 private:
  void add(std::int64_t time, int rank, std::int64_t microbatch, PassKind kind) {
    x_out.push_back({time, rank, Pass{0, static_cast<std::int32_t>(microbatch), kind}});
  }

  const Plan& x_plan;
  std::int64_t x_stage, x_stages, x_backward, x_interval;
  std::vector<Timed> x_out;
};

}  // namespace

std::vector<Pass> vocabulary_passes(const Plan& plan, std::int64_t stage) {
  const std::int64_t all = plan.microbatches();
  std::vector<Pass> out;
  std::int64_t looked_up = 0;
  std::int64_t summed = 0;
  // What the first stage waits for is there in time: the first p + barriers + 1 microbatches, whose
  // forward passes follow each other, are looked up as many ahead as the stage is behind the first.
  const std::int64_t first = plan.pipeline + plan.vocabulary_barriers() + 1;
  const auto until = [&out, all](std::int64_t& next, std::int64_t end, PassKind kind) {
    for (; next < std::min(end, all); ++next) {
      out.push_back(Pass{0, static_cast<std::int32_t>(next), kind});
    }
  };
  VocabularyPattern pattern(plan, stage);
  const std::int64_t behind = pattern.behind();
  for (const Timed& timed : pattern.run()) {
    const std::int64_t m = timed.pass.microbatch;
    const PassKind kind = timed.pass.kind;
    if (kind == PassKind::kForward) {
      until(looked_up, std::min(m + stage + 2, first), PassKind::kEmbedding);
      until(looked_up, m + pattern.ahead(), PassKind::kEmbedding);
    }
    out.push_back(timed.pass);
    if (kind != PassKind::kBackward) continue;
    until(summed, m - behind + 1, PassKind::kEmbeddingGradients);
  }
  until(summed, all, PassKind::kEmbeddingGradients);
  return out;
}

}  // namespace foretrain
