#include "sim/engine/replay.h"

#include <algorithm>
#include <utility>

#include "sim/base/stop.h"
#include "sim/engine/actor.h"
#include "sim/engine/event_queue.h"
#include "sim/engine/lookahead.h"
#include "sim/engine/replay_state.h"
#include "sim/engine/transfers.h"

namespace foretrain {
namespace {

class Replayer {
 public:
  Replayer(const Workload& workload, const Prepared& prepared, SpanSink* sink)
      : x_workload(workload),
        x_prepared(prepared),
        x_sink(sink),
        x_transfers(prepared.quotient.ports, x_queue),
        x_state(initial_state(prepared)) {}

  Result<Replay> run() {
    for (std::size_t a = 0; a < x_state.actors.size(); ++a) wake(static_cast<std::int32_t>(a));
    while (true) {
      while (!x_to_run.empty()) {
        const std::int32_t actor = x_to_run.back();
        x_to_run.pop_back();
        actor_state(actor).queued = false;
        run_actor(actor);
      }
      constexpr std::int64_t kEventsBetweenLooks = 1 << 14;
      if (--x_until_look < 0) {
        if (stop_asked()) return input_error("stopped before its end");
        x_until_look = kEventsBetweenLooks;
      }
      if (x_queue.empty()) break;
      take(x_queue.pop());
    }
    for (const ActorState& actor : x_state.actors) {
      for (const Stream& stream : actor.streams) {
        if (stream.wait != Wait::kDone) return deadlock_report(x_workload, x_prepared, x_state);
      }
    }
    return finish();
  }

 private:
  ActorState& actor_state(std::int32_t a) { return x_state.actors[static_cast<std::size_t>(a)]; }

  void wake(std::int32_t a) {
    ActorState& actor = actor_state(a);
    if (actor.queued) return;
    actor.queued = true;
    x_to_run.push_back(a);
  }

  // --- One actor ---------------------------------------------------------------------------------
  void run_actor(std::int32_t a) {
    ActorState& actor = actor_state(a);
    const StreamSet heeding = actor.prices->heeds_holds;
    bool progress = true;
    while (progress) {
      progress = false;
      // Streams that hold resources go first, so that kernels know what stands beside them.
      // A stream that becomes ready behind the present one has its turn in the same round.
      for (std::int32_t s = 0; (s = actor.ready.without(heeding).next(s)) < StreamSet::kMost; ++s) {
        while (step(a, actor, s)) progress = true;
      }
      for (std::int32_t s = 0; (s = (actor.ready & heeding).next(s)) < StreamSet::kMost; ++s) {
        // One op at a time: its event may start a hold.
        if (step(a, actor, s)) progress = true;
      }
    }
  }

  /// Moves a stream on by one op, if it can now. One that cannot is not ready until what it waits
  /// for has come; but a kernel that others may yet slow is asked at every turn.
  bool step(std::int32_t a, ActorState& actor, std::int32_t s) {
    Stream& stream = actor.streams[static_cast<std::size_t>(s)];
    if (stream.wait != Wait::kPartner && stream.wait != Wait::kDone && advance(a, actor, s)) {
      return true;
    }
    const bool asked_again = stream.wait == Wait::kQueue &&
                             (stream.certain || (x_deciding == a && stream.ready == x_now));
    if (!asked_again) actor.ready.remove(s);
    return false;
  }

  bool advance(std::int32_t a, ActorState& actor, std::int32_t s) {
    Stream& stream = actor.streams[static_cast<std::size_t>(s)];
    const auto& entries = actor.program->entries[static_cast<std::size_t>(s)];
    while (static_cast<std::size_t>(stream.entry) < entries.size()) {
      const StreamEntry& entry = entries[static_cast<std::size_t>(stream.entry)];
      if (stream.op < 0) {
        for (std::int32_t w = entry.waits_begin; w < entry.waits_end; ++w) {
          const std::int32_t event = actor.program->call_waits[static_cast<std::size_t>(w)];
          if (!wait_event(actor, s, event)) return false;
        }
        stream.op = entry.ops_begin;
      }
      if (stream.op < entry.ops_end) return launch(a, actor, s, stream, entry);
      ++stream.entry;
      stream.op = -1;
    }
    stream.wait = Wait::kDone;
    return false;
  }

