#include "sim/engine/steady.h"

#include <algorithm>
#include <limits>

namespace foretrain {

/// The checks, one after the other, of one replay.
class RoundProof {
 public:
  RoundProof(const RoundTimes& times, const Replay& replay, const std::vector<Rounds>& rounds)
      : x_times(times), x_replay(replay), x_rounds(rounds) {}

  std::optional<RoundTimes::Steady> run(std::size_t actor) {
    const std::size_t actors = x_times.x_times.size();
    if (!find_round()) return std::nullopt;
    for (std::size_t a = 0; a < actors; ++a) {
      x_alike.push_back(longest_alike(a));
      if (x_alike.back().count < 3) return std::nullopt;
    }
    for (std::size_t a = 0; a < actors; ++a) x_before.push_back(latest_before(a));
    for (std::size_t a = 0; a < actors; ++a) {
      if (!forgets(a) || !outruns_host(a)) return std::nullopt;
    }
    if (!partners_alike() || (x_replay.events > 0 && !alike_at_once())) return std::nullopt;
    if (alike_from(actor) + x_round > alike_to(actor)) return std::nullopt;
    return RoundTimes::Steady{x_round, alike_from(actor)};
  }

 private:
  using Times = RoundTimes::Times;

  const Rounds& rounds(std::size_t actor) const { return x_rounds[x_times.program_of(actor)]; }
  /// Where the first op of call `c` stands.
  std::size_t first_op(std::size_t actor, std::int32_t c) const {
    return x_times.x_first[x_times.program_of(actor)][static_cast<std::size_t>(c)];
  }

  /// How long a round takes in the middle of the first actor's.
  bool find_round() {
    const Rounds& r = rounds(0);
    if (r.count < 3) return false;
    const std::vector<Times>& times = x_times.x_times[0];
    const std::int32_t middle = r.count / 2;
    x_round = times[first_op(0, r.at(middle))].end - times[first_op(0, r.at(middle - 1))].end;
    return x_round.ps > 0;
  }

  /// Of the rounds those, one after another, that are each the one before `x_round` later: the most
  /// that there are. The others at their ends, where pipelines fill and drain, are the prologue's
  /// and the epilogue's from here on.
  Rounds longest_alike(std::size_t actor) const {
    const Rounds& r = rounds(actor);
    Rounds best{r.begin, r.length, 0};
    std::int32_t first = 0;
    for (std::int32_t k = 1; k <= r.count; ++k) {
      if (k < r.count && is_alike(actor, k)) continue;
      if (k - first > best.count) best = {r.at(first), r.length, k - first};
      first = k;
    }
    return best;
  }

  bool is_alike(std::size_t actor, std::int32_t round) const {
    const Rounds& r = rounds(actor);
    const std::vector<Times>& times = x_times.x_times[actor];
    const std::size_t begin = first_op(actor, r.at(round));
    const std::size_t before = first_op(actor, r.at(round - 1));
    const std::size_t end = first_op(actor, r.at(round + 1));
    for (std::size_t i = begin; i < end; ++i) {
      const Times& now = times[i];
      const Times& then = times[before + (i - begin)];
      if (now.begin - then.begin != x_round || now.start - then.start != x_round ||
          now.end - then.end != x_round) {
        return false;
      }
    }
    return true;
  }

  /// The end of all that was before the rounds that are alike.
  Time latest_before(std::size_t actor) const {
    const std::vector<Times>& times = x_times.x_times[actor];
    const std::size_t end = first_op(actor, x_alike[actor].begin);
    Time latest;
    for (std::size_t i = 0; i < end; ++i) latest = max(latest, times[i].end);
    return latest;
  }

  Time first_begin(std::size_t actor, std::size_t from, std::size_t to) const {
    Time first = kNever;
    for (std::size_t i = from; i < to; ++i) {
      first = min(first, x_times.x_times[actor][i].begin);
    }
    return first;
  }
  /// When the first op behind the rounds that are alike begins.
  Time first_after(std::size_t actor) const {
    return first_begin(actor, first_op(actor, x_alike[actor].end()), x_times.x_times[actor].size());
  }

