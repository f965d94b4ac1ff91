#include "traces/trace_page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "sim/timeline/passes.h"
#include "traces/json_text.h"
#include "traces/trace_rows.h"

namespace foretrain {
namespace {

constexpr const char* kHead = R"HTML(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>foretrain trace</title>
<style>
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --line: #ddd; --soft: #666; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ddd; --paper: #16181c; --line: #333; --soft: #999; }
}
body { margin: 0; font: 13px/1.4 system-ui, sans-serif; height: 100vh; display: flex;
       flex-direction: column;
       color: var(--ink); background: var(--paper); }
header { padding: 8px 12px; border-bottom: 1px solid var(--line); }
h1 { font-size: 15px; margin: 0; }
p { margin: 2px 0; color: var(--soft); }
#key { max-height: 5.6em; overflow: auto; }
#key span { display: inline-block; margin-right: 12px; white-space: nowrap; }
#key i { display: inline-block; width: 10px; height: 10px; margin-right: 4px; border-radius: 2px; }
#view { overflow-y: auto; overflow-x: hidden; touch-action: none; flex: 1; }
canvas { display: block; cursor: grab; }
#told { height: 76px; overflow: auto; padding: 6px 12px; border-top: 1px solid var(--line);
        white-space: pre-wrap; overflow-wrap: anywhere; flex: none; }
</style>
</head>
<body>
<header><h1></h1>
<p>Wheel: zoom. Drag: move. Shift and wheel: rows. A click shows a block. Keys: w, s, a, d, 0.</p>
<div id="key"></div></header>
<div id="view"><canvas></canvas></div>
<div id="told"></div>
<script type="application/json" id="trace">
)HTML";

constexpr const char* kTail = R"HTML(
</script>
<script>
"use strict";
const trace = JSON.parse(document.getElementById("trace").textContent);
const view = document.getElementById("view"), canvas = document.querySelector("canvas");
const told = document.getElementById("told"), pen = canvas.getContext("2d");
const hues = {forward: "#3b7dd8", backward: "#d9822b", weights: "#8a63d2", recompute: "#7fb2dd",
              gradients: "#57a773", optimizer: "#c9a227", input: "#9aa0a6"};
const moves = {tensor: "#d1605e", pipeline: "#b5523b", data: "#c2569a", expert: "#8c6d46",
               context: "#3f9a9a", memory: "#7f7f7f", host: "#8f8f2e"};
