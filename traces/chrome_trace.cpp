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

/// Events as text, written in batches.
class EventFile {
 public:
  explicit EventFile(AtomicFile& file) : x_file(file) {}

  std::string out;

  void begin() { out += x_first ? "\n" : ",\n", x_first = false; }
  void number(std::string_view key, std::int64_t value) {
    out += key;
    append_number(out, value);
  }
  void where(std::int32_t track, std::size_t row, Time at) {
    number(",\"pid\":", std::int64_t{track} + 1);
    number(",\"tid\":", static_cast<std::int64_t>(row) + 1);
    out += ",\"ts\":";
    append_millionths(out, at.ps);
  }
  /// Where and when an event is, and how long, unless that is an instant.
  void place(std::int32_t track, std::size_t row, Time begin, Time end) {
    out += begin == end ? R"(,"ph":"i","s":"t")" : R"(,"ph":"X")";
    where(track, row, begin);
    if (begin == end) return;
    out += ",\"dur\":";
    append_millionths(out, shown_duration(begin, end).ps);
  }
  /// What an event is called, for `place` to follow.
  static std::string opening(std::string_view name, std::string_view category,
                             std::string_view colour) {
    std::string text = "{\"name\":";
    append_string(text, name);
    text += ",\"cat\":";
    append_string(text, category);
    text += ",\"cname\":";
    append_string(text, colour);
    return text;
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

class Writer {
 public:
  Writer(const Timeline& timeline, const TraceOptions& options, AtomicFile& file)
      : x_timeline(timeline),
        x_options(options),
        x_rows(trace_rows(timeline)),
        x_passes(schedule_passes(timeline)),
        x_to(file) {}

  Status write() {
    head();
    FT_TRY(names());
    FT_TRY(schedule());
    FT_TRY(host());
    prepare();
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
  void prepare();
  Status spans();
  Status flows();
  Status memory();

  std::size_t row_of(const Span& span) const {
    return x_rows.of_streams[static_cast<std::size_t>(span.track)][span.stream.index()];
  }
  void coordinates(std::int32_t layer, std::int32_t microbatch);
  void arrow(std::string_view kind, std::int64_t id, const Span& span, Time at);
  void counter(std::int32_t track, Time at, const std::array<Bytes, kKinds>& bytes);

  const Timeline& x_timeline;
  const TraceOptions& x_options;
  const TraceRows x_rows;
  const std::vector<SchedulePass> x_passes;
  EventFile x_to;
  std::vector<std::string> x_openings;  ///< by info: name, category and colour
  std::vector<std::string> x_closings;  ///< by info: arguments that all its spans share
  std::array<bool, kKinds> x_used{};    ///< memory kinds of the current track
};

void Writer::head() {
  std::string& out = x_to.out;
  out += R"({"displayTimeUnit":"ns","otherData":{"schema":"foretrain/trace/1","name":)";
  append_string(out, x_timeline.name);
  out += ",\"step_us\":";
  append_millionths(out, x_timeline.end.ps);
  for (const auto& [key, text] : x_options.about) {
    out += ',';
    append_string(out, key);
    out += ':';
    append_string(out, text);
  }
  out += "},\"traceEvents\":[";
}

Status Writer::names() {
  std::vector<std::array<bool, 2>> has(x_timeline.tracks.size());
  for (const SchedulePass& pass : x_passes) {
    has.at(static_cast<std::size_t>(pass.track))[kScheduleRow] = true;
  }
  for (const IssueSpan& span : x_timeline.host) {
    has.at(static_cast<std::size_t>(span.track))[kHostRow] = true;
  }
  for (std::size_t i = 0; i < x_timeline.tracks.size(); ++i) {
    const Track& track = x_timeline.tracks[i];
    std::string name = track.name.empty() ? "rank " + std::to_string(track.rank.value) : track.name;
    if (track.ranks_alike > 1) {
      name += " (one of " + std::to_string(track.ranks_alike) + " alike)";
    }
    x_to.name("process", i, 0, name, i + 1);
    const auto name_row = [&](std::size_t row) {
      x_to.name("thread", i, row, x_rows.names[row], row + 1);
    };
    for (const std::size_t row : {kScheduleRow, kHostRow}) {
      if (has[i][row]) name_row(row);
    }
    for (const std::size_t row : x_rows.of_streams[i]) name_row(row);
    FT_TRY(x_to.flush_if_full());
  }
  return ok_status();
}

/// Layer and microbatch, as far as there are any, for another argument to follow.
void Writer::coordinates(std::int32_t layer, std::int32_t microbatch) {
  for (const auto& [key, value] :
       {std::pair("\"layer\":", layer), std::pair("\"microbatch\":", microbatch)}) {
    if (value < 0) continue;
    x_to.number(key, value);
    x_to.out += ',';
  }
}

Status Writer::schedule() {
  for (const SchedulePass& pass : x_passes) {
    x_to.begin();
    x_to.out +=
        EventFile::opening(label_of(pass), "schedule", colour_of(pass.of.front().direction));
    x_to.place(pass.track, kScheduleRow, pass.begin, pass.end);
    x_to.out += ",\"args\":{";
    if (pass.of.size() == 1) coordinates(-1, pass.of.front().microbatch);
    x_to.number("\"first_layer\":", pass.first_layer);
    x_to.number(",\"last_layer\":", pass.last_layer);
    x_to.out += "}}";
    FT_TRY(x_to.flush_if_full());
  }
  return ok_status();
}

Status Writer::host() {
  for (const IssueSpan& span : x_timeline.host) {
    const SpanInfo& info = x_timeline.infos.at(static_cast<std::size_t>(span.info));
    x_to.begin();
    const bool waits = waits_for_device(x_timeline, span);
    x_to.out += EventFile::opening(shown_name(info), name_of(Category::kHost),
                                   waits ? kWaitColour : colour_of(info.phase));
    x_to.place(span.track, kHostRow, span.begin, span.end);
    x_to.out += ",\"args\":{";
    coordinates(span.layer, span.microbatch);
    x_to.out += "\"work\":";
    append_string(x_to.out, info.work);
    x_to.out += "}}";
    FT_TRY(x_to.flush_if_full());
  }
  return ok_status();
}

void Writer::prepare() {
  for (const SpanInfo& info : x_timeline.infos) {
    x_openings.push_back(
        EventFile::opening(shown_name(info), name_of(info.category), colour_of(info.phase)));
    std::string& closing = x_closings.emplace_back("\"phase\":");
    append_string(closing, name_of(info.phase));
    if (!info.work.empty()) {
      closing += ",\"work\":";
      append_string(closing, info.work);
    }
    if (info.bytes > 0) {
      closing += ",\"bytes\":";
      append_number(closing, info.bytes);
    }
    closing += ",\"provenance\":";
  }
}

Status Writer::spans() {
  for (const Span& span : x_timeline.spans) {
    const auto info = static_cast<std::size_t>(span.info);
    FT_CHECK(info < x_openings.size(), "a span without info");
    FT_CHECK(span.begin <= span.start && span.start <= span.end,
             "a span that ends before it begins");
    if (span.begin < span.start) {  // a rank waits for its partners
      x_to.begin();
      x_to.out +=
          EventFile::opening("wait: " + shown_name(x_timeline.infos[info]), "wait", kWaitColour);
      x_to.place(span.track, row_of(span), span.begin, span.start);
      x_to.out += '}';
    }
    x_to.begin();
    x_to.out += x_openings[info];
    x_to.place(span.track, row_of(span), span.start, span.end);
    x_to.out += ",\"args\":{";
    coordinates(span.layer, span.microbatch);
    if (span.begin < span.start) {
      x_to.out += "\"waited_us\":";
      append_millionths(x_to.out, (span.start - span.begin).ps);
      x_to.out += ',';
    }
    x_to.out += x_closings[info];
    x_to.out += '"';
    x_to.out += name_of(span.provenance);
    x_to.out += "\"}}";
    FT_TRY(x_to.flush_if_full());
  }
  return ok_status();
}

void Writer::arrow(std::string_view kind, std::int64_t id, const Span& span, Time at) {
  x_to.begin();
  x_to.out += "{\"ph\":";
  x_to.out += kind;
  x_to.number(R"(,"name":"message","cat":"message","id":)", id);
  x_to.where(span.track, row_of(span), at);
  x_to.out += '}';
}

Status Writer::flows() {
  std::int64_t id = 0;
  for (const Flow& flow : x_timeline.flows) {
    const Span& from = x_timeline.spans.at(static_cast<std::size_t>(flow.from));
    const Span& to = x_timeline.spans.at(static_cast<std::size_t>(flow.to));
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

void Writer::counter(std::int32_t track, Time at, const std::array<Bytes, kKinds>& bytes) {
  x_to.begin();
  std::string& out = x_to.out;
  out += R"({"ph":"C","name":"memory GiB")";
  x_to.where(track, 0, at);
  out += ",\"args\":{";
  bool first = true;
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    if (!x_used[kind]) continue;
    if (!first) out += ',';
    first = false;
    append_string(out, name_of(static_cast<BufferKind>(kind)));
    out += ':';
    append_millionths(out, std::llround(static_cast<double>(bytes[kind]) * (1e6 / kGiB)));
  }
  out += "}}";
}

Status Writer::memory() {
  const auto& samples = x_timeline.memory;
  for (std::size_t begin = 0, end = 0; begin < samples.size(); begin = end) {
    const std::int32_t track = samples[begin].track;
    x_used.fill(false);
    for (end = begin; end < samples.size() && samples[end].track == track; ++end) {
      x_used.at(static_cast<std::size_t>(samples[end].kind)) = true;
    }
    // Every event names every kind of its track: viewers stack what the first one lists.
    std::array<Bytes, kKinds> live{};
    for (std::size_t i = begin; i < end; ++i) {
      live.at(static_cast<std::size_t>(samples[i].kind)) = samples[i].bytes;
      const bool more_at_once = i + 1 < end && samples[i + 1].at == samples[i].at;
      if (more_at_once) continue;
      counter(track, samples[i].at, live);
      FT_TRY(x_to.flush_if_full());
    }
  }
  return ok_status();
}

}  // namespace

Status write_chrome_trace(const Timeline& timeline, const TraceOptions& options, AtomicFile& file) {
  return Writer(timeline, options, file).write();
}

}  // namespace foretrain
