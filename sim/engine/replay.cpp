#include "sim/engine/replay.h"

#include <algorithm>
#include <string>

#include "sim/engine/event_queue.h"
#include "sim/engine/fluid.h"
#include "sim/engine/transfers.h"

namespace foretrain {
namespace {

enum class Wait : std::uint8_t { kNone, kEvent, kEpoch, kPartner, kQueue, kDone };

struct Stream {
  std::int32_t entry = 0;  ///< into PreparedProgram::entries
  std::int32_t op = -1;    ///< into PreparedProgram::ops; -1: the entry's own waits come first
  Wait wait = Wait::kNone;
  std::int32_t waiting_for = 0;  ///< event id or epoch
  Time free_at;                  ///< end of the last op
  Time ready;                    ///< of the op that waits for a partner or the queue
  Time matched;                  ///< messages: latest start so far
  Time arrived;                  ///< messages: latest end so far
  std::int32_t open_messages = 0;
  std::uint32_t version = 0;  ///< of queued kernel ends
};

/// An interval in which communication holds SMs and memory bandwidth of an actor.
struct Hold {
  std::int32_t stream = 0;
  Time begin, end;  ///< end is kNever while unknown
  std::int32_t sms = 0, memory_share = 0;
};

struct ActorState {
  std::size_t first_stream = 0;  ///< into Replayer::x_streams
  std::int32_t stream_count = 0;
  std::size_t first_event = 0;
  std::vector<Time> epoch;  ///< host time at the start of each epoch; kNever while unknown
  std::vector<Hold> holds;
  bool queued = false;  ///< is in the list of actors to run
};

struct GroupState {
  std::int32_t arrived = 0;
  Time latest;
  std::vector<Waiter> waiters;
};

struct ChannelState {
  bool posted[2] = {false, false};  // sender, receiver
  Time at[2];
  Waiter waiter[2];
};

class Replayer {
 public:
  Replayer(const Workload& workload, const Prepared& prepared, SpanSink* sink)
      : x_workload(workload),
        x_prepared(prepared),
        x_quotient(prepared.quotient),
        x_sink(sink),
        x_transfers(prepared.quotient.ports, x_queue),
        x_groups(prepared.quotient.groups.size()),
        x_channels(prepared.quotient.channels.size()) {
    set_up();
  }

  Result<Replay> run() {
    for (std::size_t a = 0; a < x_actors.size(); ++a) wake(static_cast<std::int32_t>(a));
    while (true) {
      while (!x_to_run.empty()) {
        const std::int32_t actor = x_to_run.back();
        x_to_run.pop_back();
        x_actors[static_cast<std::size_t>(actor)].queued = false;
        run_actor(actor);
      }
      if (x_queue.empty()) break;
      take(x_queue.pop());
    }
    for (const Stream& stream : x_streams) {
      if (stream.wait != Wait::kDone) return deadlock();
    }
    return finish();
  }

 private:
  // --- Tables ------------------------------------------------------------------------------------
  const Actor& actor_of(std::int32_t a) const {
    return x_quotient.actors[static_cast<std::size_t>(a)];
  }
  const PreparedProgram& program_of(std::int32_t a) const {
    return x_prepared.programs[actor_of(a).program.index()];
  }
  const PreparedPrices& prices_of(std::int32_t a) const {
    return x_prepared
        .prices[static_cast<std::size_t>(x_prepared.prices_of[static_cast<std::size_t>(a)])];
  }
  Stream& stream_of(std::int32_t a, std::int32_t s) {
    return x_streams[x_actors[static_cast<std::size_t>(a)].first_stream +
                     static_cast<std::size_t>(s)];
  }

  void set_up() {
    std::size_t streams = 0;
    std::size_t events = 0;
    x_actors.resize(x_quotient.actors.size());
    for (std::size_t a = 0; a < x_actors.size(); ++a) {
      const PreparedProgram& program = program_of(static_cast<std::int32_t>(a));
      ActorState& state = x_actors[a];
      state.first_stream = streams;
      state.stream_count = static_cast<std::int32_t>(program.entries.size());
      state.first_event = events;
      state.epoch.assign(static_cast<std::size_t>(program.epochs), kNever);
      state.epoch[0] = Time{};
      streams += program.entries.size();
      events += static_cast<std::size_t>(program.events);
    }
    x_streams.resize(streams);
    x_events.assign(events, kNever);
    x_result.actor_end.resize(x_actors.size());
    x_result.host_end.resize(x_actors.size());
  }

