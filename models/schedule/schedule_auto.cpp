#include <algorithm>
#include <cmath>

#include "models/schedule/schedule.h"
#include "sim/base/check.h"

namespace foretrain {
namespace {

using Ps = std::int64_t;
constexpr std::int64_t kActivations = 1'000'000;  ///< those of a microbatch, in units of memory

/// The three choices that the heuristic leaves open.
struct Choices {
  bool wait_for_first = false;   ///< no forward before the first backward that would delay it
  bool skip_forwards = false;    ///< a stage two ahead leaves out a forward that would delay it
  bool weights_in_gaps = false;  ///< gradients of weights go into small gaps as well
};

class Heuristic {
 public:
  Heuristic(const AutoSchedule& given, std::int64_t p, std::int64_t m, Choices choices)
      : x_given(given), x_count(m), x_choices(choices), x_stages(static_cast<std::size_t>(p)) {
    const double limit = given.activations == 0 ? static_cast<double>(p) : given.activations;
    x_limit = std::llround(limit * kActivations);
    x_weights = std::llround(given.weight_share * kActivations);
  }

  void run() {
    for (std::size_t j = 0; j < x_stages.size(); ++j) put_forward(j);
    warm_up();
    for (std::size_t j = x_stages.size(); j-- > 0;) put_backward(j);
    for (std::int64_t k = 1; k < x_count; ++k) {
      const std::vector<bool> forwards = stages_with_forward();
      for (std::size_t j = 0; j < x_stages.size(); ++j) {
        if (!forwards[j]) continue;
        make_room(j);
        if (j > 0) fill_wait(j, x_stages[j - 1].forward_ends[next(x_stages[j].forward_ends)]);
        put_forward(j);
      }
      for (std::size_t j = x_stages.size(); j-- > 0;) {
        if (j + 1 < x_stages.size()) {
          fill_wait(j, x_stages[j + 1].backward_ends[next(x_stages[j].backward_ends)]);
        }
        // The first stage has no more forwards to make room for, and nothing to wait for.
        if (j == 0 && forwards_left(x_stages[0]) == 0) put_all_weights(0);
        put_backward(j);
      }
    }
    for (std::size_t j = 0; j < x_stages.size(); ++j) put_all_weights(j);
  }

  /// The longest time from a stage's first pass to the end of its last.
  Ps slowest() const {
    Ps most = 0;
    for (const Stage& s : x_stages) most = std::max(most, s.end - s.begin);
    return most;
  }
  std::vector<std::vector<Pass>> passes() && {
    std::vector<std::vector<Pass>> out;
    for (Stage& s : x_stages) out.push_back(std::move(s.passes));
    return out;
  }

 private:
  struct Stage {
    std::vector<Pass> passes;
    std::vector<Ps> forward_ends, backward_ends;  ///< by microbatch
    std::int64_t weights = 0;                     ///< microbatches
    std::int64_t memory = 0;
    Ps begin = 0, end = 0;
    Ps waited = 0;  ///< since its first pass
  };
  static std::size_t next(const std::vector<Ps>& ends) { return ends.size(); }
  std::int64_t forwards_left(const Stage& s) const {
    return x_count - static_cast<std::int64_t>(s.forward_ends.size());
  }
  static bool has_weights(const Stage& s) {
    return s.weights < static_cast<std::int64_t>(s.backward_ends.size());
  }

  /// A pass that can begin at `arrives`.
  Ps put(Stage& s, PassKind kind, std::size_t microbatch, Ps arrives, Ps takes) {
    const Ps start = std::max(s.end, arrives);
    if (s.passes.empty()) s.begin = start;
    if (!s.passes.empty()) s.waited += start - s.end;
    x_most_waited = std::max(x_most_waited, s.waited);
    s.passes.push_back(Pass{0, static_cast<std::int32_t>(microbatch), kind});
    return s.end = start + takes;
  }
  void put_forward(std::size_t j) {
    Stage& s = x_stages[j];
    const std::size_t k = next(s.forward_ends);
    const Ps arrives = j == 0 ? 0 : x_stages[j - 1].forward_ends[k] + x_given.transfer.ps;
    s.forward_ends.push_back(put(s, PassKind::kForward, k, arrives, x_given.forward.ps));
    s.memory += kActivations;
  }
  void put_backward(std::size_t j) {
    Stage& s = x_stages[j];
    const std::size_t k = next(s.backward_ends);
    const bool last = j + 1 == x_stages.size();
    const Ps arrives = last ? 0 : x_stages[j + 1].backward_ends[k] + x_given.transfer.ps;
    s.backward_ends.push_back(
        put(s, PassKind::kInputGradients, k, arrives, x_given.input_gradients.ps));
    s.memory -= kActivations - x_weights;
  }
  void put_weights(std::size_t j) {
    Stage& s = x_stages[j];
    put(s, PassKind::kWeightGradients, static_cast<std::size_t>(s.weights++), 0,
        x_given.weight_gradients.ps);
    s.memory -= x_weights;
  }
  void put_all_weights(std::size_t j) {
    while (has_weights(x_stages[j])) put_weights(j);
  }

