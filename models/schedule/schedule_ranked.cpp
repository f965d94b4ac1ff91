#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <queue>
#include <tuple>

#include "models/schedule/schedule.h"
#include "sim/base/check.h"

namespace foretrain {
namespace {

using Ps = std::int64_t;
constexpr PassKind kForwards = PassKind::kForward;
constexpr PassKind kWeightPass = PassKind::kWeightGradients;

/// Of a pass through one chunk, and of a message.
struct Durations {
  Ps forward = 1, backward = 1, weights = 1, transfer = 0;
};

/// What a pass needs of other passes.
struct Passes {
  explicit Passes(const Plan& p)
      : plan(p),
        microbatches(p.microbatches() / p.directions()),
        deepest(p.chunks() - 1),
        backward(p.splits_backward() ? PassKind::kInputGradients : PassKind::kBackward) {}

  bool both_ways() const { return plan.directions() == 2; }
  /// A list of what is done for each way, kind and chunk.
  std::size_t place(std::int64_t index, PassKind kind, std::int64_t chunk) const {
    const std::int64_t way = both_ways() ? index : 0;
    return static_cast<std::size_t>((way * 4 + static_cast<int>(kind)) * (deepest + 1) + chunk);
  }
  std::size_t places() const { return static_cast<std::size_t>(8 * (deepest + 1)); }
  /// The chunk before it, of which it takes what that pass sent; none at the ends.
  std::optional<std::int64_t> from(PassKind kind, std::int64_t chunk) const {
    if (kind == kForwards) return chunk == 0 ? std::nullopt : std::optional(chunk - 1);
    return chunk == deepest ? std::nullopt : std::optional(chunk + 1);
  }
  std::int64_t stage_of(std::int64_t index, std::int64_t chunk) const {
    return plan.stage_of(chunk, both_ways() ? index : 0);
  }
  /// Ends of the passes that are done, by place and microbatch -> when this one's input is there.
  std::optional<Ps> arrives(const std::vector<std::vector<Ps>>& ends, std::int64_t index,
                            PassKind kind, std::int64_t chunk, Ps transfer) const {
    const std::size_t next = ends[place(index, kind, chunk)].size();
    const auto end_of = [&](PassKind k, std::int64_t c) -> std::optional<Ps> {
      const std::vector<Ps>& done = ends[place(index, k, c)];
      return next < done.size() ? std::optional(done[next]) : std::nullopt;
    };
    if (next == static_cast<std::size_t>(microbatches)) return std::nullopt;
    if (kind == kWeightPass) return end_of(backward, chunk);
    const std::optional<std::int64_t> before = from(kind, chunk);
    if (!before) return kind == kForwards ? std::optional<Ps>(0) : end_of(kForwards, chunk);
    const std::optional<Ps> sent = end_of(kind, *before);
    if (!sent) return std::nullopt;
    const bool near = stage_of(index, *before) == stage_of(index, chunk);
    return *sent + (near ? 0 : transfer);
  }

  const Plan& plan;
  std::int64_t microbatches, deepest;  ///< microbatches of a way
  PassKind backward;
};

using Lists = std::vector<std::vector<Pass>>;

template <typename Stages>
Lists lists_of(Stages& stages) {
  Lists out;
  for (auto& stage : stages) out.push_back(std::move(stage.passes));
  return out;
}

/// A run without messages in which a stage that is free takes, of the passes that it can, the one
/// of least rank: its time in the chain of a microbatch's passes, and for every microbatch before
/// it `patience` of what a stage works for one. It keeps no more passes than there are chunks.
class RankedRun {
 public:
  RankedRun(const Passes& passes, const Durations& takes, double patience)
      : x_passes(passes),
        x_takes(takes),
        x_turn(patience * static_cast<double>(2 * (takes.forward + takes.backward) +
                                              (split() ? 2 * takes.weights : 0))),
        x_ends(passes.places()),
        x_stages(static_cast<std::size_t>(passes.plan.pipeline)) {}

  Lists run() && {
    for (std::int64_t s = 0; s < x_passes.plan.pipeline; ++s) x_queue.emplace(0, s);
    while (!x_queue.empty()) {
      const auto [now, stage] = x_queue.top();
      x_queue.pop();
      if (now >= x_stages[static_cast<std::size_t>(stage)].free) take(now, stage);
    }
    return lists_of(x_stages);
  }

