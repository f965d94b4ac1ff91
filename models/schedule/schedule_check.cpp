// Whether the passes of all stages are complete and can run.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "models/plan/plan_reading.h"
#include "models/schedule/schedule.h"

namespace foretrain {
namespace {

const char* letter(PassKind kind) {
  switch (kind) {
    case PassKind::kForward:
    case PassKind::kForwardOnly:
      return "F";
    case PassKind::kWeightGradients:
      return "W";
    case PassKind::kEmbedding:
      return "embedding";
    case PassKind::kHead:
      return "head";
    case PassKind::kHeadForward:
      return "S";
    case PassKind::kHeadBackward:
      return "T";
    case PassKind::kEmbeddingGradients:
      return "embedding's gradients";
    default:
      return "B";
  }
}

/// A pass over the vocabulary that all stages share.
bool is_common(PassKind kind) { return kind >= PassKind::kEmbedding; }

bool is_forward(PassKind kind) {
  return kind == PassKind::kForward || kind == PassKind::kForwardOnly;
}

/// The kinds that every microbatch has on every chunk.
std::vector<PassKind> kinds_of(const Plan& plan, PassKind backward) {
  if (plan.spreads_vocabulary()) {
    return {PassKind::kEmbedding,    PassKind::kForward,  PassKind::kHeadForward,
            PassKind::kHeadBackward, PassKind::kBackward, PassKind::kEmbeddingGradients};
  }
  if (plan.shares_vocabulary()) {
    return {PassKind::kEmbedding, PassKind::kForward, PassKind::kHead, PassKind::kBackward,
            PassKind::kEmbeddingGradients};
  }
  if (backward == PassKind::kBackward) return {PassKind::kForward, backward};
  return {PassKind::kForward, backward, PassKind::kWeightGradients};
}

/// A pass of the whole pipeline.
struct Global {
  std::int64_t chunk = 0, microbatch = 0;
  PassKind kind = PassKind::kForward;
  std::int64_t round = 0;
  auto operator<=>(const Global&) const = default;
  std::string name() const {
    const std::string which = round > 0 ? std::to_string(round + 1) + ". " : "";
    return which + letter(kind) + " of microbatch " + text(microbatch) + " on chunk " + text(chunk);
  }
};

Global global(const Plan& plan, std::size_t stage, const Pass& pass) {
  return {plan.chunk_at(static_cast<std::int64_t>(stage), pass.chunk), pass.microbatch, pass.kind,
          pass.round};
}

std::int64_t stage_of(const Plan& plan, const Global& g) {
  return plan.stage_of(g.chunk, plan.way_of(g.microbatch));
}

using Lists = std::vector<std::vector<Pass>>;

PassKind backward_kind(const Lists& lists) {
  for (const auto& list : lists) {
    for (const Pass& pass : list) {
      if (pass.kind == PassKind::kWeightGradients) return PassKind::kInputGradients;
    }
  }
  return PassKind::kBackward;
}

/// The pass on the same stage that has to stand before `g`: of a backward pass the forward pass, of
/// the gradients of weights those of inputs.
std::optional<Global> comes_after(const Plan& plan, const Global& g, PassKind backward) {
  Global out = g;
  if (g.kind == PassKind::kWeightGradients) {
    out.kind = backward;
  } else if (g.kind == backward) {
    out.kind = PassKind::kForward;
    out.round = plan.forwards - 1;
  } else {
    return std::nullopt;
  }
  return out;
}

/// Collects the passes of all stages, each of which stands once, on its stage and behind what the
/// same stage has to do before it.
Status check_places(const Plan& plan, const Lists& lists, std::set<Global>& found) {
  const PassKind backward = backward_kind(lists);
  for (std::size_t s = 0; s < lists.size(); ++s) {
    const std::string own = text(static_cast<std::int64_t>(s));
    for (std::size_t i = 0; i < lists[s].size(); ++i) {
      const Global g = global(plan, s, lists[s][i]);
      const std::string at = ": stage " + own + ", pass " + text(static_cast<std::int64_t>(i));
      if (!found.insert(g).second) return input_error(g.name() + " stands twice" + at);
      const std::int64_t stage = stage_of(plan, g);
      if (stage != static_cast<std::int64_t>(s)) {
        return input_error(g.name() + " stands on stage " + own + ", its way leads over stage " +
                           text(stage));
      }
      if (const auto first = comes_after(plan, g, backward); first && !found.contains(*first)) {
        return input_error(g.name() + " stands before its " + letter(first->kind) + at);
      }
    }
  }
  return ok_status();
}

/// Of fewer microbatches or chunks than the run has nothing more is said.
Status check_counts(const Plan& plan, const std::set<Global>& found) {
  std::int64_t microbatches = 0;
  std::int64_t chunks = 0;
  for (const Global& g : found) {
    microbatches = std::max(microbatches, g.microbatch + 1);
    chunks = std::max(chunks, g.chunk + 1);
  }
  if (microbatches < plan.microbatches()) {
    return input_error("the passes are of " + text(microbatches) + " microbatches, the run has " +
                       text(plan.microbatches()) + " a step");
  }
  if (chunks < plan.chunks()) {
    return input_error("the passes are of " + text(chunks) + " chunks, the run has " +
                       text(plan.chunks()) + " (pipeline " + text(plan.pipeline) +
                       " x virtual_pipeline " + text(plan.virtual_pipeline) + ")");
  }
  return ok_status();
}

Status check_complete(const Plan& plan, const Lists& lists) {
  std::set<Global> found;
  FT_TRY(check_places(plan, lists, found));
  FT_TRY(check_counts(plan, found));
  std::vector<std::pair<PassKind, std::int64_t>> kinds;  // with their rounds
  for (const PassKind kind : kinds_of(plan, backward_kind(lists))) {
    kinds.emplace_back(kind, kind == PassKind::kForward ? plan.forwards - 1 : 0);
  }
  for (std::int64_t r = 0; r + 1 < plan.forwards; ++r)
    kinds.emplace_back(PassKind::kForwardOnly, r);
  for (std::int64_t c = 0; c < plan.chunks(); ++c) {
    for (std::int64_t mb = 0; mb < plan.microbatches(); ++mb) {
      for (const auto& [kind, round] : kinds) {
        const Global g{c, mb, kind, round};
        if (found.contains(g)) continue;
        return input_error(g.name() + " is missing on stage " + text(stage_of(plan, g)));
      }
    }
  }
  return ok_status();
}

/// The passes that must be over before `g` can begin, beside those of the same chunk and microbatch
/// whose places `check_places` has seen to.
std::vector<Global> needs(const Plan& plan, const Global& g, PassKind backward) {
  const std::int64_t last = plan.chunks() - 1;
  const bool spreads = plan.spreads_vocabulary();
  const auto before = [&](std::int64_t chunk, PassKind kind) {
    const std::int64_t round = kind == PassKind::kForward ? plan.forwards - 1 : 0;
    return std::vector<Global>{{chunk, g.microbatch, kind, round}};
  };
  // Where the vocabulary's passes are spread, that of every stage.
  const auto of_all = [&](PassKind kind) {
    std::vector<Global> out;
    for (std::int64_t c = 0; c <= last; ++c) out.push_back({c, g.microbatch, kind});
    return out;
  };
  switch (g.kind) {
    case PassKind::kEmbedding:
      return {};
    case PassKind::kHead:
      return g.chunk == last ? before(last, PassKind::kForward) : std::vector<Global>();
    case PassKind::kHeadForward:
      return before(last, PassKind::kForward);
    case PassKind::kHeadBackward:
      return of_all(PassKind::kHeadForward);
    case PassKind::kEmbeddingGradients:
      return g.chunk == 0 || spreads ? before(0, backward) : std::vector<Global>();
    case PassKind::kForward:
    case PassKind::kForwardOnly:
      if (g.chunk > 0) return {{g.chunk - 1, g.microbatch, g.kind, g.round}};
      if (g.round > 0) return {{last, g.microbatch, PassKind::kForwardOnly, g.round - 1}};
      if (spreads) return of_all(PassKind::kEmbedding);
      return plan.shares_vocabulary() ? before(0, PassKind::kEmbedding) : std::vector<Global>();
    case PassKind::kWeightGradients:
      return {};
    default:
      break;
  }
  if (g.chunk < last) return before(g.chunk + 1, backward);
  if (!spreads) {
    return before(last, plan.shares_vocabulary() ? PassKind::kHead : PassKind::kForward);
  }
  return of_all(plan.vocabulary_barriers() == 1 ? PassKind::kHeadForward : PassKind::kHeadBackward);
}

/// A replay of the lists in which only order counts.
class Order {
 public:
  Order(const Plan& plan, const Lists& lists)
      : x_plan(plan), x_lists(lists), x_backward(backward_kind(lists)), x_at(lists.size(), 0) {}