  void wake(std::int32_t a) {
    ActorState& state = x_actors[static_cast<std::size_t>(a)];
    if (state.queued) return;
    state.queued = true;
    x_to_run.push_back(a);
  }

  // --- One actor ---------------------------------------------------------------------------------
  void run_actor(std::int32_t a) {
    const std::int32_t count = x_actors[static_cast<std::size_t>(a)].stream_count;
    const PreparedPrices& prices = prices_of(a);
    bool progress = true;
    while (progress) {
      progress = false;
      // Streams that hold resources go first, so that kernels know what stands beside them.
      for (int pass = 0; pass < 2; ++pass) {
        for (std::int32_t s = 0; s < count; ++s) {
          const bool heeds = prices.heeds_holds[static_cast<std::size_t>(s)] != 0;
          if (heeds != (pass == 1)) continue;
          while (step(a, s)) {
            progress = true;
            if (heeds) break;  // what it recorded may start a hold
          }
        }
      }
    }
  }

  /// Moves a stream on by one op (or one wait); false if it cannot move now.
  bool step(std::int32_t a, std::int32_t s) {
    Stream& stream = stream_of(a, s);
    const PreparedProgram& program = program_of(a);
    if (stream.wait == Wait::kPartner || stream.wait == Wait::kDone) return false;
    const auto& entries = program.entries[static_cast<std::size_t>(s)];
    if (static_cast<std::size_t>(stream.entry) == entries.size()) {
      stream.wait = Wait::kDone;
      return false;
    }
    const StreamEntry& entry = entries[static_cast<std::size_t>(stream.entry)];
    const ActorState& state = x_actors[static_cast<std::size_t>(a)];
    if (stream.op < 0) {
      for (std::int32_t w = entry.waits_begin; w < entry.waits_end; ++w) {
        const std::int32_t event = program.call_waits[static_cast<std::size_t>(w)];
        if (!wait_event(state, stream, event)) return false;
      }
      stream.op = entry.ops_begin;
    }
    if (stream.op == entry.ops_end) {
      ++stream.entry;
      stream.op = -1;
      return true;
    }
    return launch(a, s, stream, entry);
  }

  bool wait_event(const ActorState& state, Stream& stream, std::int32_t event) {
    const Time at = x_events[state.first_event + static_cast<std::size_t>(event)];
    if (at == kNever) {
      stream.wait = Wait::kEvent;
      stream.waiting_for = event;
      return false;
    }
    // A kernel that the queue holds comes here again: it stays queued.
    if (stream.wait == Wait::kEvent) stream.wait = Wait::kNone;
    stream.free_at = max(stream.free_at, at);
    return true;
  }

  bool launch(std::int32_t a, std::int32_t s, Stream& stream, const StreamEntry& entry) {
    const PreparedProgram& program = program_of(a);
    const PreparedPrices& prices = prices_of(a);
    ActorState& state = x_actors[static_cast<std::size_t>(a)];
    const auto position = static_cast<std::size_t>(stream.op);
    const PreparedOp& op = program.ops[position];
    for (std::int32_t w = op.waits_begin; w < op.waits_end; ++w) {
      const EventRef ref = program.wait_refs[static_cast<std::size_t>(w)];
      if (!wait_event(state, stream, event_id(a, entry.call, ref))) return false;
    }
    const std::int32_t delta = prices.op_epoch[position];
    const auto call = static_cast<std::size_t>(entry.call);
    const std::int32_t epoch = program.call_epoch[call] + delta;
    const Time base = state.epoch[static_cast<std::size_t>(epoch)];
    if (base == kNever) {
      stream.wait = Wait::kEpoch;
      stream.waiting_for = epoch;
      return false;
    }
    Time issue = base + prices.op_issue[position];
    if (delta == 0) issue += prices.call_issue[call];
    x_result.host_end[static_cast<std::size_t>(a)] =
        max(x_result.host_end[static_cast<std::size_t>(a)], issue);
    const Time ready = max(stream.free_at, issue);
    const Cost& cost = prices.costs[static_cast<std::size_t>(op.cost)];
    switch (op.kind) {
      case OpClass::kLocal:
        complete(a, s, ready, ready, ready + cost.duration);
        return true;
      case OpClass::kYielding:
        return run_kernel(a, s, ready, cost);
      case OpClass::kSync:
        state.epoch[static_cast<std::size_t>(epoch) + 1] = ready;
        wake_epoch(state, epoch + 1);
        complete(a, s, ready, ready, ready);
        return true;
      case OpClass::kCollective:
        return join(a, s, ready, op, cost);
      case OpClass::kMessages:
        return post(a, s, ready, op, cost);
    }
    return false;
  }