const said = {weights: "gradients of weights alone", input: "input", host: "host"};
const name = document.querySelector("h1");
name.textContent = trace.name;
document.title = trace.name;
/** Colours of kernels by phase, of what moves data by what it is for; pale while it waits. */
function legend() {
  const part = (title, all) => {
    const line = document.createElement("div");
    line.append(title + ": ");
    for (const [text, colour, opacity] of all) {
      const entry = document.createElement("span"), box = document.createElement("i");
      box.style.background = colour;
      box.style.opacity = opacity || 1;
      entry.append(box, said[text] || text);
      line.append(entry);
    }
    document.getElementById("key").append(line);
  };
  const used = (table, of) => Object.entries(table).filter(([text]) =>
    trace.infos.some((info) => of(info) === text));
  part("kernels", used(hues, (info) => moves[info.c] ? "" : info.p));
  part("transfers", [...used(moves, (info) => info.c),
                     ["pale: waiting for partners", moves.pipeline, 0.3]]);
}
legend();
let left = 150;
const high = 20, gap = 26;
const rows = [];
let height = 20;
trace.rows.forEach((row) => {
  if (row.first) height += gap;
  rows.push({...row, y: height});
  height += high;
});
height += 10;
let from = 0, to = trace.end, chosen = null;
const label = (info, batch) => info.n + (batch >= 0 ? batch : "");
const colour = (info) => moves[info.c] || hues[info.p] || "#888";
function time(us) {
  const big = Math.abs(us);
  return big >= 1e6 ? (us / 1e6).toFixed(6) + " s" : big >= 1e3 ? (us / 1e3).toFixed(3) + " ms"
                    : us.toFixed(3) + " us";
}
/** The first span of a row that ends after a time: spans of a row do not overlap. */
function first(spans, at) {
  let low = 0, up = spans.length / 6;
  while (low < up) {
    const middle = (low + up) >> 1;
    if (spans[6 * middle + 2] <= at) low = middle + 1; else up = middle;
  }
  return low;
}
function draw() {
  const width = view.clientWidth, scale = devicePixelRatio || 1;
  left = Math.min(150, Math.round(width / 4));
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  const style = getComputedStyle(document.body);
  pen.scale(scale, scale);
  pen.clearRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const wide = width - left, per = wide / (to - from), x = (at) => left + (at - from) * per;
  const least = 90 * (to - from) / wide, power = 10 ** Math.floor(Math.log10(least));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= least);
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    pen.fillStyle = "#8883";
    pen.fillRect(x(at), 14, 1, height);
    pen.fillStyle = style.color;
    pen.fillText(time(at).replace(/\.?0+ /, " "), x(at) + 2, 8);
  }
  for (const row of rows) {
    pen.fillStyle = style.color;
    if (row.first) pen.fillText(row.track, 4, row.y - 10);
    if (row.kind === "memory") { memory(row, x, wide); continue; }
    pen.fillText(row.name, 12, row.y + high / 2, left - 16);
    pen.save();
    pen.beginPath();
    pen.rect(left, row.y, wide, high);
    pen.clip();
    let drawn = -1;
    for (let i = first(row.spans, from); 6 * i < row.spans.length; ++i) {
      const [begin, start, end, kind, layer, batch] = row.spans.slice(6 * i, 6 * i + 6);
      if (begin > to) break;
      const a = x(begin), b = Math.max(x(end), a + 0.5);
      if (b < drawn + 0.5) continue;
      drawn = b;
      const info = trace.infos[kind];
      pen.fillStyle = colour(info);
      if (start > begin) {
        pen.globalAlpha = 0.3;
        pen.fillRect(a, row.y + 2, x(start) - a, high - 4);
        pen.globalAlpha = 1;
      }
      const s = x(start);
      pen.fillRect(s, row.y + 2, Math.max(b - s, 0.5), high - 4);
      if (chosen && chosen.row === row && chosen.i === i) {
        pen.strokeStyle = style.color;
        pen.strokeRect(a, row.y + 1.5, b - a, high - 3);
      }
      if (b - a > 36) {
        pen.fillStyle = "#fff";
        const place = (batch >= 0 ? batch + " " : "") + (layer >= 0 ? "L" + layer + " " : "");
        const text = info.c === "schedule" ? label(info, batch) : place + info.n;
        pen.fillText(text.slice(0, (b - a) / 6), Math.max(a, left) + 3, row.y + high / 2);
      } else if (info.c === "schedule" && b - a > 8 + 6 * label(info, batch).length) {
        pen.fillStyle = "#fff";
        pen.fillText(label(info, batch), a + 3, row.y + high / 2);
      }
    }
    pen.restore();
  }
  arrows(x);
}
/** Live bytes of a rank over time, beside the most that it has. */
function memory(row, x, wide) {
  const style = getComputedStyle(document.body), all = row.samples, bottom = row.y + high - 2;
  const text = row.name + ", up to " + row.most.toFixed(1) + " GiB";
  pen.fillText(text, 12, row.y + high / 2, left - 16);
  pen.save();
  pen.beginPath();
  pen.rect(left, row.y, wide, high);
  pen.clip();
  pen.fillStyle = "#8884";
  pen.beginPath();
  pen.moveTo(x(0), bottom);
  let drawn = -1, value = 0;
  for (let i = 0; i < all.length; i += 2) {
    const at = x(all[i]), y = bottom - (high - 4) * all[i + 1] / (row.most || 1);
    if (at > drawn + 0.5 || i + 2 >= all.length) {
      pen.lineTo(at, value || bottom);
      pen.lineTo(at, y);
      drawn = at;
    }
    value = y;
  }
  pen.lineTo(x(trace.end), value || bottom);
  pen.lineTo(x(trace.end), bottom);
  pen.fill();
  pen.strokeStyle = style.color;
  pen.globalAlpha = 0.5;
  pen.stroke();
  pen.restore();
}
/** Lines from where the chosen block's messages leave to where they arrive. */
function arrows(x) {
  if (!chosen) return;
  const number = rows.indexOf(chosen.row);
  pen.strokeStyle = getComputedStyle(document.body).color;
  for (let f = 0; f < trace.flows.length; f += 4) {
    const [a, i, b, j] = trace.flows.slice(f, f + 4);
    if (!(a === number && i === chosen.i) && !(b === number && j === chosen.i)) continue;
    const left_at = x(rows[a].spans[6 * i + 1]), there = x(rows[b].spans[6 * j + 2]);
    const from_y = rows[a].y + high / 2, to_y = rows[b].y + high / 2;
    pen.beginPath();
    pen.moveTo(left_at, from_y);
    pen.lineTo(there, to_y);
    pen.stroke();
    pen.beginPath();
    pen.arc(there, to_y, 3, 0, 2 * Math.PI);
    pen.stroke();
  }
}
function span_at(event) {
  const box = canvas.getBoundingClientRect(), y = event.clientY - box.top;
  const at = from + (event.clientX - box.left - left) / (box.width - left) * (to - from);
  const row = rows.find((one) => y >= one.y && y < one.y + high);
  if (!row || at < from) return null;
  const near = 2 * (to - from) / (box.width - left), i = first(row.spans, at - near);
  return 6 * i < row.spans.length && row.spans[6 * i] <= at + near ? {row, i} : null;
}
function tell() {
  if (!chosen) { told.textContent = ""; return; }
  const at = 6 * chosen.i;
  const [begin, start, end, kind, layer, batch] = chosen.row.spans.slice(at, at + 6);
  const info = trace.infos[kind];
  const waits = start > begin ? ", of it " + time(start - begin) + " waiting for partners" : "";
  const called = info.c === "schedule" ? label(info, batch) : info.n;
  told.textContent = called + "   " + info.c + ", " + info.p +
    (layer >= 0 ? ", layer " + layer : "") + (batch >= 0 ? ", microbatch " + batch : "") + "\n" +
    time(begin) + " to " + time(end) + ": " + time(end - begin) + waits + "\n" + info.w +
    (info.b ? "   " + info.b.toLocaleString("en") + " bytes" : "");
}
function zoom(factor, middle) {
  const least = 1e-3;
  if ((to - from) * factor < least) return;
  from = middle + (from - middle) * factor;
  to = middle + (to - middle) * factor;
  keep();
}
function keep() {
  const span = Math.min(to - from, trace.end);
  from = Math.max(0, Math.min(from, trace.end - span));
  to = from + span;
  draw();
}
view.addEventListener("wheel", (event) => {
  if (event.shiftKey) return;
  event.preventDefault();
  const box = canvas.getBoundingClientRect();
  const at = from + (event.clientX - box.left - left) / (box.width - left) * (to - from);
  zoom(Math.exp(event.deltaY * 0.002), Math.min(Math.max(at, from), to));
}, {passive: false});
let held = null;
canvas.addEventListener("pointerdown", (event) => {
  held = {x: event.clientX, y: event.clientY, from, to, top: view.scrollTop, moved: false};
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", (event) => {
  if (!held) return;
  const by = (event.clientX - held.x) / (canvas.clientWidth - left) * (held.to - held.from);
  held.moved = held.moved || Math.hypot(event.clientX - held.x, event.clientY - held.y) > 4;
  from = held.from - by;
  to = held.to - by;
  view.scrollTop = held.top - (event.clientY - held.y);
  keep();
});
canvas.addEventListener("pointerup", (event) => {
  if (held && !held.moved) chosen = span_at(event);
  held = null;
  tell();
  draw();
});
addEventListener("keydown", (event) => {
  const middle = (from + to) / 2, part = (to - from) / 5;
  if (event.key === "w") zoom(0.7, middle);
  if (event.key === "s") zoom(1 / 0.7, middle);
  if (event.key === "a") { from -= part; to -= part; keep(); }
  if (event.key === "d") { from += part; to += part; keep(); }
  if (event.key === "0") { from = 0; to = trace.end; draw(); }
});
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();
</script>
</body>
</html>
)HTML";