 private:
  struct Stage {
    std::vector<Pass> passes;
    std::array<std::int64_t, 2> kept = {};  ///< by chunk of the stage
    Ps free = 0;
  };
  struct Choice {
    double rank = 0;
    PassKind kind = kForwards;
    std::int64_t index = 0, chunk = 0;
  };
  bool split() const { return x_passes.plan.splits_backward(); }
  double rank(std::int64_t index, PassKind kind, std::int64_t chunk) const {
    const auto done = static_cast<double>(x_ends[x_passes.place(index, kind, chunk)].size());
    const Ps down = kind == kForwards ? chunk : x_passes.deepest + 1;
    const Ps up = kind == kForwards ? 0 : x_passes.deepest - chunk;
    return done * x_turn + static_cast<double>(down * x_takes.forward + up * x_takes.backward);
  }
  /// Its activations have room, with a place left for the other chunk if what goes on to that one
  /// has none: the oldest microbatch always finds one.
  bool has_room(const Stage& stage, std::int64_t index) const {
    const std::int64_t kept = stage.kept[0] + stage.kept[1];
    const auto other = static_cast<std::size_t>(1 - index);
    const bool leaves = stage.kept[other] == 0 && (x_passes.both_ways() || index == 0);
    return kept + 1 + (leaves ? 1 : 0) <= x_passes.deepest + 1;
  }

  void take(Ps now, std::int64_t stage) {
    Stage& s = x_stages[static_cast<std::size_t>(stage)];
    std::optional<Choice> best;
    std::optional<double> waits;  // rank of a forward pass that has no room
    const auto consider = [&](std::int64_t index, PassKind kind) {
      const std::int64_t chunk = x_passes.plan.chunk_at(stage, index);
      const auto arrives = x_passes.arrives(x_ends, index, kind, chunk, 0);
      if (!arrives || *arrives > now) return;
      const Choice c{rank(index, kind, chunk), kind, index, chunk};
      if (kind == kForwards && !has_room(s, index)) {
        waits = std::min(waits.value_or(c.rank), c.rank);
      } else if (!best || c.rank < best->rank) {
        best = c;
      }
    };
    for (const std::int64_t index : {1, 0}) {
      consider(index, kForwards);
      consider(index, x_passes.backward);
    }
    // Gradients of weights make room for a forward pass that comes first, and fill what is left.
    if (split() && (!best || (waits && *waits < best->rank))) {
      const std::optional<Choice> weights = oldest_weights(stage);
      if (weights) best = weights;
    }
    if (best) put(*best, now, stage);
  }
  std::optional<Choice> oldest_weights(std::int64_t stage) const {
    std::optional<Choice> best;
    for (const std::int64_t index : {1, 0}) {
      const std::int64_t chunk = x_passes.plan.chunk_at(stage, index);
      if (!x_passes.arrives(x_ends, index, kWeightPass, chunk, 0)) continue;
      const auto done =
          static_cast<double>(x_ends[x_passes.place(index, kWeightPass, chunk)].size());
      if (!best || done < best->rank) best = Choice{done, kWeightPass, index, chunk};
    }
    return best;
  }

  void put(const Choice& c, Ps now, std::int64_t stage) {
    Stage& s = x_stages[static_cast<std::size_t>(stage)];
    std::vector<Ps>& ends = x_ends[x_passes.place(c.index, c.kind, c.chunk)];
    const std::int64_t before = x_passes.both_ways() ? c.index * x_passes.microbatches : 0;
    s.passes.push_back(Pass{static_cast<std::int32_t>(c.index),
                            static_cast<std::int32_t>(before + std::ssize(ends)), c.kind});
    const Ps duration = c.kind == kForwards     ? x_takes.forward
                        : c.kind == kWeightPass ? x_takes.weights
                                                : x_takes.backward;
    s.free = now + duration;
    ends.push_back(s.free);
    std::int64_t& kept = s.kept[static_cast<std::size_t>(c.index)];
    if (c.kind == kForwards) ++kept;
    if (c.kind == (split() ? kWeightPass : x_passes.backward)) --kept;
    x_queue.emplace(s.free, stage);
    const std::int64_t to = c.kind == kForwards ? c.chunk + 1 : c.chunk - 1;
    if (c.kind != kWeightPass && to >= 0 && to <= x_passes.deepest) {
      x_queue.emplace(s.free, x_passes.stage_of(c.index, to));
    }
  }

  const Passes& x_passes;
  Durations x_takes;
  double x_turn;  ///< what ranks of a microbatch lie behind those of the one before
  std::vector<std::vector<Ps>> x_ends;
  std::vector<Stage> x_stages;
  using At = std::pair<Ps, std::int64_t>;
  std::priority_queue<At, std::vector<At>, std::greater<>> x_queue;
};

/// Lists with their messages and real durations, gradients of weights moved to where stages wait.
class Refilled {
 public:
  /// A wait is filled if it is at least `least` of a pass for gradients of weights.
  Refilled(const Passes& passes, const Durations& takes, double least)
      : x_passes(passes),
        x_takes(takes),
        x_least(static_cast<Ps>(least * static_cast<double>(takes.weights))),
        x_ends(passes.places()),
        x_stages(static_cast<std::size_t>(passes.plan.pipeline)) {}