  bool launch(std::int32_t a, ActorState& actor, std::int32_t s, Stream& stream,
              const StreamEntry& entry) {
    const PreparedProgram& program = *actor.program;
    const PreparedPrices& prices = *actor.prices;
    const auto position = static_cast<std::size_t>(stream.op);
    const PreparedOp& op = program.ops[position];
    for (std::int32_t w = op.waits_begin; w < op.waits_end; ++w) {
      const EventRef ref = program.wait_refs[static_cast<std::size_t>(w)];
      if (!wait_event(actor, s, program.event_id(entry, ref))) return false;
    }
    const std::int32_t delta = prices.op_epoch[position];
    const auto call = static_cast<std::size_t>(entry.call);
    const std::int32_t epoch = program.call_epoch[call] + delta;
    const Time base = actor.epoch[static_cast<std::size_t>(epoch)];
    if (base == kNever) {
      stream.wait = Wait::kEpoch;
      stream.waiting_for = epoch;
      return false;
    }
    Time issue = base + prices.op_issue[position];
    if (delta == 0) issue += prices.call_issue[call];
    actor.host_end = max(actor.host_end, issue);
    const Time ready = max(stream.free_at, issue);
    const Cost& cost = prices.costs[static_cast<std::size_t>(op.cost)];
    switch (op.kind) {
      case OpClass::kLocal:
        if (x_prepared.copy_shares[static_cast<std::size_t>(a)] != 0 && cost.uses_ports()) {
          return move_copy(a, actor, s, ready, cost);
        }
        complete(a, actor, s, ready, ready, ready + cost.duration);
        return true;
      case OpClass::kYielding:
        return run_kernel(a, actor, s, ready, cost);
      case OpClass::kSync:
        begin_epoch(actor, epoch + 1, ready);
        complete(a, actor, s, ready, ready, ready);
        return true;
      case OpClass::kCollective:
        return join(a, actor, s, ready, op, cost);
      case OpClass::kMessages:
        return post(a, actor, s, ready, op, cost);
    }
    return false;
  }

  /// The current op of the stream has ended: tells the sink, records its event, moves on.
  void complete(std::int32_t a, ActorState& actor, std::int32_t s, Time begin, Time start,
                Time end) {
    Stream& stream = actor.streams[static_cast<std::size_t>(s)];
    const PreparedProgram& program = *actor.program;
    const StreamEntry& entry =
        program.entries[static_cast<std::size_t>(s)][static_cast<std::size_t>(stream.entry)];
    const PreparedOp& op = program.ops[static_cast<std::size_t>(stream.op)];
    stream.free_at = end;
    stream.wait = Wait::kNone;
    actor.ready.add(s);
    ++stream.version;
    ++x_result.operations;
    actor.last_end = max(actor.last_end, end);
    if (x_sink != nullptr) {
      x_sink->span(OpTimes{a, entry.call, op.index, s, begin, start, end});
    }
    if (op.records.valid()) {
      record(actor, program.event_id(entry, op.records), end);
    }
    ++stream.op;
  }

  /// A copy that may meet others on a link.
  bool move_copy(std::int32_t a, ActorState& actor, std::int32_t s, Time ready, const Cost& cost) {
    Stream& stream = actor.streams[static_cast<std::size_t>(s)];
    stream.wait = Wait::kPartner;
    stream.ready = stream.matched = ready;
    share_ports(ready, cost, {Waiter{a, s, 0}});
    return false;
  }

  // --- Kernels beside communication --------------------------------------------------------------
  bool run_kernel(std::int32_t a, ActorState& actor, std::int32_t s, Time ready, const Cost& cost) {
    if (!actor.prices->heeds_holds.contains(s) || cost.duration.ps == 0) {
      complete(a, actor, s, ready, ready, ready + cost.duration);
      return true;
    }
    Stream& stream = actor.streams[static_cast<std::size_t>(s)];
    // What the queue holds is asked for again where holds have changed since.
    const bool asked = stream.wait == Wait::kQueue && stream.waiting_for == actor.holds.changes();
    const Holds::Answer answer =
        asked ? Holds::Answer{stream.ready, stream.certain}
              : actor.holds.end_beside(cost, actor.prices->sm_count, s, ready, x_state.rates);
    const Time end = answer.end;
    const bool decided = stream.wait == Wait::kQueue && x_deciding == a && end == x_now;
    const bool certain =
        decided || answer.certain || holds_last({x_workload, x_prepared, x_state}, a, s, end);
    if (decided || (certain && !others_may_hold_soon(actor, s, end))) {
      complete(a, actor, s, ready, ready, end);
      forget_holds(actor);
      return true;
    }
    stream.waiting_for = actor.holds.changes();
    stream.certain = certain;
    if (stream.wait != Wait::kQueue || stream.ready != end) {
      stream.wait = Wait::kQueue;
      stream.ready = end;
      x_queue.push(end, EventQueue::Kind::kKernelEnd, a, s, ++stream.version);
    }
    return false;
  }

