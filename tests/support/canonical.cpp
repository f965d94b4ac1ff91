#include "tests/support/canonical.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "sim/program/memory.h"
#include "tests/support/recording.h"

namespace foretrain {
namespace {

std::string number(std::int64_t value) { return std::to_string(value); }

/// Writes one Program.
class CanonicalText {
 public:
  explicit CanonicalText(const Program& program) : x_program(program) {}

  std::string run() && {
    const Batch& b = x_program.batch;
    x_out += "batch " + number(b.sequences) + " x " + number(b.length) + " of " +
             number(b.microbatches) + ", vocabulary " + number(b.vocabulary) + group(b.split_over) +
             group(b.context) + (b.contiguous ? " contiguous" : "");
    for (const std::int64_t length : b.documents) x_out += " " + number(length);
    x_out += "\n";
    for (const Call& call : x_program.calls) write_call(call);
    return std::move(x_out);
  }

 private:
  /// How formal frames and their order follow from the ops of a segment.
  struct Form {
    std::string name;
    std::vector<std::int16_t> formals;  ///< in order of first use
  };

  std::string group(GroupSlot slot) const {
    return slot.valid() ? " @" + x_program.group_slots[slot.index()] : "";
  }

  /// Takes a slot out of a work, whose number in the text then says nothing, and names it.
  std::string named(GroupSlot& slot) const {
    const std::string out = group(slot);
    slot = GroupSlot();
    return out + ";";
  }

  std::string more(Kernel& k) const {
    return named(k.split_over) + named(k.cols_split_over) + " flops " + number(k.flops) +
           " between " + number(k.between.bytes) +
           (k.between.unvectorized_passes == 0
                ? ""
                : " in " + std::to_string(k.between.unvectorized_passes) + " passes " +
                      number(k.between.unvectorized_bytes)) +
           " head " + number(k.head_dim) + " value " + std::to_string(k.value) + " chosen " +
           number(static_cast<int>(k.rows_of.choice)) + " " + number(k.rows_of.top_k);
  }

  /// With all that the work's own text leaves out.
  std::string text(Work work) const {
    std::string rest;
    if (auto* collective = std::get_if<Collective>(&work)) {
      rest = named(collective->group) + (collective->maximum ? " maximum" : "") + " root " +
             number(collective->root) + " fan " + number(collective->fan_out.drawn) + " " +
             number(collective->fan_out.enough);
      for (const std::int64_t run : collective->runs) rest += " " + number(run);
    } else if (auto* batch = std::get_if<P2PBatch>(&work)) {
      for (Message& m : batch->messages) {
        rest += " " + x_program.channel_slots[m.channel.index()];
        m.channel = ChannelSlot();
      }
    } else if (auto* kernel = std::get_if<Kernel>(&work)) {
      rest = more(*kernel);
    } else if (auto* attention = std::get_if<Attention>(&work)) {
      rest = named(attention->heads_split_over) + named(attention->sequences_split_over) +
             named(attention->parts_over) + named(attention->heads_over) + " part " +
             number(static_cast<int>(attention->part)) + " hops " + number(attention->hops) +
             (attention->plain ? " plain " : " ") + std::to_string(attention->dropout);
    } else if (auto* pause = std::get_if<Pause>(&work)) {
      rest = number(pause->time.ps);
    } else if (auto* delay = std::get_if<HostDelay>(&work)) {
      rest = number(delay->time.ps);
    } else if (auto* copy = std::get_if<Copy>(&work)) {
      rest = copy->pageable ? " pageable" : "";
    } else if (auto* opaque = std::get_if<Opaque>(&work)) {
      rest = " " + number(opaque->bytes) + " " + number(opaque->flops) + " " +
             number(static_cast<int>(opaque->where));
      if (opaque->kernel.has_value())
        rest += " is " + more(*opaque->kernel) + text_of(Work(*opaque->kernel));
    }
    return text_of(work) + rest;
  }

