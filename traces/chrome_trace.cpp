#include "traces/chrome_trace.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/check.h"
#include "sim/cost/cost_model.h"
#include "traces/json_text.h"

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

class Writer {
 public:
  Writer(const Timeline& timeline, const TraceOptions& options, AtomicFile& file)
      : x_timeline(timeline), x_options(options), x_file(file) {}

  Status write() {
    FT_TRY(head());
    FT_TRY(names());
    prepare();
    FT_TRY(spans());
    if (x_options.flows) FT_TRY(flows());
    if (x_options.memory) FT_TRY(memory());
    x_out += "\n]}\n";
    return flush();
  }

 private:
  Status head();
  Status names();
  void prepare();
  Status spans();
  Status flows();
  Status memory();

  void metadata(std::string_view kind, std::size_t process, std::size_t thread);
  void name_event(std::string_view kind, std::size_t process, std::size_t thread,
                  std::string_view name);
  void sort_event(std::string_view kind, std::size_t process, std::size_t thread,
                  std::size_t place);
  void arrow(std::string_view kind, std::int64_t id, const Span& span, Time at);
  void counter(std::size_t track, Time at, const std::array<Bytes, kKinds>& bytes);
  void where(std::size_t process, std::size_t thread, Time at);
  void event() { x_out += x_first ? "\n" : ",\n", x_first = false; }
  Status flush() {
    FT_TRY(x_file.append(x_out));
    x_out.clear();
    return ok_status();
  }
  Status flush_if_full() { return x_out.size() < kBatchBytes ? ok_status() : flush(); }

  const Timeline& x_timeline;
  const TraceOptions& x_options;
  AtomicFile& x_file;
  std::string x_out;
  bool x_first = true;
  std::vector<std::string> x_openings;  ///< by info: name and category
  std::vector<std::string> x_closings;  ///< by info: arguments that all its spans share
  std::array<bool, kKinds> x_used{};    ///< memory kinds of the current track
};

Status Writer::head() {
  x_out += R"({"displayTimeUnit":"ns","otherData":{"schema":"foretrain/trace/1","name":)";
  append_string(x_out, x_timeline.name);
  x_out += ",\"step_us\":";
  append_millionths(x_out, x_timeline.end.ps);
  for (const auto& [key, text] : x_options.about) {
    x_out += ',';
    append_string(x_out, key);
    x_out += ':';
    append_string(x_out, text);
  }
  x_out += "},\"traceEvents\":[";
  return ok_status();
}

void Writer::metadata(std::string_view kind, std::size_t process, std::size_t thread) {
  event();
  x_out += R"({"ph":"M","name":")";
  x_out += kind;
  x_out += "\",\"pid\":";
  append_number(x_out, static_cast<std::int64_t>(process));
  x_out += ",\"tid\":";
  append_number(x_out, static_cast<std::int64_t>(thread));
}

void Writer::name_event(std::string_view kind, std::size_t process, std::size_t thread,
                        std::string_view name) {
  metadata(kind, process, thread);
  x_out += ",\"args\":{\"name\":";
  append_string(x_out, name);
  x_out += "}}";
}

void Writer::sort_event(std::string_view kind, std::size_t process, std::size_t thread,
                        std::size_t place) {
  metadata(kind, process, thread);
  x_out += ",\"args\":{\"sort_index\":";
  append_number(x_out, static_cast<std::int64_t>(place));
  x_out += "}}";
}

Status Writer::names() {
  for (std::size_t i = 0; i < x_timeline.tracks.size(); ++i) {
    const Track& track = x_timeline.tracks[i];
    std::string name = track.name.empty() ? "rank " + std::to_string(track.rank.value) : track.name;
    if (track.ranks_alike > 1) {
      name += " (one of " + std::to_string(track.ranks_alike) + " alike)";
    }
    name_event("process_name", i + 1, 1, name);
    sort_event("process_sort_index", i + 1, 1, i + 1);
    for (std::size_t s = 0; s < track.streams.size(); ++s) {
      name_event("thread_name", i + 1, s + 1, track.streams[s]);
      sort_event("thread_sort_index", i + 1, s + 1, s + 1);
    }
    FT_TRY(flush_if_full());
  }
  return ok_status();
}

