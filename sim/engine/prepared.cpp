#include "sim/engine/prepared.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "sim/base/check.h"
#include "sim/base/threads.h"

namespace foretrain {
namespace {

OpClass class_of(const Work& work) {
  if (std::holds_alternative<Collective>(work)) return OpClass::kCollective;
  if (std::holds_alternative<P2PBatch>(work)) return OpClass::kMessages;
  if (std::holds_alternative<HostSync>(work)) return OpClass::kSync;
  if (std::holds_alternative<Copy>(work) || std::holds_alternative<HostDelay>(work) ||
      std::holds_alternative<Pause>(work)) {
    return OpClass::kLocal;
  }
  const auto* opaque = std::get_if<Opaque>(&work);
  if (opaque != nullptr && opaque->where == Memory::kHost) return OpClass::kLocal;
  return OpClass::kYielding;
}

class Flattener {
 public:
  explicit Flattener(const Program& program) : x_program(program) {}

  PreparedProgram run() {
    lay_out_events();
    lay_out_segments();
    lay_out_calls();
    lay_out_channels();
    return std::move(x_out);
  }

 private:
  void lay_out_events() {
    for (const Frame& frame : x_program.frames) {
      x_out.event_base.push_back(x_out.events);
      x_out.events +=
          static_cast<std::int32_t>(x_program.layouts[frame.layout.index()].events.size());
    }
    x_out.event_stream.assign(static_cast<std::size_t>(x_out.events), -1);
    x_out.event_source.resize(static_cast<std::size_t>(x_out.events));
  }

  void lay_out_segments() {
    const std::size_t streams = x_program.streams.size();
    x_ranges.resize(x_program.segments.size() * streams);
    x_syncs.resize(x_program.segments.size());
    for (std::size_t g = 0; g < x_program.segments.size(); ++g) {
      const Segment& segment = x_program.segments[g];
      for (std::size_t s = 0; s < streams; ++s) {
        const auto begin = static_cast<std::int32_t>(x_out.ops.size());
        for (std::size_t o = 0; o < segment.ops.size(); ++o) {
          if (segment.ops[o].stream.index() == s) add_op(segment.ops[o], o);
        }
        x_ranges[g * streams + s] = {begin, static_cast<std::int32_t>(x_out.ops.size())};
      }
      for (const Op& op : segment.ops) {
        const bool sync = std::holds_alternative<HostSync>(x_program.works[op.work.index()]);
        x_syncs[g] += sync ? 1 : 0;
      }
    }
  }

  void add_op(const Op& op, std::size_t index) {
    PreparedOp out;
    const Work& work = x_program.works[op.work.index()];
    out.kind = class_of(work);
    out.work = out.cost = op.work.value;
    out.index = static_cast<std::int32_t>(index);
    out.waits_begin = static_cast<std::int32_t>(x_out.wait_refs.size());
    x_out.wait_refs.insert(x_out.wait_refs.end(), op.waits.begin(), op.waits.end());
    out.waits_end = static_cast<std::int32_t>(x_out.wait_refs.size());
    out.records = op.records;
    if (const auto* collective = std::get_if<Collective>(&work)) {
      out.group = collective->group.value;
    }
    x_out.ops.push_back(out);
  }

  void lay_out_calls() {
    const std::size_t streams = x_program.streams.size();
    x_out.entries.resize(streams);
    std::int32_t epoch = 0;
    for (std::size_t c = 0; c < x_program.calls.size(); ++c) {
      const Call& call = x_program.calls[c];
      x_out.call_epoch.push_back(epoch);
      epoch += x_syncs[call.segment.index()];
      const auto frames = static_cast<std::int32_t>(x_out.call_frames.size());
      for (const FrameId frame : call.frames) {
        x_out.call_frames.push_back(frame.valid() ? x_out.event_base[frame.index()] : -1);
      }
      for (std::size_t s = 0; s < streams; ++s) add_entry(c, s, frames);
    }
    x_out.epochs = epoch + 1;
  }