  /// The layout's number; its text is written when it is met first.
  std::int64_t layout(LayoutId id) {
    const auto known = x_layouts.find(id);
    if (known != x_layouts.end()) return known->second;
    const FrameLayout& layout = x_program.layouts[id.index()];
    std::string body;
    for (const Buffer& b : layout.buffers) {
      body += "  " + std::string(name_of(b.kind)) + " " + std::string(name_of(b.dtype)) + " " +
              number(b.count) + (b.persistent ? " persistent" : "") + (b.saved ? " saved" : "") +
              " in " + number(static_cast<int>(b.memory)) + " pool " + number(b.pool) + " shards " +
              number(b.shards) + group(b.shard_group);
      for (const std::int64_t run : b.runs) body += " " + number(run);
      for (const Piece& p : b.pieces) {
        const Tensor& t = x_program.tensors[p.tensor.index()];
        body += "\n    " + t.name + " " + number(t.rows) + " x " + number(t.cols) + " " +
                number(static_cast<int>(t.init)) + " " + std::to_string(t.deviation) + " layer " +
                number(p.layer) + " at " + number(p.offset) + ": " + number(p.row_count) + " x " +
                number(p.col_count) + group(p.rows_split_over) + "," + group(p.cols_split_over) +
                " " + number(p.row_part.index) + "/" + number(p.row_part.of) + " " +
                number(p.col_part.index) + "/" + number(p.col_part.of);
      }
      for (const Replica& r : b.replicas) {
        body += "\n    alike " + number(r.begin) + " to " + number(r.end) + group(r.group);
      }
      body += "\n";
    }
    const auto [at, added] =
        x_layout_texts.emplace(body, static_cast<std::int64_t>(x_layout_texts.size()));
    if (added) x_out += "layout " + number(at->second) + "\n" + body;
    x_layouts.emplace(id, at->second);
    return at->second;
  }

  /// An event of a layout by the order in which events are met.
  std::int64_t event(LayoutId id, std::int16_t event) {
    std::map<std::int16_t, std::int64_t>& events = x_events[layout(id)];
    return events.emplace(event, static_cast<std::int64_t>(events.size())).first->second;
  }

  const Form& segment(SegmentId id) {
    const auto known = x_segments.find(id);
    if (known != x_segments.end()) return known->second;
    const Segment& segment = x_program.segments[id.index()];
    Form form;
    const auto formal = [&](std::int16_t frame) {
      const auto at = std::find(form.formals.begin(), form.formals.end(), frame);
      if (at != form.formals.end()) return number(at - form.formals.begin());
      form.formals.push_back(frame);
      return number(static_cast<std::int64_t>(form.formals.size()) - 1) + ":" +
             number(layout(segment.frames[static_cast<std::size_t>(frame)]));
    };
    const auto at_event = [&](const EventRef& e) {
      const std::string frame = formal(e.frame);
      return frame + "." +
             number(event(segment.frames[static_cast<std::size_t>(e.frame)], e.event));
    };
    const auto view = [&](const View& v) {
      return formal(v.frame) + "." + number(v.buffer) + "[" + number(v.offset) + "+" +
             number(v.bytes) +
             (v.shards > 1 ? "/" + number(v.shards) + group(v.shard_group) + number(v.hops) : "") +
             "]";
    };
    std::string body;
    for (const Op& op : segment.ops) {
      body += "  " + x_program.streams[op.stream.index()] + " " + op.name + " " +
              std::string(name_of(op.category)) + " " + std::string(name_of(op.phase)) +
              (op.captured ? " captured " : " ") + text(x_program.works[op.work.index()]);
      for (const View& v : op.reads) body += " r" + view(v);
      for (const View& v : op.writes) body += " w" + view(v);
      for (const BufferRef& b : op.allocates) {
        body += " +";
        body += formal(b.frame);
        body += "." + number(b.buffer);
      }
      for (const BufferRef& b : op.frees) {
        body += " -";
        body += formal(b.frame);
        body += "." + number(b.buffer);
      }
      for (const EventRef& e : op.waits) body += " ?" + at_event(e);
      if (op.records.valid()) body += " !" + at_event(op.records);
      body += "\n";
    }
    const auto [at, added] =
        x_segment_texts.emplace(body, static_cast<std::int64_t>(x_segment_texts.size()));
    form.name = number(at->second);
    if (added) x_out += "segment " + form.name + "\n" + body;
    return x_segments.emplace(id, std::move(form)).first->second;
  }

  std::string frame(FrameId id) {
    if (!id.valid()) return "none";
    const auto known = x_frames.find(id);
    if (known != x_frames.end()) return number(known->second);
    const Frame& frame = x_program.frames[id.index()];
    std::string body = " = " + number(layout(frame.layout)) + " layer " + number(frame.layer) +
                       " microbatch " + number(frame.microbatch);
    if (frame.alias_of.valid()) {
      body += " in " + this->frame(frame.alias_of) + "." + number(frame.alias_buffer) + "+" +
              number(frame.alias_offset);
    }
    const auto own = static_cast<std::int64_t>(x_frames.size());
    x_frames.emplace(id, own);
    x_out += "frame " + number(own) + body + "\n";
    return number(own);
  }

  void write_call(const Call& call) {
    const Form form = segment(call.segment);
    std::string line = "call " + form.name + " layer " + number(call.layer) + " microbatch " +
                       number(call.microbatch);
    for (const std::int16_t f : form.formals) {
      line += " " + frame(call.frames[static_cast<std::size_t>(f)]);
    }
    std::vector<std::string> waits;
    for (const StreamWait& w : call.waits) {
      const std::string of = frame(w.frame);
      waits.push_back(x_program.streams[w.stream.index()] + " for " + of + "." +
                      number(event(x_program.frames[w.frame.index()].layout, w.event)));
    }
    std::sort(waits.begin(), waits.end());
    waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
    for (const std::string& wait : waits) line += " ?" + wait;
    x_out += line + "\n";
  }