  /// From then on everything that runs is as it is a round later: what was before is over, and so
  /// is what one more round before the first that is alike would still do.
  Time alike_from(std::size_t actor) const {
    const Rounds& r = x_alike[actor];
    Time first;
    for (std::size_t i = first_op(actor, r.begin); i < first_op(actor, r.at(1)); ++i) {
      first = max(first, x_times.x_times[actor][i].end);
    }
    return max(x_before[actor], first - x_round);
  }
  /// Until then likewise: neither what follows nor one more round behind the last has begun.
  Time alike_to(std::size_t actor) const {
    const Rounds& r = x_alike[actor];
    const Time last =
        first_begin(actor, first_op(actor, r.at(r.count - 1)), first_op(actor, r.end()));
    return min(first_after(actor), last + x_round);
  }

  /// Nothing that comes waits for what was before the rounds that are alike.
  bool forgets(std::size_t actor) const {
    const Rounds& r = x_alike[actor];
    const Time last_round =
        first_begin(actor, first_op(actor, r.at(r.count - 1)), first_op(actor, r.end()));
    return last_round + x_round > x_before[actor] && first_after(actor) > x_before[actor];
  }

  /// The host issues a round in no more time than it takes, and nothing behind the rounds waits for
  /// the host, which would be further ahead after more rounds.
  bool outruns_host(std::size_t actor) const {
    const PreparedProgram& program = x_times.x_prepared.programs[x_times.program_of(actor)];
    const PreparedPrices& prices =
        x_times.x_prepared.prices[static_cast<std::size_t>(x_times.x_prepared.prices_of[actor])];
    const Rounds& r = x_alike[actor];
    const auto last = static_cast<std::size_t>(r.at(r.count - 1));
    const auto before = static_cast<std::size_t>(r.at(r.count - 2));
    const std::int32_t epoch = program.call_epoch[last];
    if (epoch != program.call_epoch[before]) return true;  // the host waits in every round
    const Time host = prices.call_issue[last] - prices.call_issue[before];
    if (host == x_round) return true;
    if (host > x_round || x_replay.end != latest_end()) return false;
    return !waits_for_host(actor, program, prices, epoch);
  }

  Time latest_end() const {
    return *std::max_element(x_replay.actor_end.begin(), x_replay.actor_end.end());
  }

  bool waits_for_host(std::size_t actor, const PreparedProgram& program,
                      const PreparedPrices& prices, std::int32_t epoch) const {
    const std::vector<Times>& times = x_times.x_times[actor];
    const std::vector<std::size_t>& first = x_times.x_first[x_times.program_of(actor)];
    const Time base = epoch_begin(actor, program, epoch);
    for (const std::vector<StreamEntry>& entries : program.entries) {
      Time free_at;
      for (const StreamEntry& entry : entries) {
        const auto call = static_cast<std::size_t>(entry.call);
        for (std::int32_t o = entry.ops_begin; o < entry.ops_end; ++o) {
          const auto op = static_cast<std::size_t>(o);
          const Times& at = times[first[call] + static_cast<std::size_t>(program.ops[op].index)];
          const bool behind = entry.call >= x_alike[actor].end();
          const bool of_epoch = program.call_epoch[call] == epoch && prices.op_epoch[op] == 0;
          if (behind && of_epoch && at.begin != free_at &&
              at.begin == base + prices.call_issue[call] + prices.op_issue[op]) {
            return true;
          }
          free_at = at.end;
        }
      }
    }
    return false;
  }

  /// When the host went on after the last time that it waited for the device.
  Time epoch_begin(std::size_t actor, const PreparedProgram& program, std::int32_t epoch) const {
    const std::vector<std::size_t>& first = x_times.x_first[x_times.program_of(actor)];
    const Program& own = x_times.x_workload.programs[x_times.program_of(actor)];
    std::int32_t syncs = 0;
    for (std::size_t c = 0; c < own.calls.size() && syncs < epoch; ++c) {
      const bool waits =
          c + 1 == own.calls.size() || program.call_epoch[c + 1] != program.call_epoch[c];
      if (!waits) continue;
      const std::vector<Op>& ops = own.segments[own.calls[c].segment.index()].ops;
      for (std::size_t o = 0; o < ops.size(); ++o) {
        if (!std::holds_alternative<HostSync>(own.works[ops[o].work.index()])) continue;
        if (++syncs == epoch) return x_times.x_times[actor][first[c] + o].end;
      }
    }
    return Time();
  }

  /// How often a slot is used up to the end of the first round that is alike, and of the last.
  struct Uses {
    std::int64_t before = 0, end = 0;
  };