  std::int32_t event_id(std::int32_t a, std::int32_t call, EventRef ref) const {
    const Program& program = x_workload.programs[actor_of(a).program.index()];
    const FrameId frame =
        program.calls[static_cast<std::size_t>(call)].frames[static_cast<std::size_t>(ref.frame)];
    return program_of(a).event_base[frame.index()] + ref.event;
  }

  void wake_epoch(ActorState& state, std::int32_t epoch) {
    for (std::int32_t s = 0; s < state.stream_count; ++s) {
      Stream& other = x_streams[state.first_stream + static_cast<std::size_t>(s)];
      if (other.wait == Wait::kEpoch && other.waiting_for == epoch) other.wait = Wait::kNone;
    }
  }

  /// The current op of the stream has ended: tells the sink, records its event, moves on.
  void complete(std::int32_t a, std::int32_t s, Time begin, Time start, Time end) {
    Stream& stream = stream_of(a, s);
    const PreparedProgram& program = program_of(a);
    const StreamEntry& entry =
        program.entries[static_cast<std::size_t>(s)][static_cast<std::size_t>(stream.entry)];
    const PreparedOp& op = program.ops[static_cast<std::size_t>(stream.op)];
    stream.free_at = end;
    stream.wait = Wait::kNone;
    ++stream.version;
    ++x_result.operations;
    Time& last = x_result.actor_end[static_cast<std::size_t>(a)];
    last = max(last, end);
    if (x_sink != nullptr) {
      x_sink->span(OpTimes{a, entry.call, op.index, op.work, s, begin, start, end});
    }
    if (op.records.valid()) {
      ActorState& state = x_actors[static_cast<std::size_t>(a)];
      x_events[state.first_event + static_cast<std::size_t>(event_id(a, entry.call, op.records))] =
          end;
    }
    ++stream.op;
  }

  // --- Kernels beside communication
  // ----------------------------------------------------------------
  bool run_kernel(std::int32_t a, std::int32_t s, Time ready, const Cost& cost) {
    const PreparedPrices& prices = prices_of(a);
    if (prices.heeds_holds[static_cast<std::size_t>(s)] == 0 || cost.duration.ps == 0) {
      complete(a, s, ready, ready, ready + cost.duration);
      return true;
    }
    Stream& stream = stream_of(a, s);
    bool certain = true;
    const Time end = end_beside(a, s, ready, cost, certain);
    if (certain || (stream.wait == Wait::kQueue && x_deciding == a && end == x_now)) {
      forget_holds(a, end);
      complete(a, s, ready, ready, end);
      return true;
    }
    if (stream.wait != Wait::kQueue || stream.ready != end) {
      stream.wait = Wait::kQueue;
      stream.ready = end;
      x_queue.push(end, EventQueue::Kind::kKernelEnd, a, s, ++stream.version);
    }
    return false;
  }

  /// Walks the holds of other streams from `ready` on. `certain` is false if something that is not
  /// known yet could still change the answer.
  Time end_beside(std::int32_t a, std::int32_t s, Time ready, const Cost& cost, bool& certain) {
    const ActorState& state = x_actors[static_cast<std::size_t>(a)];
    Progress progress(cost.duration);
    Time now = ready;
    Time end;
    while (true) {
      std::int32_t sms = 0;
      std::int32_t memory = 0;
      Time change = kNever;
      for (const Hold& hold : state.holds) {
        if (hold.stream == s || hold.end <= now) continue;
        if (hold.begin > now) {
          change = min(change, hold.begin);
        } else {
          sms += hold.sms;
          memory += hold.memory_share;
          change = min(change, hold.end);
        }
      }
      const std::int64_t rate =
          rate_of(cost.duration, duration_beside(cost, x_prepared.sm_count, sms, memory));
      end = progress.end_at(now, rate);
      if (end <= change) break;
      progress.advance(change - now, rate);
      now = change;
    }
    for (const Hold& hold : state.holds) {
      if (hold.stream != s && hold.end == kNever && hold.begin < end) certain = false;
    }
    for (std::int32_t h = 0; h < state.stream_count; ++h) {
      if (h != s && may_hold_soon(a, h, s)) certain = false;
    }
    return end;
  }

