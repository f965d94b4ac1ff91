// Lower bounds of times to come: when a stream goes on, and when the holds of other streams end. A
// kernel that ends before these bounds is decided without the event queue.
//
// A stream waits for an event until another stream has recorded the event. The other stream runs
// its ops up to the record first. Each of these ops takes at least as long as alone. All members of
// a group are taken to price a collective alike.
#pragma once

#include "sim/engine/replay_state.h"

namespace foretrain {

/// Time that a stream, which waits for an event, has at least to wait from when the stream that
/// records the event is free: what that one does until then takes as long as alone.
inline Time least_wait(const ActorState& actor, const Stream& stream) {
  const EventSource& source =
      actor.program->event_source[static_cast<std::size_t>(stream.waiting_for)];
  const Stream& recorder = actor.streams[static_cast<std::size_t>(stream.recorder)];
  if (recorder.wait == Wait::kDone || actor.prices->op_alone.empty()) return {};
  const auto alone = [&](std::int32_t entry, std::int32_t op) {
    return actor.prices->alone_before(*actor.program, stream.recorder, entry, op);
  };
  return alone(source.entry, source.op + 1) - alone(recorder.entry, recorder.op);
}

/// A time before which stream `s` does not go on from where it waits.
inline Time goes_on_after(const ActorState& actor, std::int32_t s) {
  Time out, wait;
  for (std::size_t hops = 0; hops <= actor.streams.size(); ++hops) {
    const Stream& stream = actor.streams[static_cast<std::size_t>(s)];
    out = max(out, stream.free_at + wait);
    if (stream.wait != Wait::kEvent || stream.recorder < 0) break;
    wait += least_wait(actor, stream);
    s = stream.recorder;
  }
  return out;
}

/// Whether stream `h` waits for an event that `s` has yet to record, or for a stream that does.
inline bool waits_for(const ActorState& actor, std::int32_t h, std::int32_t s) {
  for (std::size_t hops = 0; hops <= actor.streams.size(); ++hops) {
    const Stream& stream = actor.streams[static_cast<std::size_t>(h)];
    if (stream.wait != Wait::kEvent || stream.recorder < 0) return false;
    if (stream.recorder == s) return true;
    h = stream.recorder;
  }
  return false;
}

/// Whether stream `h` could start a hold that is not listed before `end`, when the present op of
/// `s` ends: not if it is done, or waits with a hold that is listed.
inline bool may_hold_soon(const ActorState& actor, std::int32_t h, std::int32_t s, Time end) {
  const Stream& other = actor.streams[static_cast<std::size_t>(h)];
  if (other.wait == Wait::kDone) return false;
  if (other.wait == Wait::kPartner) return !actor.holds.is_open(h);
  if (other.wait != Wait::kEvent) return true;
  return !waits_for(actor, h, s) && goes_on_after(actor, h) < end;
}

inline bool others_may_hold_soon(const ActorState& actor, std::int32_t s, Time end) {
  const StreamSet holding = actor.prices->records_holds;
  for (std::int32_t h = holding.next(0); h < StreamSet::kMost; h = holding.next(h + 1)) {
    if (h != s && may_hold_soon(actor, h, s, end)) return true;
  }
  return false;
}

/// The replay as far as partners are concerned.
struct Partners {
  const Workload& workload;
  const Prepared& prepared;
  ReplayState& state;
};

/// A time before which the messages that a stream, `holder`, has posted do not all end: those whose
/// other end is still to be posted begin when the stream that posts it goes on.
inline Time messages_last(const Partners& all, const Waiter& holder) {
  const ActorState& actor = all.state.actors[static_cast<std::size_t>(holder.actor)];
  const Stream& stream = actor.streams[static_cast<std::size_t>(holder.stream)];
  const PreparedOp& op = actor.program->ops[static_cast<std::size_t>(stream.op)];
  Time out;
  if (op.kind != OpClass::kMessages) return out;
  const auto work = static_cast<std::size_t>(op.work);
  const Program& program = all.workload.programs[actor.actor->program.index()];
  const std::vector<Message>& messages = std::get<P2PBatch>(program.works[work]).messages;
  const std::vector<Cost>& costs = actor.prices->message_costs[work];
  for (std::size_t m = 0; m < messages.size(); ++m) {
    const auto c = static_cast<std::size_t>(actor.actor->channels[messages[m].channel.index()]);
    const ChannelState& channel = all.state.channels[c];
    const std::size_t other = messages[m].send ? 1 : 0;
    const ChannelState::End& own = channel.ends[1 - other];
    // What another stream has posted is not of this op, whose message is over.
    const bool open = own.cost != nullptr && own.waiter.actor == holder.actor &&
                      own.waiter.stream == holder.stream && channel.streams[other] >= 0;
    if (!open) continue;
    const ActorChannel& ends = all.prepared.quotient.channels[c];
    const ActorId partner = other == 0 ? ends.source : ends.destination;
    const Time begin = goes_on_after(all.state.actors[partner.index()], channel.streams[other]);
    out = max(out, begin + costs[m].duration);
  }
  return out;
}

/// Whether everything that streams of actor `a` but `s` hold without a known end lasts until `end`.
inline bool holds_last(const Partners& all, std::int32_t a, std::int32_t s, Time end) {
  ActorState& actor = all.state.actors[static_cast<std::size_t>(a)];
  const StreamSet open = actor.holds.open();
  for (std::int32_t h = open.next(0); h < StreamSet::kMost; h = open.next(h + 1)) {
    if (h == s) continue;
    Stream& holder = actor.streams[static_cast<std::size_t>(h)];
    if (holder.arrived < end) holder.arrived = max(holder.arrived, messages_last(all, {a, h, 0}));
    if (holder.arrived < end) return false;
  }
  return true;
}

inline void forget_holds(ActorState& actor) {
  if (!actor.holds.worth_forgetting()) return;
  // Else a stream that has one kernel at the end of a step would keep every hold since its begin.
  const StreamSet heeding = actor.prices->heeds_holds;
  Time earliest = kNever;
  for (std::int32_t s = heeding.next(0); s < StreamSet::kMost; s = heeding.next(s + 1)) {
    if (actor.streams[static_cast<std::size_t>(s)].wait == Wait::kDone) continue;
    earliest = min(earliest, goes_on_after(actor, s));
  }
  actor.holds.forget(earliest);
}

}  // namespace foretrain