/// JSON within a <script>: no "</" can end it.
Status put(AtomicFile& file, std::string& out, bool last) {
  constexpr std::size_t kChunk = std::size_t{1} << 16;
  if (!last && out.size() < kChunk) return ok_status();
  std::string safe;
  safe.reserve(out.size());
  for (const char c : out) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  out.clear();
  return file.append(safe);
}

void append_info(const SpanInfo& info, std::string_view category, std::string_view phase,
                 bool first, std::string& out) {
  out += first ? "\n{\"n\":" : ",\n{\"n\":";
  append_string(out, info.name.empty() ? info.work : info.name);
  out += ",\"w\":";
  append_string(out, info.work);
  out += ",\"c\":";
  append_string(out, category);
  out += ",\"p\":";
  append_string(out, phase);
  out += ",\"b\":";
  append_number(out, static_cast<std::int64_t>(info.bytes));
  out += "}";
}

/// What a pass is called without its microbatch, where it is of one alone.
std::string name_without_microbatch(const SchedulePass& pass) {
  return pass.of.size() == 1 ? std::string(letter_of(pass.of.front().direction)) : label_of(pass);
}

std::string_view hue_of(PassDirection kind) {
  switch (kind) {
    case PassDirection::kForward:
      return "forward";
    case PassDirection::kBackward:
      return "backward";
    case PassDirection::kWeights:
      return "weights";
    case PassDirection::kUpdate:
    case PassDirection::kCount:
      break;
  }
  return "optimizer";
}