  Status run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t s = 0; s < x_lists.size(); ++s) {
        for (Global on; x_at[s] < x_lists[s].size() && !blocked(s, on); moved = true) finish(s);
      }
    }
    for (std::size_t s = 0; s < x_lists.size(); ++s) {
      Global on;
      if (x_at[s] == x_lists[s].size() || !blocked(s, on)) continue;
      return input_error("stages wait for each other: stage " + text(static_cast<std::int64_t>(s)) +
                         " stops before pass " + text(static_cast<std::int64_t>(x_at[s])) + ", " +
                         global(x_plan, s, x_lists[s][x_at[s]]).name() + ", which needs " +
                         on.name());
    }
    return ok_status();
  }

 private:
  /// Whether the next passes of the stage, as many as are joined, wait for one that is not done.
  bool blocked(std::size_t s, Global& on) const {
    for (std::size_t i = x_at[s]; i < x_lists[s].size(); ++i) {
      const Global g = global(x_plan, s, x_lists[s][i]);
      for (const Global& pass : needs(x_plan, g, x_backward)) {
        on = pass;
        if (!x_done.contains(on)) return true;
      }
      if (is_common(g.kind)) {
        // What is spread waits for what others send, and the first stage for those it sends to.
        const bool sends = g.kind == PassKind::kEmbeddingGradients && g.chunk == 0;
        return (sends || !x_plan.spreads_vocabulary()) && !all_there(x_lists[s][i], on);
      }
      if (!x_lists[s][i].joined) return false;
    }
    return false;
  }
  /// Every stage has come to this pass of all stages, or is over it; else `on` is one that is not.
  bool all_there(const Pass& pass, Global& on) const {
    for (std::size_t s = 0; s < x_lists.size(); ++s) {
      on = global(x_plan, s, pass);
      const bool here = x_at[s] < x_lists[s].size() && x_lists[s][x_at[s]] == pass;
      if (!here && !x_done.contains(on)) return false;
    }
    return true;
  }
  void finish(std::size_t s) {
    bool joined = true;
    for (; joined && x_at[s] < x_lists[s].size(); ++x_at[s]) {
      const Pass& pass = x_lists[s][x_at[s]];
      joined = pass.joined;
      x_done.insert(global(x_plan, s, pass));
    }
  }

  const Plan& x_plan;
  const Lists& x_lists;
  PassKind x_backward;
  std::set<Global> x_done;
  std::vector<std::size_t> x_at;  ///< by stage: its next pass
};