  void add_entry(std::size_t c, std::size_t s, std::int32_t frames) {
    const Call& call = x_program.calls[c];
    const auto [begin, end] = x_ranges[call.segment.index() * x_program.streams.size() + s];
    StreamEntry entry{static_cast<std::int32_t>(c),
                      begin,
                      end,
                      static_cast<std::int32_t>(x_out.call_waits.size()),
                      0,
                      frames};
    for (const StreamWait& wait : call.waits) {
      if (wait.stream.index() != s) continue;
      x_out.call_waits.push_back(x_out.event_base[wait.frame.index()] + wait.event);
    }
    entry.waits_end = static_cast<std::int32_t>(x_out.call_waits.size());
    if (begin == end && entry.waits_begin == entry.waits_end) return;
    x_out.entries[s].push_back(entry);
    for (std::int32_t o = begin; o < end; ++o) {
      const EventRef records = x_out.ops[static_cast<std::size_t>(o)].records;
      if (!records.valid()) continue;
      const auto event = static_cast<std::size_t>(x_out.event_id(entry, records));
      const auto stream = static_cast<std::int16_t>(s);
      std::int16_t& recorder = x_out.event_stream[event];
      FT_CHECK(recorder < 0 || recorder == stream, "an event that two streams record");
      if (recorder >= 0) continue;  // who waits for it waits for the first
      recorder = stream;
      x_out.event_source[event] = {static_cast<std::int32_t>(x_out.entries[s].size()) - 1, o};
    }
  }

  void lay_out_channels() {
    constexpr std::int16_t kSeveral = -2;
    x_out.channel_ends.resize(x_program.channel_slots.size());
    for (const Segment& segment : x_program.segments) {
      for (const Op& op : segment.ops) {
        const auto* batch = std::get_if<P2PBatch>(&x_program.works[op.work.index()]);
        if (batch == nullptr) continue;
        for (const Message& message : batch->messages) {
          ChannelEnd& end = x_out.channel_ends[message.channel.index()];
          const auto stream = static_cast<std::int16_t>(op.stream.value);
          const bool other = end.stream != -1 && end.stream != stream;
          end = {other ? kSeveral : stream, static_cast<std::int8_t>(message.send ? 0 : 1)};
        }
      }
    }
  }

