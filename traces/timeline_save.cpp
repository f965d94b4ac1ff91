#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "traces/json_text.h"
#include "traces/timeline_format.h"
#include "traces/timeline_json.h"

namespace foretrain {
namespace {

constexpr std::size_t kFlushBytes = std::size_t{1} << 16;

class Saver {
 public:
  explicit Saver(AtomicFile& file) : x_file(file) {}

  void text(std::string_view key, std::string_view value) {
    append_string(x_out, key);
    x_out += ':';
    append_string(x_out, value);
  }
  template <typename Number>
  void number(std::string_view key, Number value) {
    append_string(x_out, key);
    x_out += ':';
    append_number(x_out, value);
  }
  void list(std::string_view key, const std::vector<std::string>& items) {
    append_string(x_out, key);
    x_out += ":[";
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) x_out += ',';
      append_string(x_out, items[i]);
    }
    x_out += ']';
  }
  void row(std::initializer_list<std::int64_t> numbers) {
    x_out += '[';
    bool first = true;
    for (const std::int64_t number : numbers) {
      if (!first) x_out += ',';
      first = false;
      append_number(x_out, number);
    }
    x_out += ']';
  }
  void raw(std::string_view text) { x_out += text; }

  /// An array, one element a line, written out in batches: `begin`, `next` for each, `end`.
  void begin(std::string_view key) {
    x_out += ",\n";
    append_string(x_out, key);
    x_out += ":[";
    x_first = true;
  }
  template <typename Each>
  Status next(const Each& each) {
    x_out += x_first ? "\n" : ",\n";
    x_first = false;
    each();
    return x_out.size() < kFlushBytes ? ok_status() : flush();
  }
  void end() { x_out += ']'; }
  template <typename T, typename Each>
  Status array(std::string_view key, const std::vector<T>& items, const Each& each) {
    begin(key);
    for (const T& item : items) FT_TRY(next([&] { each(item); }));
    end();
    return ok_status();
  }
  Status flush() {
    FT_TRY(x_file.append(x_out));
    x_out.clear();
    return ok_status();
  }

 private:
  AtomicFile& x_file;
  std::string x_out;
  bool x_first = true;
};

void save_info(Saver& out, const SpanInfo& info) {
  out.raw("{");
  out.text("name", info.name);
  out.raw(",");
  out.text("work", info.work);
  out.raw(",");
  out.text("category", name_of(info.category));
  out.raw(",");
  out.text("phase", name_of(info.phase));
  out.raw(",");
  out.number("bytes", info.bytes);
  out.raw(",");
  out.number("flops", info.flops);
  out.raw("}");
}

void save_track(Saver& out, const Track& track) {
  out.raw("{");
  out.number("rank", std::int64_t{track.rank.value});
  out.raw(",");
  out.text("name", track.name);
  out.raw(",");
  out.number("ranks_alike", track.ranks_alike);
  out.raw(",");
  out.list("streams", track.streams);
  out.raw("}");
}

Status save_spans(Saver& out, const TimelineSource& timeline) {
  out.begin("spans");
  FT_TRY(timeline.each_span(0, timeline.span_count(), [&out](const Span& s) {
    return out.next([&] {
      out.row({s.track, s.stream.value, s.info, s.call, s.op, s.layer, s.microbatch, s.begin.ps,
               s.start.ps, s.end.ps, static_cast<std::int64_t>(s.provenance)});
    });
  }));
  out.end();
  return ok_status();
}

Status save_memory(Saver& out, const TimelineSource& timeline) {
  out.begin("memory");
  for (std::size_t track = 0; track < timeline.head().tracks.size(); ++track) {
    for (const MemorySample& m : timeline.memory(track)) {
      FT_TRY(out.next([&] {
        out.row({m.track, m.at.ps, static_cast<std::int64_t>(m.kind), m.bytes});
      }));
    }
  }
  out.end();
  return ok_status();
}

Status save_host(Saver& out, const TimelineSource& timeline) {
  out.begin("host");
  for (std::size_t track = 0; track < timeline.head().tracks.size(); ++track) {
    for (const IssueSpan& s : timeline.host(track)) {
      FT_TRY(out.next([&] {
        out.row({s.track, s.info, s.layer, s.microbatch, s.begin.ps, s.end.ps});
      }));
    }
  }
  out.end();
  return ok_status();
}

bool has_host(const TimelineSource& timeline) {
  for (std::size_t track = 0; track < timeline.head().tracks.size(); ++track) {
    if (timeline.has_host(track)) return true;
  }
  return false;
}

}  // namespace

Status save_timeline(const TimelineSource& timeline, AtomicFile& file) {
  const Timeline& head = timeline.head();
  const bool host = has_host(timeline);
  Saver out(file);
  out.raw("{");
  out.text("schema", kTimelineSchema);
  out.raw(",\n");
  out.text("name", head.name);
  out.raw(",\n");
  out.number("end_ps", head.end.ps);
  out.raw(",\n");
  out.list("memory_kinds", all_names<BufferKind>());
  out.raw(",\n");
  out.list("spans_columns", kSpanColumns);
  out.raw(",\n");
  out.list("flows_columns", kFlowColumns);
  out.raw(",\n");
  out.list("memory_columns", kMemoryColumns);
  if (host) {
    out.raw(",\n");
    out.list("host_columns", kHostColumns);
  }
  FT_TRY(out.array("infos", head.infos, [&](const SpanInfo& info) { save_info(out, info); }));
  FT_TRY(out.array("tracks", head.tracks, [&](const Track& track) { save_track(out, track); }));
  FT_TRY(save_spans(out, timeline));
  FT_TRY(out.array("flows", head.flows, [&](const Flow& f) { out.row({f.from, f.to}); }));
  FT_TRY(save_memory(out, timeline));
  if (host) FT_TRY(save_host(out, timeline));
  out.raw("}\n");
  return out.flush();
}

}  // namespace foretrain
