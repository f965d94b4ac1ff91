#include "sim/engine/replay_state.h"

#include <algorithm>
#include <string>

namespace foretrain {
namespace {

class DeadlockReport {
 public:
  DeadlockReport(const Workload& workload, const Prepared& prepared, const ReplayState& state)
      : x_workload(workload), x_quotient(prepared.quotient), x_state(state) {}

  Error write() const {
    constexpr int kMostLines = 24;
    std::string text = "deadlock: no rank can go on\n";
    int lines = 0;
    for (const ActorState& actor : x_state.actors) {
      for (std::size_t s = 0; s < actor.streams.size(); ++s) {
        if (actor.streams[s].wait == Wait::kDone) continue;
        if (++lines <= kMostLines) text += "  " + line(actor, s) + "\n";
      }
    }
    if (lines > kMostLines) {
      text += "  and " + std::to_string(lines - kMostLines) + " more streams\n";
    }
    return input_error(text);
  }

 private:
  std::string line(const ActorState& actor, std::size_t s) const {
    const Stream& stream = actor.streams[s];
    const Program& program = x_workload.programs[actor.actor->program.index()];
    std::string out =
        "rank " + std::to_string(actor.actor->rank.value) + " stream " + program.streams[s];
    const auto& entries = actor.program->entries[s];
    if (static_cast<std::size_t>(stream.entry) >= entries.size()) return out + " did not run";
    const StreamEntry& entry = entries[static_cast<std::size_t>(stream.entry)];
    const Call& call = program.calls[static_cast<std::size_t>(entry.call)];
    const Segment& segment = program.segments[call.segment.index()];
    out += " in " + segment.name;
    if (call.layer >= 0) out += " layer " + std::to_string(call.layer);
    if (call.microbatch >= 0) out += " microbatch " + std::to_string(call.microbatch);
    const Work* work = nullptr;
    if (stream.op >= 0 && stream.op < entry.ops_end) {
      const PreparedOp& op = actor.program->ops[static_cast<std::size_t>(stream.op)];
      work = &program.works[static_cast<std::size_t>(op.work)];
      out += " at " + segment.ops[static_cast<std::size_t>(op.index)].name + " (" + text_of(*work) +
             ")";
    }
    switch (stream.wait) {
      case Wait::kEvent:
        return out + " waits for " + event_name(program, *actor.program, stream.waiting_for);
      case Wait::kEpoch:
        return out + " waits for the host, which is blocked in a sync";
      case Wait::kPartner:
        return out + " waits for " + partners(*actor.actor, *work);
      default:
        return out + " did not run";
    }
  }

  static std::string event_name(const Program& program, const PreparedProgram& flat,
                                std::int32_t event) {
    // The last frame that begins at or before the event and has any.
    std::size_t f = flat.event_base.size();
    while (f > 0 && flat.event_base[f - 1] > event) --f;
    const FrameLayout& layout = program.layouts[program.frames[f - 1].layout.index()];
    const std::int16_t stream = flat.event_stream[static_cast<std::size_t>(event)];
    return layout.events[static_cast<std::size_t>(event - flat.event_base[f - 1])] + " of " +
           layout.name +
           (stream < 0 ? ", which no op records"
                       : " on stream " + program.streams[static_cast<std::size_t>(stream)]);
  }

  /// The ranks that have not come.
  std::string partners(const Actor& actor, const Work& work) const {
    std::string out;
    const auto add = [&out](const std::string& text) {
      out += (out.empty() ? "" : " and ") + text;
    };
    if (const auto* collective = std::get_if<Collective>(&work)) {
      const std::int32_t group = actor.groups[collective->group.index()];
      for (const ActorState& other : x_state.actors) {
        if (is_missing(group, other)) add(rank_name(*other.actor));
      }
    } else if (const auto* batch = std::get_if<P2PBatch>(&work)) {
      for (const Message& message : batch->messages) {
        const auto c = static_cast<std::size_t>(actor.channels[message.channel.index()]);
        const std::size_t side = message.send ? 1 : 0;
        if (x_state.channels[c].ends[side].cost != nullptr) continue;
        const ActorChannel& channel = x_quotient.channels[c];
        const ActorId end = message.send ? channel.destination : channel.source;
        add(rank_name(x_quotient.actors[end.index()]) +
            (message.send ? " to receive" : " to send"));
      }
    }
    return out.empty() ? "its partners" : out;
  }

  /// A member that has not come.
  bool is_missing(std::int32_t group, const ActorState& actor) const {
    const auto& groups = actor.actor->groups;
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) return false;
    const auto& waiters = x_state.groups[static_cast<std::size_t>(group)].waiters;
    return std::none_of(waiters.begin(), waiters.end(), [&](const Waiter& waiter) {
      return &x_state.actors[static_cast<std::size_t>(waiter.actor)] == &actor;
    });
  }

  static std::string rank_name(const Actor& actor) {
    std::string out = "rank " + std::to_string(actor.rank.value);
    if (actor.ranks > 1) out += " and " + std::to_string(actor.ranks - 1) + " like it";
    return out;
  }

  const Workload& x_workload;
  const Quotient& x_quotient;
  const ReplayState& x_state;
};

}  // namespace

ReplayState initial_state(const Prepared& prepared) {
  ReplayState out;
  out.groups.resize(prepared.quotient.groups.size());
  out.channels.resize(prepared.quotient.channels.size());
  out.actors.resize(prepared.quotient.actors.size());
  for (std::size_t a = 0; a < out.actors.size(); ++a) {
    ActorState& state = out.actors[a];
    state.actor = &prepared.quotient.actors[a];
    state.program = &prepared.programs[state.actor->program.index()];
    state.prices = &prepared.prices[static_cast<std::size_t>(prepared.prices_of[a])];
    state.streams.resize(state.program->entries.size());
    for (std::size_t s = 0; s < state.streams.size(); ++s) {
      state.ready.add(static_cast<std::int32_t>(s));
    }
    state.events.assign(static_cast<std::size_t>(state.program->events), kNever);
    state.epoch.assign(static_cast<std::size_t>(state.program->epochs), kNever);
    state.epoch[0] = Time{};
    for (std::size_t slot = 0; slot < state.actor->channels.size(); ++slot) {
      const std::int32_t channel = state.actor->channels[slot];
      const ChannelEnd& end = state.program->channel_ends[slot];
      if (channel < 0) continue;
      out.channels[static_cast<std::size_t>(channel)].streams[static_cast<std::size_t>(end.side)] =
          end.stream;
    }
  }
  return out;
}

Error deadlock_report(const Workload& workload, const Prepared& prepared,
                      const ReplayState& state) {
  return DeadlockReport(workload, prepared, state).write();
}

}  // namespace foretrain