  /// Whether stream `h` could start a hold before the present op of `s` has ended: not if it is
  /// done, or waits for an event that `s` itself has yet to record.
  bool may_hold_soon(std::int32_t a, std::int32_t h, std::int32_t s) {
    const PreparedPrices& prices = prices_of(a);
    if (prices.records_holds[static_cast<std::size_t>(h)] == 0) return false;
    const Stream& other = stream_of(a, h);
    if (other.wait == Wait::kDone) return false;
    if (other.wait == Wait::kPartner) return !has_open_hold(a, h);  // else it is listed
    if (other.wait != Wait::kEvent) return true;
    const std::int16_t recorder =
        program_of(a).event_stream[static_cast<std::size_t>(other.waiting_for)];
    return recorder != s;
  }

  bool has_open_hold(std::int32_t a, std::int32_t s) const {
    const std::vector<Hold>& holds = x_actors[static_cast<std::size_t>(a)].holds;
    return std::any_of(holds.begin(), holds.end(), [s](const Hold& hold) {
      return hold.stream == s && hold.end == kNever;
    });
  }

  void hold(std::int32_t a, std::int32_t s, Time begin, const Cost& cost) {
    if (prices_of(a).records_holds[static_cast<std::size_t>(s)] == 0) return;
    if (cost.sms_held == 0 && cost.memory_share == 0) return;
    x_actors[static_cast<std::size_t>(a)].holds.push_back(
        Hold{s, begin, kNever, cost.sms_held, cost.memory_share});
  }

  void end_hold(std::int32_t a, std::int32_t s, Time end) {
    for (Hold& hold : x_actors[static_cast<std::size_t>(a)].holds) {
      if (hold.stream == s && hold.end == kNever) hold.end = end;
    }
  }

  /// Drops holds that no later kernel can meet. With kernels on one stream only, those before
  /// `now`.
  void forget_holds(std::int32_t a, Time now) {
    const PreparedPrices& prices = prices_of(a);
    if (std::count(prices.heeds_holds.begin(), prices.heeds_holds.end(), 1) > 1) return;
    std::erase_if(x_actors[static_cast<std::size_t>(a)].holds,
                  [now](const Hold& hold) { return hold.end <= now; });
  }

  // --- Collectives
  // ---------------------------------------------------------------------------------
  bool join(std::int32_t a, std::int32_t s, Time ready, const PreparedOp& op, const Cost& cost) {
    const std::int32_t g = actor_of(a).groups[static_cast<std::size_t>(op.group)];
    GroupState& group = x_groups[static_cast<std::size_t>(g)];
    const std::int32_t members = x_quotient.groups[static_cast<std::size_t>(g)].members;
    const bool shares = x_prepared.group_shares[static_cast<std::size_t>(g)] != 0;
    if (members == 1 && (!shares || cost.duration.ps == 0)) {
      hold(a, s, ready, cost);
      end_hold(a, s, ready + cost.duration);
      complete(a, s, ready, ready, ready + cost.duration);
      return true;
    }
    Stream& stream = stream_of(a, s);
    stream.wait = Wait::kPartner;
    stream.ready = ready;
    hold(a, s, ready, cost);
    group.waiters.push_back(Waiter{a, s, 0});
    group.latest = group.arrived == 0 ? ready : max(group.latest, ready);
    if (++group.arrived < members) return false;
    group.arrived = 0;
    std::vector<Waiter> waiters = std::move(group.waiters);
    group.waiters.clear();
    const Time start = group.latest;
    for (const Waiter& waiter : waiters) stream_of(waiter.actor, waiter.stream).matched = start;
    if (shares && cost.duration.ps > 0) {
      share_collective(start, cost, std::move(waiters));
      return false;
    }
    for (const Waiter& waiter : waiters) end_collective(waiter, start + cost.duration, a);
    return true;
  }

