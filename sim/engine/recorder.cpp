#include "sim/engine/recorder.h"

#include <algorithm>
#include <tuple>

#include "sim/base/check.h"
#include "sim/program/memory.h"

namespace foretrain {
namespace {

Bytes bytes_moved(const Work& work) {
  if (const auto* kernel = std::get_if<Kernel>(&work)) return kernel->bytes;
  if (const auto* c = std::get_if<Collective>(&work)) return bytes_of(c->dtype, c->count);
  if (const auto* copy = std::get_if<Copy>(&work)) return copy->bytes;
  if (const auto* opaque = std::get_if<Opaque>(&work)) return opaque->bytes;
  Bytes sum = 0;
  if (const auto* batch = std::get_if<P2PBatch>(&work)) {
    for (const Message& message : batch->messages) sum += message.bytes;
  }
  return sum;
}

const Segment& segment_of(const Program& program, std::int32_t call) {
  return program.segments[program.calls[static_cast<std::size_t>(call)].segment.index()];
}

const Work& work_of(const Program& program, const Op& op) { return program.works[op.work.index()]; }

/// What the host does in the calls of a segment.
struct HostSegment {
  Time launches;             ///< of all its ops
  bool launches_all = true;  ///< it does nothing else
};

std::vector<HostSegment> host_segments(const Program& program, const PreparedPrices& prices) {
  std::vector<HostSegment> out;
  for (const Segment& segment : program.segments) {
    HostSegment& one = out.emplace_back();
    for (const Op& op : segment.ops) {
      const Work& work = work_of(program, op);
      one.launches += launch_of(op, prices.costs[op.work.index()]);
      if (std::holds_alternative<HostDelay>(work) || std::holds_alternative<HostSync>(work)) {
        one.launches_all = false;
      }
    }
  }
  return out;
}

/// Of the ops of all segments, one segment behind the other.
std::vector<Provenance> provenance_of(const Program& program, const PreparedPrices& prices) {
  std::vector<Provenance> out;
  for (const Segment& segment : program.segments) {
    for (const Op& op : segment.ops) out.push_back(prices.costs[op.work.index()].provenance);
  }
  return out;
}

SpanInfo launches_of(const Segment& segment) {
  SpanInfo info;
  info.name = "launch " + segment.name;
  info.work = "launches of a call";
  info.category = Category::kHost;
  if (!segment.ops.empty()) info.phase = segment.ops.front().phase;
  return info;
}

}  // namespace

Recording::Recording(Workload workload, Prepared prepared, std::vector<TrackLogs> tracks, Time end,
                     const std::function<std::string(RankId)>& name_of)
    : x_workload(std::move(workload)), x_prepared(std::move(prepared)) {
  x_prepared.programs = {};
  x_head.end = end;
  for (const Program& program : x_workload.programs) {
    OpTable& table = x_tables.emplace_back();
    std::size_t ops = 0;
    for (const Segment& segment : program.segments) {
      table.first.push_back(ops);
      ops += segment.ops.size();
    }
    table.infos.assign(ops, -1);
    table.launches.assign(program.segments.size(), -1);
  }
  x_first_spans.push_back(0);
  for (TrackLogs& track : tracks) add_track(std::move(track), name_of);
  for (std::size_t track = 0; track < x_tracks.size(); ++track) add_infos(track);
  add_flows();
  for (std::size_t track = 0; track < x_tracks.size(); ++track) add_launches(track);
}

const Actor& Recording::actor_of(std::size_t track) const {
  return x_prepared.quotient.actors[static_cast<std::size_t>(x_tracks[track].actor)];
}

const Program& Recording::program_of(std::size_t track) const {
  return x_workload.programs[actor_of(track).program.index()];
}

const PreparedPrices& Recording::prices_of(std::size_t track) const {
  const auto actor = static_cast<std::size_t>(x_tracks[track].actor);
  return x_prepared.prices[static_cast<std::size_t>(x_prepared.prices_of[actor])];
}

std::vector<OpLog::Reader> Recording::readers(std::size_t track) const {
  std::vector<OpLog::Reader> out;
  const std::size_t first = x_tracks[track].first_stream;
  for (std::size_t s = 0; s < x_head.tracks[track].streams.size(); ++s) {
    out.emplace_back(x_logs[first + s]);
  }
  return out;
}

void Recording::add_track(TrackLogs track, const std::function<std::string(RankId)>& name_of) {
  const std::size_t index = x_tracks.size();
  x_tracks.push_back({track.actor, x_logs.size()});
  const Actor& actor = actor_of(index);
  Track shown;
  shown.rank = actor.rank;
  shown.name = name_of(actor.rank);
  shown.ranks_alike = actor.ranks;
  shown.streams = program_of(index).streams;
  track.streams.resize(shown.streams.size());
  for (OpLog& log : track.streams) {
    x_first_spans.push_back(x_first_spans.back() + log.count());
    x_track_of.push_back(static_cast<std::int32_t>(index));
    x_logs.push_back(std::move(log));
  }
  x_head.tracks.push_back(std::move(shown));
}

/// Infos are numbered as spans come to need them.
void Recording::add_infos(std::size_t track) {
  const Program& program = program_of(track);
  OpTable& table = x_tables[actor_of(track).program.index()];
  for (OpLog::Reader& ops : readers(track)) {
    for (; const OpLog::Entry* entry = ops.get(); ops.next()) {
      const std::size_t segment =
          program.calls[static_cast<std::size_t>(entry->call)].segment.index();
      std::int32_t& info = table.infos[table.first[segment] + static_cast<std::size_t>(entry->op)];
      if (info >= 0) continue;
      info = static_cast<std::int32_t>(x_head.infos.size());
      const Op& op = program.segments[segment].ops[static_cast<std::size_t>(entry->op)];
      const Work& work = work_of(program, op);
      x_head.infos.push_back(SpanInfo{op.name, text_of(work), op.category, op.phase,
                                      bytes_moved(work), flops_of(work)});
    }
  }
}

/// The k-th send on a channel belongs to the k-th receive.
void Recording::add_flows() {
  struct Ends {
    std::vector<std::int32_t> sends, receives;
  };
  std::vector<Ends> channels;
  std::int32_t span = 0;
  for (std::size_t track = 0; track < x_tracks.size(); ++track) {
    const Actor& actor = actor_of(track);
    const Program& program = program_of(track);
    for (OpLog::Reader& ops : readers(track)) {
      for (; const OpLog::Entry* entry = ops.get(); ops.next(), ++span) {
        const Op& op = segment_of(program, entry->call).ops[static_cast<std::size_t>(entry->op)];
        const auto* batch = std::get_if<P2PBatch>(&work_of(program, op));
        if (batch == nullptr) continue;
        for (const Message& message : batch->messages) {
          const std::int32_t channel = actor.channels[message.channel.index()];
          FT_CHECK(channel >= 0, "a message on a channel that is not bound");
          const auto at = static_cast<std::size_t>(channel);
          if (at >= channels.size()) channels.resize(at + 1);
          (message.send ? channels[at].sends : channels[at].receives).push_back(span);
        }
      }
    }
  }
  for (const Ends& channel : channels) {
    const std::size_t count = std::min(channel.sends.size(), channel.receives.size());
    for (std::size_t k = 0; k < count; ++k) {
      x_head.flows.push_back({channel.sends[k], channel.receives[k]});
    }
  }
}

void Recording::add_launches(std::size_t track) {
  OpTable& table = x_tables[actor_of(track).program.index()];
  if (!has_host(track) || table.launched) return;
  table.launched = true;
  const Program& program = program_of(track);
  for (const Call& call : program.calls) {
    std::int32_t& info = table.launches[call.segment.index()];
    if (info >= 0) continue;
    info = static_cast<std::int32_t>(x_head.infos.size());
    x_head.infos.push_back(launches_of(program.segments[call.segment.index()]));
  }
}

Status Recording::each_span(std::size_t first, std::size_t last, const VisitSpan& visit) const {
  if (first >= last) return ok_status();
  const auto behind = std::upper_bound(x_first_spans.begin(), x_first_spans.end(), first);
  auto log = static_cast<std::size_t>(behind - x_first_spans.begin()) - 1;
  for (; log < x_logs.size() && x_first_spans[log] < last; ++log) {
    const std::size_t begin = x_first_spans[log];
    FT_TRY(each_of_stream(log, std::max(first, begin) - begin, last - begin, visit));
  }
  return ok_status();
}

Status Recording::each_of_stream(std::size_t log, std::size_t first, std::size_t last,
                                 const VisitSpan& visit) const {
  Span span;
  span.track = x_track_of[log];
  const auto track = static_cast<std::size_t>(span.track);
  span.stream = StreamId(log - x_tracks[track].first_stream);
  const Program& program = program_of(track);
  const OpTable& table = x_tables[actor_of(track).program.index()];
  const std::vector<Provenance> provenance = provenance_of(program, prices_of(track));
  OpLog::Reader ops(x_logs[log]);
  for (std::size_t i = 0; i < last && ops.get() != nullptr; ++i, ops.next()) {
    if (i < first) continue;
    const OpLog::Entry& entry = *ops.get();
    const Call& call = program.calls[static_cast<std::size_t>(entry.call)];
    const std::size_t op = table.first[call.segment.index()] + static_cast<std::size_t>(entry.op);
    span.info = table.infos[op];
    span.call = entry.call;
    span.op = entry.op;
    span.layer = call.layer;
    span.microbatch = call.microbatch;
    span.begin = entry.begin;
    span.start = entry.start;
    span.end = entry.end;
    span.provenance = provenance[op];
    FT_TRY(visit(span));
  }
  return ok_status();
}

/// The host issues ops in the order of the Program, one after another (engine/prepared.cpp).
std::vector<IssueSpan> Recording::host(std::size_t track) const {
  std::vector<IssueSpan> out;
  if (!has_host(track)) return out;
  const Program& program = program_of(track);
  const PreparedPrices& prices = prices_of(track);
  const OpTable& table = x_tables[actor_of(track).program.index()];
  const std::vector<HostSegment> segments = host_segments(program, prices);
  std::vector<OpLog::Reader> streams = readers(track);
  Time at;
  for (std::size_t c = 0; c < program.calls.size(); ++c) {
    const Call& call = program.calls[c];
    const std::size_t s = call.segment.index();
    const auto add = [&](std::int32_t info, Time begin) {
      if (begin >= at) return;
      out.push_back(
          {static_cast<std::int32_t>(track), info, call.layer, call.microbatch, begin, at});
    };
    Time begin = at;
    if (segments[s].launches_all) at += segments[s].launches;
    const std::vector<Op>& ops = program.segments[s].ops;
    for (std::size_t o = 0; o < ops.size() && !segments[s].launches_all; ++o) {
      const Work& work = work_of(program, ops[o]);
      const Time launch = launch_of(ops[o], prices.costs[ops[o].work.index()]);
      const bool delay = std::holds_alternative<HostDelay>(work);
      const bool sync = std::holds_alternative<HostSync>(work);
      if (!delay) at += launch;
      if (!delay && !sync) continue;
      add(table.launches[s], begin);
      begin = at;
      if (delay) {
        at += launch;
      } else if (const OpLog::Entry* const wait = streams[ops[o].stream.index()].find(
                     static_cast<std::int32_t>(c), static_cast<std::int32_t>(o))) {
        at = max(at, wait->end);
      }
      add(table.infos[table.first[s] + o], begin);
      begin = at;
    }
    add(table.launches[s], begin);
  }
  return out;
}

std::vector<MemorySample> Recording::memory(std::size_t track) const {
  const Program& program = program_of(track);
  const auto number = static_cast<std::int32_t>(track);
  std::vector<MemorySample> out;
  BytesByKind live = persistent_bytes(program);
  for (std::size_t kind = 0; kind < live.size(); ++kind) {
    if (live[kind] > 0) out.push_back({number, static_cast<BufferKind>(kind), Time{}, live[kind]});
  }
  // What changes lies where what is live then will.
  const std::size_t first = out.size();
  std::vector<OpLog::Reader> streams = readers(track);
  each_memory_change(program, [&](const MemoryChange& change) {
    const Op& op = segment_of(program, change.call).ops[static_cast<std::size_t>(change.op)];
    const OpLog::Entry* const entry = streams[op.stream.index()].find(change.call, change.op);
    FT_CHECK(entry != nullptr, "an op that takes or gives back memory did not run");
    out.push_back(
        {number, change.kind, change.bytes > 0 ? entry->begin : entry->end, change.bytes});
  });
  // Frees before allocations of the same instant: what ends makes room for what begins.
  std::stable_sort(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(),
                   [](const MemorySample& a, const MemorySample& b) {
                     return std::tie(a.at.ps, a.bytes) < std::tie(b.at.ps, b.bytes);
                   });
  std::size_t count = first;
  for (std::size_t i = first; i < out.size(); ++i) {
    const MemorySample change = out[i];
    Bytes& now = live[static_cast<std::size_t>(change.kind)];
    now += change.bytes;
    const bool more =
        i + 1 < out.size() && out[i + 1].at == change.at && out[i + 1].kind == change.kind;
    if (!more) out[count++] = {number, change.kind, change.at, now};
  }
  out.resize(count);
  return out;
}

Recording Recorder::take(Workload workload, Prepared prepared, Time end,
                         const std::function<std::string(RankId)>& name_of) {
  std::vector<Recording::TrackLogs> tracks;
  for (std::size_t actor = 0; actor < x_logs.size(); ++actor) {
    if (x_logs[actor].empty()) continue;
    tracks.push_back({static_cast<std::int32_t>(actor), std::move(x_logs[actor])});
  }
  x_logs.assign(x_wanted.size(), {});
  return {std::move(workload), std::move(prepared), std::move(tracks), end, name_of};
}

}  // namespace foretrain