  const Program& x_program;
  PreparedProgram x_out;
  std::vector<std::pair<std::int32_t, std::int32_t>> x_ranges;
  std::vector<std::int32_t> x_syncs;
};

Result<Cost> price_work(const Work& work, const Actor& actor, const CostModel& model,
                        std::vector<Cost>& messages) {
  if (const auto* collective = std::get_if<Collective>(&work)) {
    return model.price(work, std::span(&actor.group_places[collective->group.index()], 1));
  }
  const auto* batch = std::get_if<P2PBatch>(&work);
  if (batch == nullptr) return model.on(actor.rank).price(work, {});
  Cost whole;
  for (const Message& message : batch->messages) {
    const PlacementId place = actor.channel_places[message.channel.index()];
    FT_ASSIGN(const Cost cost, model.price(P2PBatch{{message}}, std::span(&place, 1)));
    whole.launch += cost.launch;
    whole.captured += cost.captured;
    whole.duration = max(whole.duration, cost.duration);
    whole.latency = max(whole.latency, cost.latency);
    whole.sms_held += cost.sms_held;
    whole.memory_share += cost.memory_share;
    whole.provenance = cost.provenance;
    whole.deviation = std::max(whole.deviation, cost.deviation);
    messages.push_back(cost);
  }
  return whole;
}

/// Host issue times: within each segment since its start or its last sync, then by call.
void lay_out_launches(const Program& program, const PreparedProgram& flat, PreparedPrices& out) {
  const std::size_t streams = program.streams.size();
  out.op_issue.assign(flat.ops.size(), Time{});
  out.op_epoch.assign(flat.ops.size(), 0);
  std::vector<Time> tail(program.segments.size());
  std::vector<std::uint8_t> syncs(program.segments.size());
  std::size_t first = 0;
  for (std::size_t g = 0; g < program.segments.size(); ++g) {
    const Segment& segment = program.segments[g];
    std::vector<Time> issue(segment.ops.size());
    std::vector<std::uint8_t> epoch(segment.ops.size());
    Time at;
    for (std::size_t o = 0; o < segment.ops.size(); ++o) {
      at += launch_of(segment.ops[o], out.costs[segment.ops[o].work.index()]);
      issue[o] = at;
      epoch[o] = syncs[g];
      if (std::holds_alternative<HostSync>(program.works[segment.ops[o].work.index()])) {
        ++syncs[g];
        at = Time{};
      }
    }
    tail[g] = at;
    std::size_t position = first;
    for (std::size_t s = 0; s < streams; ++s) {
      for (std::size_t o = 0; o < segment.ops.size(); ++o) {
        if (segment.ops[o].stream.index() != s) continue;
        out.op_issue[position] = issue[o];
        out.op_epoch[position] = epoch[o];
        ++position;
      }
    }
    first = position;
  }
  Time at;
  out.host_total = Time{};
  for (const Call& call : program.calls) {
    const std::size_t g = call.segment.index();
    out.call_issue.push_back(at);
    at = syncs[g] > 0 ? tail[g] : at + tail[g];
    for (const Op& op : program.segments[g].ops) {
      out.host_total += launch_of(op, out.costs[op.work.index()]);
    }
  }
}

void find_holds(const Program& program, PreparedPrices& out) {
  StreamSet holds, yields;
  for (const Segment& segment : program.segments) {
    for (const Op& op : segment.ops) {
      const Cost& cost = out.costs[op.work.index()];
      const bool yielding = class_of(program.works[op.work.index()]) == OpClass::kYielding;
      if (yielding) {
        yields.add(op.stream.value);
      } else if (cost.sms_held > 0 || cost.memory_share > 0) {
        holds.add(op.stream.value);
      }
    }
  }
  for (std::int32_t a = holds.next(0); a < StreamSet::kMost; a = holds.next(a + 1)) {
    for (std::int32_t b = yields.next(0); b < StreamSet::kMost; b = yields.next(b + 1)) {
      if (a == b) continue;
      out.records_holds.add(a);
      out.heeds_holds.add(b);
    }
  }
}

/// The sum of two spans, or a longest one: steps that take so long are refused before a replay.
Time sum_of(Time a, Time b) {
  constexpr Time kLongest{kNever.ps / 4};
  return min(min(a, kLongest) + min(b, kLongest), kLongest);
}

/// How long ops take at least, summed along each stream.
void lay_out_alone(const PreparedProgram& flat, PreparedPrices& out) {
  Time sum;
  for (const PreparedOp& op : flat.ops) {
    out.op_alone.push_back(sum);
    if (op.kind == OpClass::kSync) continue;
    sum = sum_of(sum, out.costs[static_cast<std::size_t>(op.cost)].duration);
  }
  out.op_alone.push_back(sum);
  for (const std::vector<StreamEntry>& entries : flat.entries) {
    std::vector<Time>& alone = out.entry_alone.emplace_back();
    alone.reserve(entries.size());
    Time at;
    for (const StreamEntry& entry : entries) {
      alone.push_back(at);
      at = sum_of(at, out.op_alone[static_cast<std::size_t>(entry.ops_end)] -
                          out.op_alone[static_cast<std::size_t>(entry.ops_begin)]);
    }
  }
}

Result<PreparedPrices> price_program(const Program& program, const PreparedProgram& flat,
                                     const Actor& actor, const CostModel& model) {
  PreparedPrices out;
  out.message_costs.resize(program.works.size());
  for (std::size_t w = 0; w < program.works.size(); ++w) {
    const Work& work = program.works[w];
    FT_ASSIGN(const Cost cost, price_work(work, actor, model, out.message_costs[w]));
    out.costs.push_back(cost);
  }
  out.sm_count = model.on(actor.rank).sm_count();
  lay_out_launches(program, flat, out);
  find_holds(program, out);
  if (!out.records_holds.empty()) lay_out_alone(flat, out);
  return out;
}

/// Largest share of one kind of port that a slot asks for on one stream.
struct PortUse {
  std::int32_t stream = 0, group_slot = -1, channel_slot = -1;
  std::size_t port = 0;
  std::int32_t share = 0;
};

std::vector<PortUse> port_uses(const Program& program, const PreparedPrices& prices) {
  std::map<std::array<std::int32_t, 4>, std::int32_t> largest;
  const auto note = [&largest](const Op& op, std::int32_t group, std::int32_t channel,
                               std::size_t port, std::int32_t share) {
    if (share == 0) return;
    std::int32_t& old = largest[{op.stream.value, group, channel, static_cast<std::int32_t>(port)}];
    old = std::max(old, share);
  };
  for (const Segment& segment : program.segments) {
    for (const Op& op : segment.ops) {
      const std::size_t w = op.work.index();
      const auto* collective = std::get_if<Collective>(&program.works[w]);
      const auto* batch = std::get_if<P2PBatch>(&program.works[w]);
      for (std::size_t p = 0; p < kPortCount; ++p) {
        if (batch == nullptr) {
          note(op, collective != nullptr ? collective->group.value : -1, -1, p,
               prices.costs[w].port_share[p]);
        }
        for (std::size_t m = 0; batch != nullptr && m < batch->messages.size(); ++m) {
          const Message& message = batch->messages[m];
          if (message.send != is_outgoing(static_cast<Port>(p))) continue;
          note(op, -1, message.channel.value, p, prices.message_costs[w][m].port_share[p]);
        }
      }
    }
  }
  std::vector<PortUse> uses;
  uses.reserve(largest.size());
  for (const auto& [key, share] : largest) {
    uses.push_back({key[0], key[1], key[2], static_cast<std::size_t>(key[3]), share});
  }
  return uses;
}

/// Marks the groups, channels and copies whose transfers may meet others on a port: where the
/// largest shares of all streams of all ranks on that port sum to more than the whole.
void find_sharing(const Workload& workload, Prepared& prepared) {
  const Quotient& q = prepared.quotient;
  std::vector<std::vector<PortUse>> uses(prepared.prices.size());
  std::vector<std::int64_t> wanted(static_cast<std::size_t>(q.ports));
  for (std::size_t a = 0; a < q.actors.size(); ++a) {
    const Actor& actor = q.actors[a];
    const auto set = static_cast<std::size_t>(prepared.prices_of[a]);
    if (uses[set].empty()) {
      uses[set] = port_uses(workload.programs[actor.program.index()], prepared.prices[set]);
    }
    std::map<std::pair<std::int32_t, std::size_t>, std::int32_t> by_stream;
    for (const PortUse& use : uses[set]) {
      std::int32_t& share = by_stream[{use.stream, use.port}];
      share = std::max(share, use.share);
    }
    for (const auto& [key, share] : by_stream) {
      wanted[static_cast<std::size_t>(actor.ports[key.second])] +=
          static_cast<std::int64_t>(share) * actor.port_weight[key.second];
    }
  }
  prepared.group_shares.assign(q.groups.size(), 0);
  prepared.channel_shares.assign(q.channels.size(), 0);
  prepared.copy_shares.assign(q.actors.size(), 0);
  for (std::size_t a = 0; a < q.actors.size(); ++a) {
    const Actor& actor = q.actors[a];
    for (const PortUse& use : uses[static_cast<std::size_t>(prepared.prices_of[a])]) {
      if (wanted[static_cast<std::size_t>(actor.ports[use.port])] <= kWhole) continue;
      if (use.group_slot >= 0) {
        const std::int32_t group = actor.groups[static_cast<std::size_t>(use.group_slot)];
        prepared.group_shares[static_cast<std::size_t>(group)] = 1;
      } else if (use.channel_slot < 0) {
        prepared.copy_shares[a] = 1;
      } else {
        const std::int32_t channel = actor.channels[static_cast<std::size_t>(use.channel_slot)];
        prepared.channel_shares[static_cast<std::size_t>(channel)] = 1;
      }
    }
  }
}

Status price_all(const Workload& workload, const CostModel& model, Prepared& prepared) {
  const std::vector<Actor>& actors = prepared.quotient.actors;
  using Key = std::tuple<std::int32_t, const CostModel*, std::vector<PlacementId>>;
  std::map<Key, std::int32_t> known;
  prepared.prices.clear();
  prepared.prices_of.clear();
  for (const Actor& actor : actors) {
    Key key{actor.program.value, &model.on(actor.rank), actor.group_places};
    std::vector<PlacementId>& places = std::get<2>(key);
    places.insert(places.end(), actor.channel_places.begin(), actor.channel_places.end());
    const auto next = static_cast<std::int32_t>(prepared.prices.size());
    const auto [it, fresh] = known.try_emplace(std::move(key), next);
    prepared.prices_of.push_back(it->second);
    if (!fresh) continue;
    const std::size_t p = actor.program.index();
    FT_ASSIGN(PreparedPrices prices,
              price_program(workload.programs[p], prepared.programs[p], actor, model));
    prepared.prices.push_back(std::move(prices));
  }
  find_sharing(workload, prepared);
  return ok_status();
}

}  // namespace

Result<Prepared> prepare(const Workload& workload, CostModel& model, bool full) {
  FT_ASSIGN(Quotient quotient, make_quotient(workload, model, full));
  return prepare(workload, model, std::move(quotient));
}

Result<Prepared> prepare(const Workload& workload, const CostModel& model, Quotient quotient) {
  Prepared prepared;
  prepared.quotient = std::move(quotient);
  for (const Program& program : workload.programs) {
    if (program.streams.size() > std::size_t{StreamSet::kMost}) {
      return input_error("a rank has " + std::to_string(program.streams.size()) +
                         " streams; at most " + std::to_string(StreamSet::kMost) +
                         " are simulated");
    }
  }
  constexpr std::size_t kLong = 1024;  // calls
  const bool few = workload.programs.empty() || workload.programs.front().calls.size() < kLong;
  prepared.programs.resize(workload.programs.size());
  in_parallel(
      workload.programs.size(),
      [&](std::size_t p) { prepared.programs[p] = Flattener(workload.programs[p]).run(); },
      few ? 1 : 0);
  FT_TRY(price_all(workload, model, prepared));
  return prepared;
}

Result<Prepared> price_again(const Workload& workload, CostModel& model, const Prepared& prepared) {
  FT_TRY(place_again(prepared.quotient, model));
  Prepared out;
  out.quotient = prepared.quotient;
  out.programs = prepared.programs;
  FT_TRY(price_all(workload, model, out));
  return out;
}

}  // namespace foretrain
