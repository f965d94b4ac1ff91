#include "sim/engine/recorder.h"

#include <algorithm>
#include <map>
#include <tuple>

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

class TimelineMaker {
 public:
  TimelineMaker(const Workload& workload, const Prepared& prepared, const Replay& replay)
      : x_workload(workload), x_prepared(prepared) {
    x_out.end = replay.end;
  }

  Timeline run(std::vector<OpTimes> ops, const std::function<std::string(RankId)>& name_of) {
    std::sort(ops.begin(), ops.end(), [](const OpTimes& a, const OpTimes& b) {
      return std::tie(a.actor, a.stream, a.begin.ps, a.call, a.op) <
             std::tie(b.actor, b.stream, b.begin.ps, b.call, b.op);
    });
    for (const OpTimes& op : ops) {
      if (op.actor != x_actor) add_track(op.actor, name_of);
      add_span(op);
    }
    add_flows();
    for (std::size_t track = 0; track < x_out.tracks.size(); ++track) {
      add_memory(track);
      add_host(track);
    }
    return std::move(x_out);
  }

 private:
  const Program& program() const {
    return x_workload
        .programs[x_prepared.quotient.actors[static_cast<std::size_t>(x_actor)].program.index()];
  }

  void add_track(std::int32_t actor, const std::function<std::string(RankId)>& name_of) {
    x_actor = actor;
    const Actor& a = x_prepared.quotient.actors[static_cast<std::size_t>(actor)];
    Track track;
    track.rank = a.rank;
    track.name = name_of(a.rank);
    track.ranks_alike = a.ranks;
    track.streams = program().streams;
    x_out.tracks.push_back(std::move(track));
    x_actors.push_back(actor);
    x_first_span.push_back(x_out.spans.size());
  }

  void add_span(const OpTimes& times) {
    const Call& call = program().calls[static_cast<std::size_t>(times.call)];
    Span span;
    span.track = static_cast<std::int32_t>(x_out.tracks.size() - 1);
    span.stream = StreamId(times.stream);
    span.info = info_of(call, times.op);
    span.call = times.call;
    span.op = times.op;
    span.layer = call.layer;
    span.microbatch = call.microbatch;
    span.begin = times.begin;
    span.start = times.start;
    span.end = times.end;
    const PreparedPrices& prices = x_prepared.prices[static_cast<std::size_t>(
        x_prepared.prices_of[static_cast<std::size_t>(times.actor)])];
    span.provenance = prices.costs[static_cast<std::size_t>(times.work)].provenance;
    x_out.spans.push_back(span);
  }

  std::int32_t info_of(const Call& call, std::int32_t op_index) {
    const Actor& actor = x_prepared.quotient.actors[static_cast<std::size_t>(x_actor)];
    const std::array<std::int32_t, 3> key = {actor.program.value, call.segment.value, op_index};
    const auto next = static_cast<std::int32_t>(x_out.infos.size());
    const auto [it, fresh] = x_info.try_emplace(key, next);
    if (!fresh) return it->second;
    const Op& op = program().segments[call.segment.index()].ops[static_cast<std::size_t>(op_index)];
    const Work& work = program().works[op.work.index()];
    x_out.infos.push_back(
        SpanInfo{op.name, text_of(work), op.category, op.phase, bytes_moved(work), flops_of(work)});
    return next;
  }

  /// The k-th send on a channel belongs to the k-th receive.
  void add_flows() {
    std::map<std::int32_t, std::vector<std::int32_t>> sends;
    std::map<std::int32_t, std::vector<std::int32_t>> receives;
    for (std::size_t i = 0; i < x_out.spans.size(); ++i) {
      const Span& span = x_out.spans[i];
      const Actor& actor =
          x_prepared.quotient
              .actors[static_cast<std::size_t>(x_actors[static_cast<std::size_t>(span.track)])];
      const Program& p = x_workload.programs[actor.program.index()];
      const Call& call = p.calls[static_cast<std::size_t>(span.call)];
      const Op& op = p.segments[call.segment.index()].ops[static_cast<std::size_t>(span.op)];
      const auto* batch = std::get_if<P2PBatch>(&p.works[op.work.index()]);
      if (batch == nullptr) continue;
      for (const Message& message : batch->messages) {
        const std::int32_t channel = actor.channels[message.channel.index()];
        (message.send ? sends : receives)[channel].push_back(static_cast<std::int32_t>(i));
      }
    }
    for (const auto& [channel, from] : sends) {
      const auto to = receives.find(channel);
      if (to == receives.end()) continue;
      const std::size_t count = std::min(from.size(), to->second.size());
      for (std::size_t k = 0; k < count; ++k) x_out.flows.push_back({from[k], to->second[k]});
    }
  }

  /// When the host came to each of its waits for the device, and when the wait ended.
  std::map<std::pair<std::int32_t, std::int32_t>, Time> ends_of_waits(std::size_t track,
                                                                      const Program& p) const {
    std::map<std::pair<std::int32_t, std::int32_t>, Time> out;
    for (std::size_t i = x_first_span[track]; i < end_of_spans(track); ++i) {
      const Span& span = x_out.spans[i];
      const Call& call = p.calls[static_cast<std::size_t>(span.call)];
      const Op& op = p.segments[call.segment.index()].ops[static_cast<std::size_t>(span.op)];
      if (!std::holds_alternative<HostSync>(p.works[op.work.index()])) continue;
      out.emplace(std::pair{span.call, span.op}, span.end);
    }
    return out;
  }