  void share_collective(Time start, const Cost& cost, std::vector<Waiter> waiters) {
    Transfer transfer;
    transfer.start = start;
    transfer.alone = cost.duration;
    for (const Waiter& waiter : waiters) add_demands(transfer, waiter.actor, cost, true, true);
    transfer.waiters = std::move(waiters);
    x_transfers.add(std::move(transfer));
  }

  void add_demands(Transfer& transfer, std::int32_t a, const Cost& cost, bool out, bool in) const {
    const Actor& actor = actor_of(a);
    for (std::size_t p = 0; p < kPortCount; ++p) {
      if (cost.port_share[p] == 0 || !(is_outgoing(static_cast<Port>(p)) ? out : in)) continue;
      transfer.demands.push_back(PortDemand{
          actor.ports[p], static_cast<std::int64_t>(cost.port_share[p]) * actor.port_weight[p]});
    }
  }

  void end_collective(const Waiter& waiter, Time end, std::int32_t running) {
    const Stream& stream = stream_of(waiter.actor, waiter.stream);
    end_hold(waiter.actor, waiter.stream, end);
    complete(waiter.actor, waiter.stream, stream.ready, stream.matched, end);
    if (waiter.actor != running) wake(waiter.actor);
  }

  // --- Messages
  // ------------------------------------------------------------------------------------
  bool post(std::int32_t a, std::int32_t s, Time ready, const PreparedOp& op, const Cost& cost) {
    const Program& program = x_workload.programs[actor_of(a).program.index()];
    const auto& batch = std::get<P2PBatch>(program.works[static_cast<std::size_t>(op.work)]);
    const auto& costs = prices_of(a).message_costs[static_cast<std::size_t>(op.work)];
    Stream& stream = stream_of(a, s);
    stream.wait = Wait::kPartner;
    stream.ready = stream.matched = stream.arrived = ready;
    stream.open_messages = static_cast<std::int32_t>(batch.messages.size());
    hold(a, s, ready, cost);
    x_posting = a;
    x_posting_stream = s;
    for (std::size_t m = 0; m < batch.messages.size(); ++m) {
      const Message& message = batch.messages[m];
      const std::int32_t c = actor_of(a).channels[message.channel.index()];
      ChannelState& channel = x_channels[static_cast<std::size_t>(c)];
      const int side = message.send ? 0 : 1;
      channel.posted[side] = true;
      channel.at[side] = ready;
      channel.waiter[side] = Waiter{a, s, side};
      if (channel.posted[0] && channel.posted[1]) deliver(c, channel, costs[m]);
    }
    x_posting = -1;
    return stream_of(a, s).wait == Wait::kNone;
  }

  void deliver(std::int32_t c, ChannelState& channel, const Cost& cost) {
    channel.posted[0] = channel.posted[1] = false;
    const Time start = max(channel.at[0], channel.at[1]);
    const Waiter sender = channel.waiter[0];
    const Waiter receiver = channel.waiter[1];
    for (const Waiter& waiter : {sender, receiver}) {
      Stream& stream = stream_of(waiter.actor, waiter.stream);
      stream.matched = max(stream.matched, start);
    }
    if (x_prepared.channel_shares[static_cast<std::size_t>(c)] != 0 && cost.duration.ps > 0) {
      Transfer transfer;
      transfer.start = start;
      transfer.alone = cost.duration;
      add_demands(transfer, sender.actor, cost, true, false);
      add_demands(transfer, receiver.actor, cost, false, true);
      transfer.waiters = {sender, receiver};
      x_transfers.add(std::move(transfer));
      return;
    }
    end_message(sender, start + cost.duration);
    end_message(receiver, start + cost.duration);
  }

  void end_message(const Waiter& waiter, Time end) {
    Stream& stream = stream_of(waiter.actor, waiter.stream);
    stream.arrived = max(stream.arrived, end);
    if (--stream.open_messages > 0) return;
    end_hold(waiter.actor, waiter.stream, stream.arrived);
    complete(waiter.actor, waiter.stream, stream.ready, stream.matched, stream.arrived);
    if (waiter.actor != x_posting || waiter.stream != x_posting_stream) wake(waiter.actor);
  }

