#include "traces/trace_page.h"

#include <string>

#include "sim/base/printable.h"
#include "traces/json_text.h"

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
body { margin: 0; font: 13px/1.4 system-ui, sans-serif;
       color: var(--ink); background: var(--paper); }
header { padding: 8px 12px; border-bottom: 1px solid var(--line); }
h1 { font-size: 15px; margin: 0; }
p { margin: 2px 0; color: var(--soft); }
#key span { display: inline-block; margin-right: 12px; white-space: nowrap; }
#key i { display: inline-block; width: 10px; height: 10px; margin-right: 4px; border-radius: 2px; }
#view { overflow-y: auto; height: calc(100vh - 190px); touch-action: none; }
canvas { display: block; cursor: grab; }
#told { height: 76px; overflow: auto; padding: 6px 12px; border-top: 1px solid var(--line);
        white-space: pre-wrap; }
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
const hues = {forward: "#4c8dd6", backward: "#57a773", recompute: "#8fc1e3", gradients: "#b07cc6",
              optimizer: "#d9a441", input: "#9aa0a6"};
const moves = {tensor: "#d1605e", pipeline: "#e08b3e", data: "#c2569a", expert: "#8c6d46",
               context: "#5aa7a7", memory: "#7f7f7f", host: "#a3a33a"};
const name = document.querySelector("h1");
name.textContent = trace.name;
document.title = trace.name;
for (const [text, colour] of [...Object.entries(hues), ...Object.entries(moves)]) {
  const entry = document.createElement("span"), box = document.createElement("i");
  box.style.background = colour;
  entry.append(box, text);
  document.getElementById("key").append(entry);
}
const left = 150, high = 20, gap = 26;
const rows = [];
let height = 20;
trace.rows.forEach((row) => {
  if (row.first) height += gap;
  rows.push({...row, y: height});
  height += high;
});
height += 10;
let from = 0, to = trace.end, chosen = null;
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
  const step = 10 ** Math.floor(Math.log10((to - from) / 4 || 1));
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    pen.fillStyle = "#8883";
    pen.fillRect(x(at), 14, 1, height);
    if ((to - from) / step > 12 && Math.round(at / step) % 5) continue;
    pen.fillStyle = style.color;
    pen.fillText(time(at), x(at) + 2, 8);
  }
  for (const row of rows) {
    pen.fillStyle = style.color;
    if (row.first) pen.fillText(row.track, 4, row.y - 10);
    pen.fillText(row.name, 12, row.y + high / 2);
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
        const text = place + info.n;
        pen.fillText(text.slice(0, (b - a) / 6), Math.max(a, left) + 3, row.y + high / 2);
      }
    }
    pen.restore();
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
  told.textContent = info.n + "   " + info.c + ", " + info.p +
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

void append_infos(const Timeline& timeline, std::string& out) {
  out += ",\"infos\":[";
  for (std::size_t i = 0; i < timeline.infos.size(); ++i) {
    const SpanInfo& info = timeline.infos[i];
    out += i == 0 ? "\n{\"n\":" : ",\n{\"n\":";
    append_string(out, info.name.empty() ? info.work : info.name);
    out += ",\"w\":";
    append_string(out, info.work);
    out += ",\"c\":";
    append_string(out, name_of(info.category));
    out += ",\"p\":";
    append_string(out, name_of(info.phase));
    out += ",\"b\":";
    append_number(out, static_cast<std::int64_t>(info.bytes));
    out += "}";
  }
  out += "]";
}

void append_span(const Span& span, std::string& out) {
  for (const Time time : {span.begin, span.start, span.end}) {
    append_millionths(out, time.ps);
    out += ',';
  }
  append_number(out, static_cast<std::int64_t>(span.info));
  out += ',';
  append_number(out, static_cast<std::int64_t>(span.layer));
  out += ',';
  append_number(out, static_cast<std::int64_t>(span.microbatch));
}

}  // namespace

bool asks_for_page(std::string_view path) {
  return path.ends_with(".html") || path.ends_with(".htm");
}

Status write_trace_page(const Timeline& timeline, AtomicFile& file) {
  FT_TRY(file.append(kHead));
  std::string out = "{\"name\":";
  append_string(out, timeline.name);
  out += ",\"end\":";
  append_millionths(out, timeline.end.ps);
  append_infos(timeline, out);
  out += ",\"rows\":[";
  std::size_t at = 0;
  bool any = false;
  for (std::size_t t = 0; t < timeline.tracks.size(); ++t) {
    const Track& track = timeline.tracks[t];
    for (std::size_t s = 0; s < track.streams.size(); ++s) {
      out += any ? ",\n{\"track\":" : "\n{\"track\":";
      any = true;
      append_string(out, track.name);
      out += ",\"name\":";
      append_string(out, track.streams[s]);
      out += s == 0 ? ",\"first\":true,\"spans\":[" : ",\"first\":false,\"spans\":[";
      for (bool first = true; at < timeline.spans.size(); ++at, first = false) {
        const Span& span = timeline.spans[at];
        if (static_cast<std::size_t>(span.track) != t || span.stream.index() != s) break;
        if (!first) out += ',';
        append_span(span, out);
        FT_TRY(put(file, out, false));
      }
      out += "]}";
    }
  }
  out += "]}";
  FT_TRY(put(file, out, true));
  return file.append(kTail);
}

}  // namespace foretrain
