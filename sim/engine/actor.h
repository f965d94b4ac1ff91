// What happens to the streams of one actor: which of them may move on, what they wait for, and what
// they hold of its SMs and memory bandwidth.
#pragma once

#include <optional>

#include "sim/engine/replay_state.h"

namespace foretrain {

/// Wakes the streams that wait for the event: they do not poll, whose memory is rarely cached.
inline void record(ActorState& actor, std::int32_t event, Time at) {
  actor.events[static_cast<std::size_t>(event)] = at;
  const StreamSet waiting = actor.waiting;
  for (std::int32_t s = waiting.next(0); s < StreamSet::kMost; s = waiting.next(s + 1)) {
    Stream& stream = actor.streams[static_cast<std::size_t>(s)];
    if (stream.waiting_for != event) continue;
    stream.wait = Wait::kNone;
    actor.waiting.remove(s);
    actor.ready.add(s);
  }
}

/// Whether the event is there; if it is, the stream is not free before.
inline bool wait_event(ActorState& actor, std::int32_t s, std::int32_t event) {
  Stream& stream = actor.streams[static_cast<std::size_t>(s)];
  const Time at = actor.events[static_cast<std::size_t>(event)];
  if (at == kNever) {
    stream.wait = Wait::kEvent;
    stream.waiting_for = event;
    stream.recorder = actor.program->event_stream[static_cast<std::size_t>(event)];
    actor.waiting.add(s);
    return false;
  }
  stream.free_at = max(stream.free_at, at);
  return true;
}

/// The host has come as far as the epoch.
inline void begin_epoch(ActorState& actor, std::int32_t epoch, Time at) {
  actor.epoch[static_cast<std::size_t>(epoch)] = at;
  for (std::size_t s = 0; s < actor.streams.size(); ++s) {
    const Stream& stream = actor.streams[s];
    if (stream.wait != Wait::kEpoch || stream.waiting_for != epoch) continue;
    actor.ready.add(static_cast<std::int32_t>(s));
  }
}

/// Asks again for the ends of kernels that are queued: of all whose end is `at`, or of all.
inline void wake_kernels(ActorState& actor, std::optional<Time> at) {
  const StreamSet heeding = actor.prices->heeds_holds;
  for (std::int32_t s = heeding.next(0); s < StreamSet::kMost; s = heeding.next(s + 1)) {
    const Stream& stream = actor.streams[static_cast<std::size_t>(s)];
    if (stream.wait == Wait::kQueue && (!at || stream.ready == *at)) actor.ready.add(s);
  }
}

inline void open_hold(ActorState& actor, std::int32_t s, Time begin, const Cost& cost) {
  if (!actor.prices->records_holds.contains(s)) return;
  if (cost.sms_held == 0 && cost.memory_share == 0) return;
  actor.holds.open(s, begin, cost);
  wake_kernels(actor, std::nullopt);
}

/// What the communication of stream `s`, under way since `matched`, holds ends.
inline void close_hold(ActorState& actor, std::int32_t s, Time matched, Time end) {
  const Stream& stream = actor.streams[static_cast<std::size_t>(s)];
  const PreparedOp& op = actor.program->ops[static_cast<std::size_t>(stream.op)];
  const Cost& cost = actor.prices->costs[static_cast<std::size_t>(op.cost)];
  if (cost.waits_idle) open_hold(actor, s, matched, cost);
  actor.holds.close(s, end);
  wake_kernels(actor, std::nullopt);
}

}  // namespace foretrain