  const Program& x_program;
  std::string x_out;
  std::map<LayoutId, std::int64_t> x_layouts;
  std::map<std::string, std::int64_t> x_layout_texts, x_segment_texts;
  std::map<std::int64_t, std::map<std::int16_t, std::int64_t>> x_events;
  std::map<SegmentId, Form> x_segments;
  std::map<FrameId, std::int64_t> x_frames;
};

/// Hashes the times of one actor's streams.
class HashingSink : public SpanSink {
 public:
  explicit HashingSink(const Workload& workload, const Prepared& prepared)
      : x_workload(workload), x_prepared(prepared) {}

  void span(const OpTimes& t) override {
    const Program& program = program_of(t.actor);
    const Call& call = program.calls[static_cast<std::size_t>(t.call)];
    const Op& op = program.segments[call.segment.index()].ops[static_cast<std::size_t>(t.op)];
    std::uint64_t& hash =
        x_hashes.emplace(std::pair(t.actor, program.streams[op.stream.index()]), hash_of(""))
            .first->second;
    hash = hash_of(op.name, hash);
    for (const Time time : {t.begin, t.start, t.end}) {
      hash =
          hash_of(std::string_view(reinterpret_cast<const char*>(&time.ps), sizeof time.ps), hash);
    }
  }

  std::string text() const {
    std::string out;
    for (const auto& [where, hash] : x_hashes) {
      out +=
          "actor " + number(where.first) + " " + where.second + " " + std::to_string(hash) + "\n";
    }
    return out;
  }

 private:
  const Program& program_of(std::int32_t actor) const {
    const Quotient& quotient = x_prepared.quotient;
    const RankId rank = quotient.actors[static_cast<std::size_t>(actor)].rank;
    return x_workload.programs[x_workload.ranks[rank.index()].program.index()];
  }

  const Workload& x_workload;
  const Prepared& x_prepared;
  std::map<std::pair<std::int32_t, std::string>, std::uint64_t> x_hashes;
};

}  // namespace

std::uint64_t hash_of(std::string_view text, std::uint64_t seed) {
  for (const char c : text) {
    seed ^= static_cast<unsigned char>(c);
    seed *= 1099511628211ULL;
  }
  return seed;
}

std::string canonical_text(const Program& program) { return CanonicalText(program).run(); }

std::string canonical_text(const Workload& workload) {
  std::string out;
  for (const Program& program : workload.programs) out += canonical_text(program);
  for (const RankBinding& rank : workload.ranks) {
    const Program& program = workload.programs[rank.program.index()];
    std::map<std::string, std::string> slots;
    for (std::size_t s = 0; s < rank.groups.size(); ++s) {
      std::string& members = slots[program.group_slots[s]];
      if (!rank.groups[s].valid()) continue;
      for (const RankId member : workload.groups[rank.groups[s].index()]) {
        members += " " + number(member.value);
      }
    }
    for (std::size_t s = 0; s < rank.channels.size(); ++s) {
      if (!rank.channels[s].valid()) continue;
      const Channel& channel = workload.channels[rank.channels[s].index()];
      slots[program.channel_slots[s]] =
          " " + number(channel.source.value) + " > " + number(channel.destination.value);
    }
    out += "rank runs " + number(rank.program.value) + "\n";
    for (const auto& [name, meaning] : slots) out += "  " + name + ":" + meaning + "\n";
  }
  return out;
}

std::string memory_text(const Program& program) {
  std::string out;
  for (const Memory where : {Memory::kDevice, Memory::kHost, Memory::kStorage}) {
    const MemoryPeak peak = memory_peak(program, where);
    out += "memory " + number(static_cast<int>(where)) + ": " + number(peak.bytes) + " saved " +
           number(peak.saved) + " persistent " + number(peak.persistent);
    for (const Bytes bytes : peak.by_kind) out += " " + number(bytes);
    out += "\n";
  }
  return out;
}

std::string replayed_text(const Workload& workload, CostModel& prices) {
  std::string out;
  for (const Program& program : workload.programs) out += memory_text(program);
  const Result<Prepared> prepared = prepare(workload, prices, false);
  if (!prepared.ok()) return out + prepared.error().message;
  HashingSink sink(workload, prepared.value());
  const Result<Replay> replayed = replay(workload, prepared.value(), &sink);
  if (!replayed.ok()) return out + replayed.error().message;
  return out + sink.text() + "end " + number(replayed.value().end.ps) + "\n";
}

}  // namespace foretrain
