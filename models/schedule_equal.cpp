#include <array>

#include "models/schedule.h"
#include "sim/base/check.h"

namespace foretrain {
namespace {

constexpr PassKind kForwards = PassKind::kForward;
constexpr PassKind kWeights = PassKind::kWeightGradients;

/// A run of two chunks a stage in which every pass takes one unit of time.
class EqualPasses {
 public:
  explicit EqualPasses(const Plan& plan)
      : x_plan(plan),
        x_stages(plan.pipeline),
        x_deepest(plan.chunks() - 1),
        x_microbatches(plan.microbatches() / plan.ways()),
        x_backward(plan.splits_backward() ? PassKind::kInputGradients : PassKind::kBackward),
        x_out(static_cast<std::size_t>(plan.pipeline)),
        x_kept(static_cast<std::size_t>(plan.pipeline)) {
    for (auto& way : x_done) {
      for (auto& kind : way) kind.resize(static_cast<std::size_t>(plan.chunks()));
    }
  }

  std::vector<std::vector<Pass>> run() && {
    const std::int64_t kinds = x_plan.splits_backward() ? 3 : 2;
    for (std::int64_t left = 2 * kinds * x_stages * x_microbatches; left > 0;) {
      std::vector<Choice> taken;
      for (std::int64_t s = 0; s < x_stages; ++s) take(s, taken);
      FT_CHECK(!taken.empty(), "a schedule of equal passes waits for ever");
      // All begin together, so what they make is there for the next unit of time.
      for (const Choice& t : taken) finish(t);
      left -= static_cast<std::int64_t>(taken.size());
    }
    return std::move(x_out);
  }

 private:
  struct Choice {
    PassKind kind = kForwards;
    std::int64_t index = 0, stage = 0;
  };
  bool both_ways() const { return x_plan.ways() == 2; }
  std::int64_t& done(const Choice& c, PassKind kind, std::int64_t chunk) {
    const std::size_t way = both_ways() ? static_cast<std::size_t>(c.index) : 0;
    return x_done[way][static_cast<std::size_t>(kind)][static_cast<std::size_t>(chunk)];
  }
  std::int64_t chunk_of(const Choice& c) const { return x_plan.chunk_at(c.stage, c.index); }

  /// What has to be done before the next pass of this kind is done for its microbatch.
  bool ready(const Choice& c) {
    const std::int64_t chunk = chunk_of(c);
    const std::int64_t next = done(c, c.kind, chunk);
    if (next == x_microbatches) return false;
    if (c.kind == kForwards) return chunk == 0 || done(c, kForwards, chunk - 1) > next;
    if (c.kind == kWeights) return done(c, x_backward, chunk) > next;
    return chunk == x_deepest ? done(c, kForwards, chunk) > next
                              : done(c, x_backward, chunk + 1) > next;
  }
  std::vector<Choice> order(std::int64_t stage) const {
    if (!both_ways()) {
      return {{kForwards, 1, stage}, {x_backward, 0, stage}, {x_backward, 1, stage},
              {kForwards, 0, stage}, {kWeights, 1, stage},   {kWeights, 0, stage}};
    }
    const std::int64_t deep = x_plan.chunk_at(stage, 1) > x_plan.chunk_at(stage, 0) ? 1 : 0;
    return {{x_backward, deep, stage},
            {x_backward, 1 - deep, stage},
            {kForwards, deep, stage},
            {kForwards, 1 - deep, stage}};
  }
  void take(std::int64_t stage, std::vector<Choice>& taken) {
    const bool full = x_kept[static_cast<std::size_t>(stage)] == x_deepest + 1;
    for (const Choice& c : order(stage)) {
      if ((c.kind == kForwards && full) || !ready(c)) continue;
      taken.push_back(c);
      return;
    }
  }
  void finish(const Choice& c) {
    const auto stage = static_cast<std::size_t>(c.stage);
    std::int64_t& count = done(c, c.kind, chunk_of(c));
    const std::int64_t microbatch = count++ + (both_ways() ? c.index * x_microbatches : 0);
    x_out[stage].push_back(
        Pass{static_cast<std::int32_t>(c.index), static_cast<std::int32_t>(microbatch), c.kind});
    if (c.kind == kForwards) ++x_kept[stage];
    if (c.kind == (x_plan.splits_backward() ? kWeights : x_backward)) --x_kept[stage];
  }

  const Plan& x_plan;
  std::int64_t x_stages, x_deepest, x_microbatches;  ///< microbatches of a way
  PassKind x_backward;
  std::vector<std::vector<Pass>> x_out;
  std::vector<std::int64_t> x_kept;  ///< by stage: passes whose activations it keeps
  /// By way, kind and chunk: microbatches.
  std::array<std::array<std::vector<std::int64_t>, 4>, 2> x_done;
};

}  // namespace

std::vector<std::vector<Pass>> equal_passes(const Plan& plan) { return EqualPasses(plan).run(); }

}  // namespace foretrain