  // --- The queue
  // -----------------------------------------------------------------------------------
  void take(const EventQueue::Event& event) {
    x_now = event.at;
    if (event.kind == EventQueue::Kind::kTransferStart) {
      ++x_result.events;
      x_transfers.start(event.subject, event.at);
      return;
    }
    if (event.kind == EventQueue::Kind::kTransferEnd) {
      if (!x_transfers.end(event)) return;
      ++x_result.events;
      const std::vector<Waiter> waiters = x_transfers[event.subject].waiters;
      const bool message = waiters.size() == 2 && waiters[1].side == 1;
      for (const Waiter& waiter : waiters) {
        if (message) {
          end_message(waiter, event.at);
        } else {
          end_collective(waiter, event.at, -1);
        }
      }
      x_transfers.release(event.subject);
      return;
    }
    const Stream& stream = stream_of(event.subject, event.detail);
    if (stream.wait != Wait::kQueue || stream.version != event.version) return;
    ++x_result.events;
    x_deciding = event.subject;
    run_actor(event.subject);
    x_deciding = -1;
  }

  Result<Replay> finish() {
    for (std::size_t a = 0; a < x_actors.size(); ++a) {
      x_result.end = max(x_result.end, max(x_result.actor_end[a], x_result.host_end[a]));
    }
    return std::move(x_result);
  }

  // --- Deadlock
  // ------------------------------------------------------------------------------------
  Error deadlock() {
    std::string text = "deadlock: no rank can go on\n";
    int shown = 0;
    for (std::size_t a = 0; a < x_actors.size() && shown < 24; ++a) {
      for (std::int32_t s = 0; s < x_actors[a].stream_count && shown < 24; ++s) {
        const std::string line = describe_wait(static_cast<std::int32_t>(a), s);
        if (line.empty()) continue;
        text += "  " + line + "\n";
        ++shown;
      }
    }
    return input_error(text);
  }

  std::string describe_wait(std::int32_t a, std::int32_t s) {
    const Stream& stream = stream_of(a, s);
    if (stream.wait == Wait::kDone) return "";
    const Program& program = x_workload.programs[actor_of(a).program.index()];
    const StreamEntry& entry =
        program_of(a).entries[static_cast<std::size_t>(s)][static_cast<std::size_t>(stream.entry)];
    const Call& call = program.calls[static_cast<std::size_t>(entry.call)];
    std::string line = "rank " + std::to_string(actor_of(a).rank.value) + " stream " +
                       program.streams[static_cast<std::size_t>(s)] + " in " +
                       program.segments[call.segment.index()].name;
    if (call.layer >= 0) line += " layer " + std::to_string(call.layer);
    if (call.microbatch >= 0) line += " microbatch " + std::to_string(call.microbatch);
    if (stream.op >= 0 && stream.op < entry.ops_end) {
      const PreparedOp& op = program_of(a).ops[static_cast<std::size_t>(stream.op)];
      line += " at " +
              program.segments[call.segment.index()].ops[static_cast<std::size_t>(op.index)].name +
              " (" + text_of(program.works[static_cast<std::size_t>(op.work)]) + ")";
    }
    switch (stream.wait) {
      case Wait::kEvent:
        return line + " waits for an event that is never recorded";
      case Wait::kEpoch:
        return line + " waits for the host, which is blocked in a sync";
      case Wait::kPartner:
        return line + " waits for its partners";
      default:
        return line + " did not run";
    }
  }

  const Workload& x_workload;
  const Prepared& x_prepared;
  const Quotient& x_quotient;
  SpanSink* x_sink;
  EventQueue x_queue;
  Transfers x_transfers;
  std::vector<GroupState> x_groups;
  std::vector<ChannelState> x_channels;
  std::vector<ActorState> x_actors;
  std::vector<Stream> x_streams;
  std::vector<Time> x_events;
  std::vector<std::int32_t> x_to_run;
  Time x_now;
  std::int32_t x_deciding = -1;  ///< actor whose kernel end the queue has just confirmed
  std::int32_t x_posting = -1, x_posting_stream = -1;  ///< inside `post`
  Replay x_result;
};

}  // namespace

Result<Replay> replay(const Workload& workload, const Prepared& prepared, SpanSink* sink) {
  return Replayer(workload, prepared, sink).run();
}

}  // namespace foretrain