void Writer::prepare() {
  for (const SpanInfo& info : x_timeline.infos) {
    std::string& opening = x_openings.emplace_back("{\"ph\":\"X\",\"name\":");
    append_string(opening, info.name.empty() ? info.work : info.name);
    opening += ",\"cat\":";
    append_string(opening, name_of(info.category));
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

void Writer::where(std::size_t process, std::size_t thread, Time at) {
  x_out += ",\"pid\":";
  append_number(x_out, static_cast<std::int64_t>(process));
  x_out += ",\"tid\":";
  append_number(x_out, static_cast<std::int64_t>(thread));
  x_out += ",\"ts\":";
  append_millionths(x_out, at.ps);
}

Status Writer::spans() {
  for (const Span& span : x_timeline.spans) {
    const auto info = static_cast<std::size_t>(span.info);
    FT_CHECK(info < x_openings.size(), "a span without info");
    FT_CHECK(span.begin <= span.start && span.start <= span.end,
             "a span that ends before it begins");
    event();
    x_out += x_openings[info];
    where(static_cast<std::size_t>(span.track) + 1, span.stream.index() + 1, span.begin);
    x_out += ",\"dur\":";
    append_millionths(x_out, shown_duration(span.begin, span.end).ps);
    x_out += ",\"args\":{";
    if (span.layer >= 0) {
      x_out += "\"layer\":";
      append_number(x_out, std::int64_t{span.layer});
      x_out += ',';
    }
    if (span.microbatch >= 0) {
      x_out += "\"microbatch\":";
      append_number(x_out, std::int64_t{span.microbatch});
      x_out += ',';
    }
    if (span.begin < span.start) {
      x_out += "\"waited_us\":";
      append_millionths(x_out, (span.start - span.begin).ps);
      x_out += ',';
    }
    x_out += x_closings[info];
    x_out += '"';
    x_out += name_of(span.provenance);
    x_out += "\"}}";
    FT_TRY(flush_if_full());
  }
  return ok_status();
}

void Writer::arrow(std::string_view kind, std::int64_t id, const Span& span, Time at) {
  event();
  x_out += "{\"ph\":";
  x_out += kind;
  x_out += R"(,"name":"message","cat":"message","id":)";
  append_number(x_out, id);
  where(static_cast<std::size_t>(span.track) + 1, span.stream.index() + 1, at);
  x_out += '}';
}

Status Writer::flows() {
  std::int64_t id = 0;
  for (const Flow& flow : x_timeline.flows) {
    const Span& from = x_timeline.spans.at(static_cast<std::size_t>(flow.from));
    const Span& to = x_timeline.spans.at(static_cast<std::size_t>(flow.to));
    if (from.end - from.begin < kArrowMargin + kArrowMargin) continue;
    if (to.end - to.begin < kArrowMargin + kArrowMargin) continue;
    const Time arrival = to.end - kArrowMargin;
    // When the transfer starts, but inside the slice and not after the arrival.
    const Time start = min(min(from.start, from.end - kArrowMargin), arrival);
    const Time departure = max(start, from.begin + kArrowMargin);
    ++id;
    arrow("\"s\"", id, from, departure);
    // "bp":"e" binds the arrival to the slice that encloses it instead of the next one.
    arrow(R"("f","bp":"e")", id, to, arrival);
    FT_TRY(flush_if_full());
  }
  return ok_status();
}

void Writer::counter(std::size_t track, Time at, const std::array<Bytes, kKinds>& bytes) {
  event();
  x_out += R"({"ph":"C","name":"memory GiB")";
  where(track + 1, 1, at);
  x_out += ",\"args\":{";
  bool first = true;
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    if (!x_used[kind]) continue;
    if (!first) x_out += ',';
    first = false;
    append_string(x_out, name_of(static_cast<BufferKind>(kind)));
    x_out += ':';
    append_millionths(x_out, std::llround(static_cast<double>(bytes[kind]) * (1e6 / kGiB)));
  }
  x_out += "}}";
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
      counter(static_cast<std::size_t>(track), samples[i].at, live);
      FT_TRY(flush_if_full());
    }
  }
  return ok_status();
}

}  // namespace

Status write_chrome_trace(const Timeline& timeline, const TraceOptions& options, AtomicFile& file) {
  return Writer(timeline, options, file).write();
}

}  // namespace foretrain
