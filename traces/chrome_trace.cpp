#include "traces/chrome_trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/check.h"
#include "sim/cost/cost_model.h"
#include "sim/timeline/passes.h"
#include "traces/json_text.h"
#include "traces/trace_rows.h"

namespace foretrain {
namespace {

constexpr std::size_t kKinds = static_cast<std::size_t>(BufferKind::kCount);
constexpr std::size_t kBatchBytes = std::size_t{1} << 16;

constexpr std::string_view kArguments = ",\"args\":{";

constexpr std::int64_t kNanosecond = 1000;

/// An arrow binds to the slice that holds its ends. On a boundary viewers differ in which slice
/// that is, and Perfetto rounds to nanoseconds: arrows stay this far inside.
constexpr Time kArrowMargin{2 * kNanosecond};

/// Perfetto rounds begin and duration to nanoseconds, each by itself; the sum may then pass the
/// next slice's begin by one, and it drops that slice. Such durations (one in eight) are cut by
/// less than 1 ns, to the longest that rounds down.
Time shown_duration(Time begin, Time end) {
  const auto rounded = [](std::int64_t ps) { return (ps + kNanosecond / 2) / kNanosecond; };
  const std::int64_t room = rounded(end.ps) - rounded(begin.ps);
  const Time duration = end - begin;
  if (rounded(duration.ps) <= room) return duration;
  return Time{room * kNanosecond + kNanosecond / 2 - 1};
}

/// Colours are names that chrome://tracing knows. Perfetto colours slices by their names, without
/// the numbers in them.
constexpr std::string_view kWaitColour = "grey";

std::string_view colour_of(Phase phase) {
  constexpr std::array<std::string_view, static_cast<std::size_t>(Phase::kCount)> kColours = {
      "rail_response",          // forward: blue
      "thread_state_iowait",    // backward: orange
      "thread_state_runnable",  // recompute: light blue
      "thread_state_running",   // gradients: green
      "yellow",                 // optimizer
      "generic_work"};          // input: grey
  return kColours.at(static_cast<std::size_t>(phase));
}

std::string_view colour_of(PassDirection kind) {
  switch (kind) {
    case PassDirection::kForward:
      return colour_of(Phase::kForward);
    case PassDirection::kBackward:
      return colour_of(Phase::kBackward);
    case PassDirection::kWeights:
      return "detailed_memory_dump";  // purple
    case PassDirection::kUpdate:
    case PassDirection::kCount:
      break;
  }
  return colour_of(Phase::kOptimizer);
}

const std::string& shown_name(const SpanInfo& info) {
  return info.name.empty() ? info.work : info.name;
}

/// The begin of an event: what it is called, before `EventRow::place` says where and when it is.
std::string opening(std::string_view name, std::string_view category, std::string_view colour) {
  std::string text = "{\"name\":";
  append_string(text, name);
  text += ",\"cat\":";
  append_string(text, category);
  text += ",\"cname\":";
  append_string(text, colour);
  return text;
}

/// A row of a track, as events name it, for a time to follow.
class EventRow {
 public:
  EventRow(std::int64_t track, std::size_t row) {
    x_where = ",\"pid\":";
    append_number(x_where, track + 1);
    x_where += ",\"tid\":";
    append_number(x_where, static_cast<std::int64_t>(row) + 1);
    x_where += ",\"ts\":";
    x_slice = R"(,"ph":"X")" + x_where;
    x_instant = R"(,"ph":"i","s":"t")" + x_where;
  }
  /// Where and when an event is that has no length of its own.
  void at(std::string& out, Time time) const {
    out += x_where;
    append_millionths(out, time.ps);
  }
  /// Where and when an event is, and how long, unless that is an instant.
  void place(std::string& out, Time begin, Time end) const {
    out += begin == end ? x_instant : x_slice;
    append_millionths(out, begin.ps);
    if (begin == end) return;
    out += kDuration;
    append_millionths(out, shown_duration(begin, end).ps);
  }

 private:
  static constexpr std::string_view kDuration = ",\"dur\":";
  std::string x_where, x_slice, x_instant;
};

/// Events as text, written in batches.
class EventFile {
 public:
  explicit EventFile(AtomicFile& file) : x_file(file) { out.reserve(2 * kBatchBytes); }

  std::string out;