bool sends(const Pass& pass) {
  return pass.kind != PassKind::kWeightGradients && !is_common(pass.kind);
}

/// The pass that begins with what `g` gives; none where nothing leaves the pipeline's end.
std::optional<Global> taker(const Plan& plan, Global g) {
  g.chunk += is_forward(g.kind) ? 1 : -1;
  if (g.chunk >= 0 && g.chunk < plan.chunks()) return g;
  if (g.kind != PassKind::kForwardOnly || plan.pipeline == 1) return std::nullopt;
  g.chunk = 0;
  g.kind = ++g.round + 1 == plan.forwards ? PassKind::kForward : PassKind::kForwardOnly;
  return g;
}

/// The chunk whose pass `g` begins with; none at the pipeline's end.
std::optional<std::int64_t> sender(const Plan& plan, const Global& g) {
  const std::int64_t chunk = g.chunk + (is_forward(g.kind) ? -1 : 1);
  if (chunk >= 0 && chunk < plan.chunks()) return chunk;
  if (g.round == 0 || plan.pipeline == 1) return std::nullopt;
  return plan.chunks() - 1;
}

/// What one stage sends another must be taken in the order in which it is sent.
Status check_messages(const Plan& plan, const Lists& lists) {
  // By sender, receiver and whether they are gradients: what is sent, what is taken.
  using Key = std::tuple<std::int64_t, std::int64_t, bool>;
  std::map<Key, std::array<std::vector<Global>, 2>> ways;
  for (std::size_t s = 0; s < lists.size(); ++s) {
    for (const Pass& pass : lists[s]) {
      if (!sends(pass)) continue;
      const Global g = global(plan, s, pass);
      const bool gradients = !is_forward(pass.kind);
      const auto stage = static_cast<std::int64_t>(s);
      // Between chunks of one stage nothing travels.
      if (const auto sent = taker(plan, g); sent && stage_of(plan, *sent) != stage) {
        ways[{stage, stage_of(plan, *sent), gradients}][0].push_back(*sent);
      }
      if (const auto from = sender(plan, g)) {
        const Global before{*from, g.microbatch, g.kind};
        if (stage_of(plan, before) == stage) continue;
        ways[{stage_of(plan, before), stage, gradients}][1].push_back(g);
      }
    }
  }
  for (const auto& [key, orders] : ways) {
    for (std::size_t i = 0; i < orders[0].size(); ++i) {
      if (orders[0][i] == orders[1][i]) continue;
      return input_error("stage " + text(std::get<1>(key)) + " runs " + orders[1][i].name() +
                         " where stage " + text(std::get<0>(key)) + " sends it the input of " +
                         orders[0][i].name() + ": messages keep their order");
    }
  }
  return ok_status();
}

}  // namespace

Status check_passes(const Plan& plan, const Lists& passes) {
  FT_TRY(check_complete(plan, passes));
  FT_TRY(Order(plan, passes).run());
  return check_messages(plan, passes);
}

}  // namespace foretrain