  // --- Collectives -------------------------------------------------------------------------------
  bool join(std::int32_t a, ActorState& actor, std::int32_t s, Time ready, const PreparedOp& op,
            const Cost& cost) {
    const auto g =
        static_cast<std::size_t>(actor.actor->groups[static_cast<std::size_t>(op.group)]);
    const auto members = static_cast<std::size_t>(x_prepared.quotient.groups[g].members);
    const bool shares = x_prepared.group_shares[g] != 0 && cost.duration.ps > 0;
    if (!cost.waits_idle) open_hold(actor, s, ready, cost);
    if (members == 1 && !shares) {
      close_hold(actor, s, ready, ready + cost.duration);
      complete(a, actor, s, ready, ready, ready + cost.duration);
      return true;
    }
    Stream& stream = actor.streams[static_cast<std::size_t>(s)];
    stream.wait = Wait::kPartner;
    stream.ready = ready;
    GroupState& group = x_state.groups[g];
    group.latest = group.waiters.empty() ? ready : max(group.latest, ready);
    group.waiters.push_back(Waiter{a, s, 0});
    if (group.waiters.size() < members) return false;
    const Time start = group.latest;
    for (const Waiter& waiter : group.waiters) x_state.stream(waiter).matched = start;
    if (shares) {
      share_ports(start, cost, group.waiters);
      group.waiters.clear();
      return false;
    }
    for (const Waiter& waiter : group.waiters) end_collective(waiter, start + cost.duration, a);
    group.waiters.clear();
    return true;
  }

  void share_ports(Time start, const Cost& cost, const std::vector<Waiter>& waiters) {
    Transfer transfer;
    transfer.start = start;
    transfer.alone = cost.duration;
    for (const Waiter& waiter : waiters) {
      add_demands(transfer, waiter.actor, cost, true);
      add_demands(transfer, waiter.actor, cost, false);
    }
    transfer.waiters = waiters;
    x_transfers.add(std::move(transfer));
  }

  void add_demands(Transfer& transfer, std::int32_t a, const Cost& cost, bool outgoing) {
    const Actor& actor = *actor_state(a).actor;
    for (std::size_t p = 0; p < kPortCount; ++p) {
      if (cost.port_share[p] == 0 || is_outgoing(static_cast<Port>(p)) != outgoing) continue;
      transfer.demands.push_back(PortDemand{
          actor.ports[p], static_cast<std::int64_t>(cost.port_share[p]) * actor.port_weight[p]});
    }
  }

  void end_collective(const Waiter& waiter, Time end, std::int32_t running) {
    ActorState& actor = actor_state(waiter.actor);
    const Stream& stream = x_state.stream(waiter);
    close_hold(actor, waiter.stream, stream.matched, end);
    complete(waiter.actor, actor, waiter.stream, stream.ready, stream.matched, end);
    if (waiter.actor != running) wake(waiter.actor);
  }

  // --- Messages ----------------------------------------------------------------------------------
  bool post(std::int32_t a, ActorState& actor, std::int32_t s, Time ready, const PreparedOp& op,
            const Cost& cost) {
    const Program& program = x_workload.programs[actor.actor->program.index()];
    const auto work = static_cast<std::size_t>(op.work);
    const auto& batch = std::get<P2PBatch>(program.works[work]);
    const std::vector<Cost>& costs = actor.prices->message_costs[work];
    Stream& stream = actor.streams[static_cast<std::size_t>(s)];
    stream.wait = Wait::kPartner;
    stream.ready = stream.matched = stream.arrived = ready;
    stream.open_messages = static_cast<std::int32_t>(batch.messages.size());
    if (!cost.waits_idle) open_hold(actor, s, ready, cost);
    x_posting = Waiter{a, s, 0};
    for (std::size_t m = 0; m < batch.messages.size(); ++m) {
      const Message& message = batch.messages[m];
      const auto c = static_cast<std::size_t>(actor.actor->channels[message.channel.index()]);
      ChannelState& channel = x_state.channels[c];
      const std::int32_t side = message.send ? 0 : 1;
      channel.ends[static_cast<std::size_t>(side)] = {&costs[m], ready, Waiter{a, s, side}};
      if (channel.ends[0].cost != nullptr && channel.ends[1].cost != nullptr) deliver(c);
    }
    x_posting = Waiter{-1, -1, 0};
    return stream.wait == Wait::kNone;
  }