  void begin() {
    if (!x_first) out += ',';
    out += '\n';
    x_first = false;
  }
  void number(std::string_view key, std::int64_t value) {
    out += key;
    append_number(out, value);
  }
  void metadata(std::string_view kind, std::size_t track, std::size_t row) {
    begin();
    out += R"({"ph":"M","name":")";
    out += kind;
    out += '"';
    number(",\"pid\":", static_cast<std::int64_t>(track) + 1);
    number(",\"tid\":", static_cast<std::int64_t>(row) + 1);
  }
  /// Names a process or a thread, and says which place it has among the others.
  void name(std::string_view kind, std::size_t track, std::size_t row, std::string_view name,
            std::size_t place) {
    metadata(std::string(kind) + "_name", track, row);
    out += ",\"args\":{\"name\":";
    append_string(out, name);
    out += "}}";
    metadata(std::string(kind) + "_sort_index", track, row);
    number(",\"args\":{\"sort_index\":", static_cast<std::int64_t>(place));
    out += "}}";
  }
  Status flush() {
    FT_TRY(x_file.append(out));
    out.clear();
    return ok_status();
  }
  Status flush_if_full() { return out.size() < kBatchBytes ? ok_status() : flush(); }

 private:
  AtomicFile& x_file;
  bool x_first = true;
};

/// What all events of an info have in common, in a part of the trace.
struct InfoText {
  std::string opening, closing;
};

/// What an arrow needs to know of the span where it begins or ends.
struct ArrowEnd {
  std::int32_t track = 0, row = 0;
  Time start, end;
};

/// The begin of an event's arguments: layer and microbatch, as far as there are any, for another
/// one to follow. Neighbours have the same as often as not.
class CoordinateText {
 public:
  const std::string& text(std::int32_t layer, std::int32_t microbatch) {
    if (layer == x_layer && microbatch == x_microbatch) return x_text;
    x_layer = layer;
    x_microbatch = microbatch;
    x_text = kArguments;
    for (const auto& [key, value] :
         {std::pair("\"layer\":", layer), std::pair("\"microbatch\":", microbatch)}) {
      if (value < 0) continue;
      x_text += key;
      append_number(x_text, std::int64_t{value});
      x_text += ',';
    }
    return x_text;
  }

 private:
  std::int32_t x_layer = -1, x_microbatch = -1;
  std::string x_text{kArguments};
};

class Writer {
 public:
  Writer(const TimelineSource& timeline, const TraceOptions& options, AtomicFile& file)
      : x_timeline(timeline),
        x_head(timeline.head()),
        x_options(options),
        x_rows(trace_rows(x_head.tracks)),
        x_to(file) {
    if (options.flows) x_ends = ends_of_flows(x_head.flows);
    x_arrow_ends.reserve(x_ends.size());
    for (std::size_t i = 0; i < x_provenances.size(); ++i) {
      append_string(x_provenances[i], name_of(static_cast<Provenance>(i)));
      x_provenances[i] += "}}";
    }
  }

  Status write() {
    head();
    FT_TRY(names());
    FT_TRY(schedule());
    FT_TRY(host());
    FT_TRY(spans());
    if (x_options.flows) FT_TRY(flows());
    if (x_options.memory) FT_TRY(memory());
    x_to.out += "\n]}\n";
    return x_to.flush();
  }

 private:
  void head();
  Status names();
  Status schedule();
  Status host();
  Status spans();
  Status spans_of(std::size_t track, std::size_t stream);
  void span(const Span& span, const EventRow& row);
  Status flows();
  Status memory();

  const SpanInfo& info_at(std::size_t info) const {
    FT_CHECK(info < x_head.infos.size(), "a span without info");
    return x_head.infos[info];
  }
  const InfoText& of_spans(std::size_t info);
  const InfoText& of_host(std::size_t info);
  const std::string& opening_of_wait(std::size_t info);
  void arrow(std::string_view kind, std::int64_t id, const ArrowEnd& end, Time at);