  /// What partners do with what this actor does in later rounds is of rounds that are alike.
  bool partners_alike() const {
    const Quotient& q = x_times.x_prepared.quotient;
    std::vector<Uses> groups(q.groups.size(), Uses{0, std::numeric_limits<std::int64_t>::max()});
    std::vector<std::vector<Uses>> channels(q.channels.size());
    for (std::size_t a = 0; a < q.actors.size(); ++a) {
      const auto [of_groups, of_channels] = uses(a);
      for (std::size_t s = 0; s < of_groups.size(); ++s) {
        if (q.actors[a].groups[s] < 0) continue;
        Uses& all = groups[static_cast<std::size_t>(q.actors[a].groups[s])];
        all.before = std::max(all.before, of_groups[s].before);
        all.end = std::min(all.end, of_groups[s].end);
      }
      for (std::size_t s = 0; s < of_channels.size(); ++s) {
        if (q.actors[a].channels[s] < 0) continue;
        channels[static_cast<std::size_t>(q.actors[a].channels[s])].push_back(of_channels[s]);
      }
    }
    const auto late = [](const Uses& uses) { return uses.before > uses.end; };
    if (std::any_of(groups.begin(), groups.end(), late)) return false;
    for (const std::vector<Uses>& ends : channels) {
      for (const Uses& one : ends) {
        for (const Uses& other : ends) {
          if (one.before > other.end) return false;
        }
      }
    }
    return true;
  }

  std::pair<std::vector<Uses>, std::vector<Uses>> uses(std::size_t actor) const {
    const Program& program = x_times.x_workload.programs[x_times.program_of(actor)];
    const Rounds& r = x_alike[actor];
    std::vector<Uses> groups(program.group_slots.size()), channels(program.channel_slots.size());
    const auto count = [](Uses& uses, std::int64_t before, std::int64_t end) {
      uses.before += before;
      uses.end += end;
    };
    std::vector<std::int64_t> before(program.segments.size()), all(program.segments.size());
    for (std::int32_t c = 0; c < r.end(); ++c) {
      const std::size_t s = program.calls[static_cast<std::size_t>(c)].segment.index();
      ++all[s];
      if (c < r.at(1)) ++before[s];
    }
    for (std::size_t s = 0; s < program.segments.size(); ++s) {
      if (all[s] == 0) continue;
      for (const Op& op : program.segments[s].ops) {
        const Work& work = program.works[op.work.index()];
        if (const auto* collective = std::get_if<Collective>(&work)) {
          count(groups[collective->group.index()], before[s], all[s]);
        } else if (const auto* batch = std::get_if<P2PBatch>(&work)) {
          for (const Message& message : batch->messages) {
            count(channels[message.channel.index()], before[s], all[s]);
          }
        }
      }
    }
    return {groups, channels};
  }

  /// For two rounds all actors are in rounds that are alike.
  bool alike_at_once() const {
    Time from, to = kNever;
    for (std::size_t a = 0; a < x_before.size(); ++a) {
      from = max(from, alike_from(a));
      to = min(to, alike_to(a));
    }
    return from + x_round + x_round <= to;
  }

  const RoundTimes& x_times;
  const Replay& x_replay;
  const std::vector<Rounds>& x_rounds;
  Time x_round;
  std::vector<Rounds> x_alike;  ///< by actor: `longest_alike`
  std::vector<Time> x_before;   ///< by actor: `latest_before`
};

RoundTimes::RoundTimes(const Workload& workload, const Prepared& prepared)
    : x_workload(workload), x_prepared(prepared) {
  for (const Program& program : workload.programs) {
    std::vector<std::size_t>& first = x_first.emplace_back();
    std::size_t ops = 0;
    for (const Call& call : program.calls) {
      first.push_back(ops);
      ops += program.segments[call.segment.index()].ops.size();
    }
    first.push_back(ops);
  }
  for (std::size_t a = 0; a < prepared.quotient.actors.size(); ++a) {
    x_times.emplace_back(x_first[program_of(a)].back());
  }
}

std::optional<RoundTimes::Steady> RoundTimes::steady(const Replay& replay,
                                                     const std::vector<Rounds>& rounds,
                                                     std::size_t actor) const {
  return RoundProof(*this, replay, rounds).run(actor);
}

}  // namespace foretrain