  /// Both ends are there. The slower of the two prices counts: who came last must not matter.
  void deliver(std::size_t c) {
    const auto [sender, receiver] = std::exchange(x_state.channels[c].ends, {});
    const Time start = max(sender.at, receiver.at);
    const Time duration = max(sender.cost->duration, receiver.cost->duration);
    for (const Waiter& waiter : {sender.waiter, receiver.waiter}) {
      Stream& stream = x_state.stream(waiter);
      stream.matched = max(stream.matched, start);
    }
    if (x_prepared.channel_shares[c] != 0 && duration.ps > 0) {
      Transfer transfer;
      transfer.start = start;
      transfer.alone = duration;
      add_demands(transfer, sender.waiter.actor, *sender.cost, true);
      add_demands(transfer, receiver.waiter.actor, *receiver.cost, false);
      transfer.waiters = {sender.waiter, receiver.waiter};
      x_transfers.add(std::move(transfer));
      return;
    }
    end_message(sender.waiter, start + duration);
    end_message(receiver.waiter, start + duration);
  }

  void end_message(const Waiter& waiter, Time end) {
    Stream& stream = x_state.stream(waiter);
    stream.arrived = max(stream.arrived, end);
    if (--stream.open_messages > 0) return;
    ActorState& actor = actor_state(waiter.actor);
    close_hold(actor, waiter.stream, stream.matched, stream.arrived);
    complete(waiter.actor, actor, waiter.stream, stream.ready, stream.matched, stream.arrived);
    if (waiter.actor != x_posting.actor || waiter.stream != x_posting.stream) wake(waiter.actor);
  }

  // --- The queue ---------------------------------------------------------------------------------
  void take(const EventQueue::Event& event) {
    x_now = event.at;
    switch (event.kind) {
      case EventQueue::Kind::kTransferStart:
        ++x_result.events;
        x_transfers.start(event.subject, event.at);
        return;
      case EventQueue::Kind::kTransferEnd:
        if (x_transfers.end(event)) end_transfer(event);
        return;
      case EventQueue::Kind::kKernelEnd:
        const Stream& stream = x_state.stream(Waiter{event.subject, event.detail, 0});
        if (stream.wait != Wait::kQueue || stream.version != event.version) return;
        ++x_result.events;
        x_deciding = event.subject;
        wake_kernels(actor_state(event.subject), x_now);
        run_actor(event.subject);
        x_deciding = -1;
        return;
    }
  }

  void end_transfer(const EventQueue::Event& event) {
    ++x_result.events;
    const std::vector<Waiter>& waiters = x_transfers[event.subject].waiters;
    const bool message = waiters.size() == 2 && waiters[1].side == 1;
    for (const Waiter& waiter : waiters) {
      if (message) {
        end_message(waiter, event.at);
      } else {
        end_collective(waiter, event.at, -1);
      }
    }
    x_transfers.release(event.subject);
  }

  Replay finish() {
    for (const ActorState& actor : x_state.actors) {
      x_result.actor_end.push_back(actor.last_end);
      x_result.host_end.push_back(actor.host_end);
      x_result.end = max(x_result.end, max(actor.last_end, actor.host_end));
    }
    return std::move(x_result);
  }

  const Workload& x_workload;
  const Prepared& x_prepared;
  SpanSink* x_sink;
  EventQueue x_queue;
  Transfers x_transfers;
  ReplayState x_state;
  std::vector<std::int32_t> x_to_run;
  Time x_now;
  std::int32_t x_deciding = -1;    ///< actor whose kernel end the queue has just confirmed
  Waiter x_posting = {-1, -1, 0};  ///< inside `post`
  Replay x_result;
  std::int64_t x_until_look = 0;  ///< events until it looks whether to stop
};

}  // namespace

Result<Replay> replay(const Workload& workload, const Prepared& prepared, SpanSink* sink) {
  return Replayer(workload, prepared, sink).run();
}

}  // namespace foretrain