  const TimelineSource& x_timeline;
  const Timeline& x_head;
  const TraceOptions& x_options;
  const TraceRows x_rows;
  EventFile x_to;
  std::vector<InfoText> x_of_spans, x_of_host;   ///< by info; empty: not met yet
  std::vector<std::string> x_openings_of_waits;  ///< by info; empty: not met yet
  CoordinateText x_coordinates;
  std::array<std::string, 3> x_provenances;  ///< by Provenance: the end of a span's event
  std::vector<std::int32_t> x_ends;          ///< spans at which flows begin or end
  std::vector<ArrowEnd> x_arrow_ends;        ///< of these
};

void Writer::head() {
  std::string& out = x_to.out;
  out += R"({"displayTimeUnit":"ns","otherData":{"schema":"foretrain/trace/1","name":)";
  append_string(out, x_head.name);
  out += ",\"step_us\":";
  append_millionths(out, x_head.end.ps);
  for (const auto& [key, text] : x_options.about) {
    out += ',';
    append_string(out, key);
    out += ':';
    append_string(out, text);
  }
  out += "},\"traceEvents\":[";
}

Status Writer::names() {
  for (std::size_t i = 0; i < x_head.tracks.size(); ++i) {
    const Track& track = x_head.tracks[i];
    std::string name = track.name.empty() ? "rank " + std::to_string(track.rank.value) : track.name;
    if (track.ranks_alike > 1) {
      name += " (one of " + std::to_string(track.ranks_alike) + " alike)";
    }
    x_to.name("process", i, 0, name, i + 1);
    const auto name_row = [&](std::size_t row) {
      x_to.name("thread", i, row, x_rows.names[row], row + 1);
    };
    if (!schedule_passes(x_timeline, i).empty()) name_row(kScheduleRow);
    if (x_timeline.has_host(i)) name_row(kHostRow);
    for (const std::size_t row : x_rows.of_streams[i]) name_row(row);
    FT_TRY(x_to.flush_if_full());
  }
  return ok_status();
}

Status Writer::schedule() {
  for (std::size_t track = 0; track < x_head.tracks.size(); ++track) {
    const EventRow row(static_cast<std::int64_t>(track), kScheduleRow);
    for (const SchedulePass& pass : schedule_passes(x_timeline, track)) {
      x_to.begin();
      x_to.out += opening(label_of(pass), "schedule", colour_of(pass.of.front().direction));
      row.place(x_to.out, pass.begin, pass.end);
      const std::int32_t microbatch = pass.of.size() == 1 ? pass.of.front().microbatch : -1;
      x_to.out += x_coordinates.text(-1, microbatch);
      x_to.number("\"first_layer\":", pass.first_layer);
      x_to.number(",\"last_layer\":", pass.last_layer);
      x_to.out += "}}";
      FT_TRY(x_to.flush_if_full());
    }
  }
  return ok_status();
}

const InfoText& Writer::of_host(std::size_t info) {
  const SpanInfo& of = info_at(info);
  x_of_host.resize(x_head.infos.size());
  InfoText& text = x_of_host[info];
  if (!text.opening.empty()) return text;
  text.opening = opening(shown_name(of), name_of(Category::kHost),
                         waits_for_device(of) ? kWaitColour : colour_of(of.phase));
  text.closing = "\"work\":";
  append_string(text.closing, of.work);
  text.closing += "}}";
  return text;
}

Status Writer::host() {
  for (std::size_t track = 0; track < x_head.tracks.size(); ++track) {
    const EventRow row(static_cast<std::int64_t>(track), kHostRow);
    for (const IssueSpan& span : x_timeline.host(track)) {
      const InfoText& text = of_host(static_cast<std::size_t>(span.info));
      x_to.begin();
      x_to.out += text.opening;
      row.place(x_to.out, span.begin, span.end);
      x_to.out += x_coordinates.text(span.layer, span.microbatch);
      x_to.out += text.closing;
      FT_TRY(x_to.flush_if_full());
    }
  }
  return ok_status();
}

const InfoText& Writer::of_spans(std::size_t info) {
  const SpanInfo& of = info_at(info);
  x_of_spans.resize(x_head.infos.size());
  InfoText& text = x_of_spans[info];
  if (!text.opening.empty()) return text;
  text.opening = opening(shown_name(of), name_of(of.category), colour_of(of.phase));
  text.closing = "\"phase\":";
  append_string(text.closing, name_of(of.phase));
  if (!of.work.empty()) {
    text.closing += ",\"work\":";
    append_string(text.closing, of.work);
  }
  if (of.bytes > 0) {
    text.closing += ",\"bytes\":";
    append_number(text.closing, of.bytes);
  }
  text.closing += ",\"provenance\":";
  return text;
}

const std::string& Writer::opening_of_wait(std::size_t info) {
  x_openings_of_waits.resize(x_head.infos.size());
  std::string& text = x_openings_of_waits[info];
  if (text.empty()) text = opening("wait: " + shown_name(info_at(info)), "wait", kWaitColour);
  return text;
}

void Writer::span(const Span& span, const EventRow& row) {
  FT_CHECK(span.begin <= span.start && span.start <= span.end, "a span that ends before it begins");
  const auto info = static_cast<std::size_t>(span.info);
  const InfoText& text = of_spans(info);
  const bool waits = span.begin < span.start;
  std::string& out = x_to.out;
  if (waits) {  // a rank waits for its partners
    x_to.begin();
    out += opening_of_wait(info);
    row.place(out, span.begin, span.start);
    out += '}';
  }
  x_to.begin();
  out += text.opening;
  row.place(out, span.start, span.end);
  out += x_coordinates.text(span.layer, span.microbatch);
  if (waits) {
    out += "\"waited_us\":";
    append_millionths(out, (span.start - span.begin).ps);
    out += ',';
  }
  out += text.closing;
  out += x_provenances.at(static_cast<std::size_t>(span.provenance));
}

Status Writer::spans_of(std::size_t track, std::size_t stream) {
  const std::size_t number = x_rows.of_streams[track][stream];
  const EventRow row(static_cast<std::int64_t>(track), number);
  auto i = static_cast<std::int32_t>(x_timeline.first_span(track, stream));
  return x_timeline.each_span(
      static_cast<std::size_t>(i), x_timeline.first_span(track, stream + 1), [&](const Span& one) {
        span(one, row);
        const std::size_t next = x_arrow_ends.size();
        if (next < x_ends.size() && x_ends[next] == i) {
          x_arrow_ends.push_back(
              {one.track, static_cast<std::int32_t>(number), one.start, one.end});
        }
        ++i;
        return x_to.flush_if_full();
      });
}

Status Writer::spans() {
  for (std::size_t track = 0; track < x_head.tracks.size(); ++track) {
    for (std::size_t stream = 0; stream < x_head.tracks[track].streams.size(); ++stream) {
      FT_TRY(spans_of(track, stream));
    }
  }
  return ok_status();
}

void Writer::arrow(std::string_view kind, std::int64_t id, const ArrowEnd& end, Time at) {
  x_to.begin();
  x_to.out += "{\"ph\":";
  x_to.out += kind;
  x_to.number(R"(,"name":"message","cat":"message","id":)", id);
  EventRow(end.track, static_cast<std::size_t>(end.row)).at(x_to.out, at);
  x_to.out += '}';
}

Status Writer::flows() {
  std::int64_t id = 0;
  for (const Flow& flow : x_head.flows) {
    const ArrowEnd& from = x_arrow_ends.at(place_among(x_ends, flow.from));
    const ArrowEnd& to = x_arrow_ends.at(place_among(x_ends, flow.to));
    if (from.end - from.start < kArrowMargin + kArrowMargin) continue;
    if (to.end - to.start < kArrowMargin + kArrowMargin) continue;
    const Time arrival = to.end - kArrowMargin;
    const Time departure = min(from.start + kArrowMargin, arrival);
    ++id;
    arrow("\"s\"", id, from, departure);
    // "bp":"e" binds the arrival to the slice that encloses it instead of the next one.
    arrow(R"("f","bp":"e")", id, to, arrival);
    FT_TRY(x_to.flush_if_full());
  }
  return ok_status();
}

/// The argument that says how many bytes of a kind are live; none until it says so.
class LiveText {
 public:
  void set(std::size_t kind, Bytes bytes) {
    if (text.empty()) {
      append_string(text, name_of(static_cast<BufferKind>(kind)));
      text += ':';
      x_key = text.size();
    }
    text.resize(x_key);
    append_millionths(text, std::llround(static_cast<double>(bytes) * (1e6 / kGiB)));
  }
  std::string text;