  void run(const Lists& lists) {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t s = 0; s < x_stages.size(); ++s) {
        while (x_stages[s].at < lists[s].size() && step(x_stages[s], s, lists[s])) moved = true;
      }
    }
    for (std::size_t s = 0; s < x_stages.size(); ++s) {
      FT_CHECK(x_stages[s].at == lists[s].size(), "ranked passes wait for ever");
      while (!x_stages[s].weights.empty()) put_weights(x_stages[s]);
    }
  }
  /// The end, and the longest time from a stage's first pass to the end of its last.
  std::pair<Ps, Ps> length() const {
    std::pair<Ps, Ps> out;
    for (const Stage& s : x_stages) {
      out.first = std::max(out.first, s.free);
      out.second = std::max(out.second, s.free - s.begin);
    }
    return out;
  }
  Lists passes() && { return lists_of(x_stages); }

 private:
  struct Stage {
    std::vector<Pass> passes;
    std::queue<Pass> weights;  ///< that can be taken
    std::size_t at = 0;
    std::int64_t kept = 0;
    Ps begin = 0, free = 0;
  };
  void put_weights(Stage& s) const {
    s.passes.push_back(s.weights.front());
    s.weights.pop();
    s.free += x_takes.weights;
    --s.kept;
  }
  bool step(Stage& s, std::size_t stage, const std::vector<Pass>& list) {
    const Pass& pass = list[s.at];
    if (pass.kind == kWeightPass) return ++s.at, true;
    const std::int64_t chunk = x_passes.plan.chunk_at(static_cast<std::int64_t>(stage), pass.chunk);
    const auto arrives = x_passes.arrives(x_ends, pass.chunk, pass.kind, chunk, x_takes.transfer);
    if (!arrives) return false;
    const bool forward = pass.kind == kForwards;
    while (forward && s.kept > x_passes.deepest && !s.weights.empty()) put_weights(s);
    while (!s.weights.empty() && s.free + x_takes.weights <= *arrives) put_weights(s);
    if (!s.weights.empty() && s.free < *arrives && s.free + x_least <= *arrives) put_weights(s);
    const Ps begin = std::max(s.free, *arrives);
    if (s.passes.empty()) s.begin = begin;
    s.free = begin + (forward ? x_takes.forward : x_takes.backward);
    x_ends[x_passes.place(pass.chunk, pass.kind, chunk)].push_back(s.free);
    s.passes.push_back(pass);
    if (forward) ++s.kept;
    if (!forward && x_passes.plan.splits_backward()) {
      s.weights.push(Pass{pass.chunk, pass.microbatch, kWeightPass});
    } else if (!forward) {
      --s.kept;
    }
    return ++s.at, true;
  }

  const Passes& x_passes;
  Durations x_takes;
  Ps x_least;
  std::vector<std::vector<Ps>> x_ends;
  std::vector<Stage> x_stages;
};

}  // namespace

std::vector<std::vector<Pass>> ranked_passes(const Plan& plan) {
  const Passes passes(plan);
  // A stage's time is that of its chunks; of two ways both have the whole stage's layers.
  const AutoSchedule& given = plan.automatic;
  const Ps backward =
      given.input_gradients.ps + (plan.splits_backward() ? 0 : given.weight_gradients.ps);
  const Ps parts = plan.directions() == 2 ? 1 : plan.virtual_pipeline;
  const Durations real{std::max<Ps>(1, given.forward.ps / parts), std::max<Ps>(1, backward / parts),
                       std::max<Ps>(1, given.weight_gradients.ps / parts), given.transfer.ps};
  Lists best;
  std::pair<Ps, Ps> least;
  // The likeliest first; of long lists fewer are tried.
  constexpr std::array<double, 8> kPatience = {0.3, 0.4, 0.25, 0.5, 0.2, 0.35, 0.1, 1.0};
  constexpr std::int64_t kMostPasses = 16'000'000;
  const std::int64_t all = 24 * plan.pipeline * passes.microbatches;
  const auto tried = static_cast<std::size_t>(
      std::clamp<std::int64_t>(kMostPasses / all, 1, std::ssize(kPatience)));
  for (const Durations& ranked : {Durations{}, real}) {
    for (std::size_t i = 0; i < tried; ++i) {
      const Lists order = RankedRun(passes, ranked, kPatience[i]).run();
      for (const double wait : {0.5, 0.75, 0.25, 1.0}) {
        Refilled refilled(passes, real, wait);
        refilled.run(order);
        if (!best.empty() && refilled.length() >= least) continue;
        least = refilled.length();
        best = std::move(refilled).passes();
      }
    }
  }
  return best;
}

}  // namespace foretrain