  /// Forwards before the first backward, each stage at least as many as the next.
  void warm_up() {
    std::vector<std::int64_t> more(x_stages.size(), 0);
    Ps arrives = x_stages.back().end + x_given.input_gradients.ps + x_given.transfer.ps;
    for (std::size_t j = x_stages.size() - 1; j-- > 0;) {
      Ps end = x_stages[j].end;
      std::int64_t memory = x_stages[j].memory;
      while (more[j] < forwards_left(x_stages[j]) && memory + kActivations <= x_limit) {
        if (x_choices.wait_for_first ? end + x_given.forward.ps > arrives : end >= arrives) break;
        memory += kActivations;
        end += x_given.forward.ps;
        ++more[j];
      }
      arrives = std::max(end, arrives) + x_given.input_gradients.ps + x_given.transfer.ps;
    }
    for (std::size_t j = 1; j < x_stages.size(); ++j) {
      if (more[j] >= forwards_left(x_stages[j])) continue;
      more[j] = std::min(more[j], std::max<std::int64_t>(0, more[j - 1] - 1));
    }
    for (std::size_t j = 0; j < x_stages.size(); ++j) {
      for (std::int64_t k = 0; k < more[j]; ++k) put_forward(j);
    }
  }

  /// Which stages take a forward pass in this turn: none before a stage that takes none.
  std::vector<bool> stages_with_forward() const {
    std::vector<bool> out(x_stages.size(), true);
    for (std::size_t j = x_stages.size(); j-- > 0;) {
      out[j] = forwards_left(x_stages[j]) > 0 && !(x_choices.skip_forwards && skips(j));
      if (j + 1 < x_stages.size() && !out[j + 1]) out[j] = false;
    }
    return out;
  }

  /// The stage is two forwards ahead of the next, and another would delay the next backward more
  /// than it may wait.
  bool skips(std::size_t j) const {
    if (j + 1 == x_stages.size()) return false;
    const Stage& s = x_stages[j];
    const Stage& behind = x_stages[j + 1];
    if (s.forward_ends.size() < behind.forward_ends.size() + 2) return false;
    const Ps arrives =
        behind.end + x_given.forward.ps + x_given.input_gradients.ps + x_given.transfer.ps;
    if (s.end >= arrives) return true;
    const std::int64_t over = s.memory + kActivations - x_limit;
    const auto pending = static_cast<std::int64_t>(s.backward_ends.size()) - s.weights;
    const std::int64_t freed =
        over <= 0 ? 0 : std::min(pending, (over + x_weights - 1) / std::max<Ps>(1, x_weights));
    if (s.end + x_given.forward.ps + freed * x_given.weight_gradients.ps <= arrives) return false;
    return arrives - s.end <= x_most_waited - s.waited;
  }

  void make_room(std::size_t j) {
    while (x_stages[j].memory + kActivations > x_limit) {
      FT_CHECK(has_weights(x_stages[j]), "no room for a forward pass");
      put_weights(j);
    }
  }

  /// Gradients of weights until what ends at `sent` on the neighbour is there.
  void fill_wait(std::size_t j, Ps sent) {
    Stage& s = x_stages[j];
    const Ps arrives = sent + x_given.transfer.ps;
    while (has_weights(s) && s.end + x_given.weight_gradients.ps <= arrives) put_weights(j);
    if (!has_weights(s) || s.end >= arrives) return;
    const bool longest = arrives - s.end > x_most_waited - s.waited;
    if (longest || x_choices.weights_in_gaps) put_weights(j);
  }

  const AutoSchedule& x_given;
  std::int64_t x_count;  ///< microbatches
  Choices x_choices;
  std::int64_t x_limit = 0, x_weights = 0;
  std::vector<Stage> x_stages;
  Ps x_most_waited = 0;  ///< of all stages
};

}  // namespace

std::vector<std::vector<Pass>> automatic_passes(const AutoSchedule& given, std::int64_t pipeline,
                                                std::int64_t microbatches) {
  std::vector<std::vector<Pass>> best;
  Ps least = 0;
  for (int choice = 7; choice >= 0; --choice) {
    Heuristic h(given, pipeline, microbatches,
                {(choice & 4) != 0, (choice & 2) != 0, (choice & 1) != 0});
    h.run();
    if (!best.empty() && h.slowest() >= least) continue;
    least = h.slowest();
    best = std::move(h).passes();
  }
  return best;
}

}  // namespace foretrain