 private:
  std::size_t x_key = 0;
};

Status Writer::memory() {
  constexpr std::string_view kCounter = R"({"ph":"C","name":"memory GiB")";
  constexpr std::string_view kEnd = "}}";
  for (std::size_t track = 0; track < x_head.tracks.size(); ++track) {
    const std::vector<MemorySample> samples = x_timeline.memory(track);
    // Every event names every kind of its track: viewers stack what the first one lists.
    std::array<LiveText, kKinds> live;
    for (const MemorySample& sample : samples) {
      const auto kind = static_cast<std::size_t>(sample.kind);
      if (live.at(kind).text.empty()) live[kind].set(kind, 0);
    }
    const EventRow row(static_cast<std::int64_t>(track), 0);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const auto kind = static_cast<std::size_t>(samples[i].kind);
      live[kind].set(kind, samples[i].bytes);
      const bool more_at_once = i + 1 < samples.size() && samples[i + 1].at == samples[i].at;
      if (more_at_once) continue;
      x_to.begin();
      x_to.out += kCounter;
      row.at(x_to.out, samples[i].at);
      x_to.out += kArguments;
      bool first = true;
      for (const LiveText& one : live) {
        if (one.text.empty()) continue;
        if (!first) x_to.out += ',';
        first = false;
        x_to.out += one.text;
      }
      x_to.out += kEnd;
      FT_TRY(x_to.flush_if_full());
    }
  }
  return ok_status();
}

}  // namespace

Status write_chrome_trace(const TimelineSource& timeline, const TraceOptions& options,
                          AtomicFile& file) {
  return Writer(timeline, options, file).write();
}

}  // namespace foretrain