/// The infos of spans, then those of passes, whose numbers are given back by name.
std::map<std::string, std::size_t> append_infos(const TimelineSource& timeline, std::string& out) {
  out += ",\"infos\":[";
  std::size_t count = 0;
  for (const SpanInfo& info : timeline.head().infos) {
    append_info(info, name_of(info.category), name_of(info.phase), count++ == 0, out);
  }
  std::map<std::string, std::size_t> numbers;
  for (std::size_t track = 0; track < timeline.head().tracks.size(); ++track) {
    for (const SchedulePass& pass : schedule_passes(timeline, track)) {
      SpanInfo info;
      info.name = name_without_microbatch(pass);
      if (!numbers.emplace(info.name, count).second) continue;
      info.work = "a pass of the schedule";
      append_info(info, "schedule", hue_of(pass.of.front().direction), count++ == 0, out);
    }
  }
  out += "]";
  return numbers;
}

Span drawn_as_span(const IssueSpan& host, bool waits) {
  Span span;
  span.info = host.info;
  span.layer = host.layer;
  span.microbatch = host.microbatch;
  span.begin = host.begin;
  span.start = waits ? host.end : host.begin;  // pale
  span.end = host.end;
  return span;
}

Span drawn_as_span(const SchedulePass& pass, const std::map<std::string, std::size_t>& numbers) {
  Span span;
  span.info = static_cast<std::int32_t>(numbers.at(name_without_microbatch(pass)));
  if (pass.of.size() == 1) span.microbatch = pass.of.front().microbatch;
  span.begin = span.start = pass.begin;
  span.end = pass.end;
  return span;
}

/// Rows as JSON: the spans of each, six numbers a span.
class RowWriter {
 public:
  explicit RowWriter(AtomicFile& file, std::string text) : x_file(file), x_out(std::move(text)) {}

  void next_track(std::string name) {
    x_track = std::move(name);
    x_first_of_track = true;
  }
  void open(std::string_view name, std::string_view kind) {
    x_out += x_any ? ",\n{\"track\":" : "\n{\"track\":";
    x_any = true;
    append_string(x_out, x_track);
    x_out += ",\"name\":";
    append_string(x_out, name);
    x_out += ",\"kind\":";
    append_string(x_out, kind);
    ++x_rows;
    x_out += x_first_of_track ? ",\"first\":true,\"spans\":[" : ",\"first\":false,\"spans\":[";
    x_first_of_track = false;
    x_first_span = true;
  }
  Status add(const Span& span) {
    if (!x_first_span) x_out += ',';
    x_first_span = false;
    for (const Time time : {span.begin, span.start, span.end}) {
      append_millionths(x_out, time.ps);
      x_out += ',';
    }
    append_number(x_out, static_cast<std::int64_t>(span.info));
    x_out += ',';
    append_number(x_out, static_cast<std::int64_t>(span.layer));
    x_out += ',';
    append_number(x_out, static_cast<std::int64_t>(span.microbatch));
    return put(x_file, x_out, false);
  }
  void close() { x_out += "]}"; }
  /// Live bytes of a track, in GiB: two numbers a sample.
  Status memory(const std::vector<MemorySample>& all) {
    std::array<Bytes, static_cast<std::size_t>(BufferKind::kCount)> live{};
    Bytes most = 0;
    std::string samples;
    const auto gib = [](Bytes bytes) {
      return std::llround(static_cast<double>(bytes) * (1e6 / kGiB));
    };
    for (std::size_t i = 0; i < all.size(); ++i) {
      live.at(static_cast<std::size_t>(all[i].kind)) = all[i].bytes;
      if (i + 1 < all.size() && all[i + 1].at == all[i].at) continue;
      const Bytes sum = std::accumulate(live.begin(), live.end(), Bytes{0});
      most = std::max(most, sum);
      samples += samples.empty() ? "" : ",";
      append_millionths(samples, all[i].at.ps);
      samples += ',';
      append_millionths(samples, gib(sum));
    }
    if (samples.empty()) return ok_status();
    open("memory", "memory");
    x_out += "],\"most\":";
    append_millionths(x_out, gib(most));
    x_out += ",\"samples\":[" + samples;
    close();
    return put(x_file, x_out, false);
  }
  std::size_t rows() const { return x_rows; }
  /// Where messages leave and arrive, each a row and a span of it.
  Status finish(const std::vector<std::pair<std::size_t, std::size_t>>& ends) {
    x_out += "],\"flows\":[";
    bool first = true;
    for (const auto& [row, span] : ends) {
      if (!first) x_out += ',';
      first = false;
      append_number(x_out, static_cast<std::int64_t>(row));
      x_out += ',';
      append_number(x_out, static_cast<std::int64_t>(span));
      FT_TRY(put(x_file, x_out, false));
    }
    x_out += "]}";
    return put(x_file, x_out, true);
  }