  /// The host issues ops in the order of the Program, one after another (engine/prepared.cpp).
  void add_host(std::size_t track) {
    const std::int32_t a = x_actors[track];
    const Actor& actor = x_prepared.quotient.actors[static_cast<std::size_t>(a)];
    const Program& p = x_workload.programs[actor.program.index()];
    const PreparedPrices& prices =
        x_prepared
            .prices[static_cast<std::size_t>(x_prepared.prices_of[static_cast<std::size_t>(a)])];
    if (prices.host_total.ps == 0) return;
    x_actor = a;
    const auto waits = ends_of_waits(track, p);
    Time at;
    for (std::size_t c = 0; c < p.calls.size(); ++c) {
      const Call& call = p.calls[c];
      const Segment& segment = p.segments[call.segment.index()];
      const auto add = [&](std::int32_t info, Time begin) {
        if (begin < at) {
          x_out.host.push_back(
              {static_cast<std::int32_t>(track), info, call.layer, call.microbatch, begin, at});
        }
      };
      Time begin = at;
      for (std::size_t o = 0; o < segment.ops.size(); ++o) {
        const Op& op = segment.ops[o];
        const Work& work = p.works[op.work.index()];
        const Time launch = launch_of(op, prices.costs[op.work.index()]);
        const bool delay = std::holds_alternative<HostDelay>(work);
        const bool sync = std::holds_alternative<HostSync>(work);
        if (sync) at += launch;
        if (delay || sync) {
          add(launches_of(call), begin);
          begin = at;
          const auto wait =
              waits.find({static_cast<std::int32_t>(c), static_cast<std::int32_t>(o)});
          at = delay ? at + launch : wait != waits.end() ? max(at, wait->second) : at;
          add(info_of(call, static_cast<std::int32_t>(o)), begin);
          begin = at;
        } else {
          at += launch;
        }
      }
      add(launches_of(call), begin);
    }
  }

  /// The info of the launches of a call's ops.
  std::int32_t launches_of(const Call& call) {
    const Actor& actor = x_prepared.quotient.actors[static_cast<std::size_t>(x_actor)];
    const auto next = static_cast<std::int32_t>(x_out.infos.size());
    const auto [it, fresh] =
        x_info.try_emplace({actor.program.value, call.segment.value, -1}, next);
    if (!fresh) return it->second;
    const Segment& segment = program().segments[call.segment.index()];
    SpanInfo info;
    info.name = "launch " + segment.name;
    info.work = "launches of a call";
    info.category = Category::kHost;
    if (!segment.ops.empty()) info.phase = segment.ops.front().phase;
    x_out.infos.push_back(std::move(info));
    return next;
  }

  std::size_t end_of_spans(std::size_t track) const {
    return track + 1 < x_first_span.size() ? x_first_span[track + 1] : x_out.spans.size();
  }

  void add_memory(std::size_t track) {
    const Actor& actor = x_prepared.quotient.actors[static_cast<std::size_t>(x_actors[track])];
    const Program& p = x_workload.programs[actor.program.index()];
    const std::size_t begin = x_first_span[track];
    const std::size_t end = end_of_spans(track);
    std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> span_of;
    for (std::size_t i = begin; i < end; ++i) {
      span_of.emplace(std::pair{x_out.spans[i].call, x_out.spans[i].op}, i);
    }
    struct Change {
      Time at;
      std::size_t kind = 0;
      Bytes bytes = 0;
    };
    std::vector<Change> changes;
    for (const MemoryChange& change : memory_changes(p)) {
      const Span& span = x_out.spans[span_of.at({change.call, change.op})];
      changes.push_back({change.bytes > 0 ? span.begin : span.end,
                         static_cast<std::size_t>(change.kind), change.bytes});
    }
    // Frees before allocations of the same instant: what ends makes room for what begins.
    std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
      return std::tie(a.at.ps, a.bytes) < std::tie(b.at.ps, b.bytes);
    });
    BytesByKind live = persistent_bytes(p);
    const auto sample = [&](Time at, std::size_t kind) {
      x_out.memory.push_back(MemorySample{static_cast<std::int32_t>(track), at,
                                          static_cast<BufferKind>(kind), live[kind]});
    };
    for (std::size_t kind = 0; kind < live.size(); ++kind) {
      if (live[kind] > 0) sample(Time{}, kind);
    }
    for (std::size_t i = 0; i < changes.size(); ++i) {
      live[changes[i].kind] += changes[i].bytes;
      const bool more = i + 1 < changes.size() && changes[i + 1].at == changes[i].at &&
                        changes[i + 1].kind == changes[i].kind;
      if (!more) sample(changes[i].at, changes[i].kind);
    }
  }

  const Workload& x_workload;
  const Prepared& x_prepared;
  Timeline x_out;
  std::int32_t x_actor = -1;
  std::vector<std::int32_t> x_actors;  ///< by track
  std::vector<std::size_t> x_first_span;
  std::map<std::array<std::int32_t, 3>, std::int32_t> x_info;
};

}  // namespace

Timeline Recorder::take(const Workload& workload, const Prepared& prepared, const Replay& replay,
                        const std::function<std::string(RankId)>& name_of) {
  Timeline out = TimelineMaker(workload, prepared, replay).run(std::move(x_ops), name_of);
  x_ops.clear();
  return out;
}

}  // namespace foretrain