 private:
  AtomicFile& x_file;
  std::string x_out, x_track;
  std::size_t x_rows = 0;
  bool x_any = false, x_first_of_track = true, x_first_span = true;
};

/// The row of a span and its place in it.
using Place = std::pair<std::size_t, std::size_t>;

/// Writes the rows of a track's streams, in the order of `of_streams`, and notes where the spans
/// `ends` are drawn.
Status write_streams(const TimelineSource& timeline, std::size_t track,
                     const std::vector<std::size_t>& of_streams,
                     const std::vector<std::int32_t>& ends, std::vector<Place>& places,
                     RowWriter& to) {
  const std::vector<std::string>& streams = timeline.head().tracks[track].streams;
  std::vector<std::size_t> order(streams.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return of_streams[a] < of_streams[b]; });
  for (const std::size_t s : order) {
    to.open(streams[s], "stream");
    const std::size_t first = timeline.first_span(track, s);
    std::size_t i = first, next = place_among(ends, static_cast<std::int32_t>(first));
    FT_TRY(timeline.each_span(first, timeline.first_span(track, s + 1), [&](const Span& span) {
      if (next < ends.size() && static_cast<std::size_t>(ends[next]) == i) {
        places[next++] = {to.rows() - 1, i - first};
      }
      ++i;
      return to.add(span);
    }));
    to.close();
  }
  return ok_status();
}

Status write_rows(const TimelineSource& timeline, const std::map<std::string, std::size_t>& numbers,
                  RowWriter& to) {
  const Timeline& head = timeline.head();
  const TraceRows rows = trace_rows(head.tracks);
  const std::vector<std::int32_t> ends = ends_of_flows(head.flows);
  std::vector<Place> places(ends.size());
  for (std::size_t t = 0; t < head.tracks.size(); ++t) {
    to.next_track(head.tracks[t].name);
    const std::vector<SchedulePass> passes = schedule_passes(timeline, t);
    if (!passes.empty()) {
      to.open(rows.names[kScheduleRow], "schedule");
      for (const SchedulePass& pass : passes) FT_TRY(to.add(drawn_as_span(pass, numbers)));
      to.close();
    }
    const std::vector<IssueSpan> host = timeline.host(t);
    if (!host.empty()) {
      to.open(rows.names[kHostRow], "host");
      for (const IssueSpan& span : host) {
        const SpanInfo& info = head.infos[static_cast<std::size_t>(span.info)];
        FT_TRY(to.add(drawn_as_span(span, waits_for_device(info))));
      }
      to.close();
    }
    FT_TRY(write_streams(timeline, t, rows.of_streams[t], ends, places, to));
    FT_TRY(to.memory(timeline.memory(t)));
  }
  std::vector<Place> of_flows;
  for (const Flow& flow : head.flows) {
    of_flows.push_back(places.at(place_among(ends, flow.from)));
    of_flows.push_back(places.at(place_among(ends, flow.to)));
  }
  return to.finish(of_flows);
}

}  // namespace

bool asks_for_page(std::string_view path) {
  return path.ends_with(".html") || path.ends_with(".htm");
}

Status write_trace_page(const TimelineSource& timeline, AtomicFile& file) {
  FT_TRY(file.append(kHead));
  std::string out = "{\"name\":";
  append_string(out, timeline.head().name);
  out += ",\"end\":";
  append_millionths(out, timeline.head().end.ps);
  const std::map<std::string, std::size_t> numbers = append_infos(timeline, out);
  out += ",\"rows\":[";
  RowWriter to(file, std::move(out));
  FT_TRY(write_rows(timeline, numbers, to));
  return file.append(kTail);
}

}  // namespace foretrain
