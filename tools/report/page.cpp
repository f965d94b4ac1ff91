#include "tools/report/page.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "sim/base/printable.h"

namespace foretrain {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --line: #d0d7de; --bar: #3b7dd8;
  --soft: #57606a; --c0: #3b7dd8; --c1: #d9822b; --c2: #8a63d2; --c3: #8b949e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #30363d;
  --bar: #58a6ff; --soft: #9da7b1; --c0: #58a6ff; --c1: #f0a35e; --c2: #b392f0; --c3: #768390; } }
body { margin: 0 auto; max-width: 62rem; padding: 1rem; color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } .wide { overflow-x: auto; }
th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
td.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.b { width: 45%; } td.b i { display: block; height: .8rem; min-width: 1px; background: var(--bar);
  margin-top: .3rem; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.2rem, 1fr)); gap: .6rem;
  margin: 0; }
dl div { border: 1px solid var(--line); border-radius: 6px; padding: .5rem .8rem;
  overflow-wrap: anywhere; }
h1, p { overflow-wrap: anywhere; } .wide td { overflow-wrap: anywhere; min-width: 4.2rem; }
.wide td.n { text-align: left; } .wide td:last-child:not(.n) { min-width: 11rem; }
dt { color: var(--soft); font-size: .85rem; } dd { margin: 0; font-size: 1.15rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--line);
  border-radius: 6px; padding: .8rem; font-size: .85rem; }
svg { width: 100%; min-width: 34rem; height: auto; }
svg text { fill: var(--ink); font: 11px system-ui, sans-serif; }
svg .axis { stroke: var(--line); } circle { fill: var(--c3); } circle.m { fill: var(--c1); }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c3 { fill: var(--c3); }
@media print { svg { min-width: 0; } body { max-width: none; } h2 { break-after: avoid; }
  tr, dl div { break-inside: avoid; } }
)";

std::string number(double value) { return dump_json(Json(value), -1); }

std::string data_of(const Shown& shown) {
  return "<data value=\"" + number(shown.value) + "\">" + escaped(shown.text) + "</data>";
}

std::string at(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f", value);
  return text.data();
}

/// "4.5e+03": as short as an axis allows.
std::string tick(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", value);
  return text.data();
}

struct Extent {
  double low = 0, high = 1;
  double share(double value) const { return high > low ? (value - low) / (high - low) : 0.5; }
};

Extent extent_of(const std::vector<Dot>& points, double Dot::*of) {
  Extent out{points.front().*of, points.front().*of};
  for (const Dot& point : points) {
    out.low = std::min(out.low, point.*of);
    out.high = std::max(out.high, point.*of);
  }
  return out;
}

/// JSON inside a script element must neither end it nor open a comment in it: it has no "<".
std::string in_script(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "\\u003c" : std::string(1, c);
  return out;
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : printable(text)) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

void Page::paragraph(const std::string& text) { x_body += "<p>" + escaped(text) + "</p>\n"; }

void Page::heading(const std::string& text) { x_body += "<h2>" + escaped(text) + "</h2>\n"; }

void Page::figures(const std::vector<Bar>& all) {
  x_body += "<dl>\n";
  for (const Bar& one : all) {
    x_body += "<div><dt>" + escaped(one.name) + "</dt><dd>" + data_of(one.amount) + "</dd></div>\n";
  }
  x_body += "</dl>\n";
}

void Page::bars(const std::vector<Bar>& all) {
  double most = 0;
  for (const Bar& one : all) most = std::max(most, one.amount.value);
  x_body += "<table>\n";
  for (const Bar& one : all) {
    const double share = most > 0 ? std::max(0.0, one.amount.value / most) : 0;
    x_body += "<tr><td>" + escaped(one.name) + "</td><td class=\"n\">" + data_of(one.amount) +
              "</td><td class=\"b\"><i style=\"width:" + at(100 * share) + "%\"></i></td></tr>\n";
  }
  x_body += "</table>\n";
}

void Page::table(const std::vector<std::string>& header,
                 const std::vector<std::vector<Cell>>& rows) {
  x_body += "<div class=\"wide\"><table>\n<tr>";
  for (const std::string& name : header) x_body += "<th>" + escaped(name) + "</th>";
  x_body += "</tr>\n";
  for (const std::vector<Cell>& row : rows) {
    x_body += "<tr>";
    for (const Cell& cell : row) {
      x_body += cell.value ? "<td class=\"n\">" + data_of({*cell.value, cell.text}) + "</td>"
                           : "<td>" + escaped(cell.text) + "</td>";
    }
    x_body += "</tr>\n";
  }
  x_body += "</table></div>\n";
}

void Page::scatter(const std::string& x, const std::string& y, const std::vector<Dot>& points) {
  if (points.empty()) return;
  const Extent across = extent_of(points, &Dot::x);
  const Extent up = extent_of(points, &Dot::y);
  constexpr double kLeft = 60;
  constexpr double kWidth = 700;
  constexpr double kHeight = 300;
  std::string svg = "<div class=\"wide\"><svg viewBox=\"0 0 800 360\" role=\"img\" aria-label=\"" +
                    escaped(y) + " over " + escaped(x) +
                    "\">\n<path class=\"axis\" fill=\"none\" d=\"M60 10V310H760\"/>\n";
  svg += "<text x=\"60\" y=\"325\">" + tick(across.low) +
         "</text><text x=\"760\" y=\"325\" "
         "text-anchor=\"end\">" +
         tick(across.high) +
         "</text><text x=\"410\" y=\"345\" "
         "text-anchor=\"middle\">" +
         escaped(x) + "</text>\n";
  svg += "<text x=\"55\" y=\"310\" text-anchor=\"end\">" + tick(up.low) +
         "</text><text x=\"55\" y=\"18\" text-anchor=\"end\">" + tick(up.high) +
         "</text><text x=\"64\" y=\"18\">" + escaped(y) + "</text>\n";
  for (const Dot& point : points) {
    svg += std::string("<circle") + (point.marked ? " class=\"m\"" : "") + " r=\"4\" cx=\"" +
           at(kLeft + kWidth * across.share(point.x)) + "\" cy=\"" +
           at(10 + kHeight * (1 - up.share(point.y))) + "\"><title>" + escaped(point.note) +
           "</title></circle>\n";
  }
  x_body += svg + "</svg></div>\n";
}

void Page::lanes(const std::vector<std::string>& rows, const std::vector<Box>& boxes, double end) {
  if (rows.empty() || boxes.empty() || end <= 0) return;
  constexpr double kLeft = 90;
  constexpr double kWidth = 900;
  constexpr double kRow = 22;
  const double height = kRow * static_cast<double>(rows.size());
  std::string svg = "<div class=\"wide\"><svg viewBox=\"0 0 1000 " + at(height + 4) +
                    "\" role=\"img\" aria-label=\"passes of every stage over the step\">\n";
  for (std::size_t r = 0; r < rows.size(); ++r) {
    svg += "<text x=\"0\" y=\"" + at(kRow * static_cast<double>(r) + 15) + "\">" +
           escaped(rows[r]) + "</text>\n";
  }
  for (const Box& box : boxes) {
    const double width = kWidth * (box.end - box.begin) / end;
    const double x = kLeft + kWidth * box.begin / end;
    const double y = kRow * static_cast<double>(box.row) + 2;
    svg += "<rect class=\"c" + std::to_string(box.colour) + "\" x=\"" + at(x) + "\" y=\"" + at(y) +
           "\" width=\"" + at(std::max(0.3, width - 0.4)) + "\" height=\"18\"><title>" +
           escaped(box.note) + "</title></rect>\n";
    constexpr double kWideEnough = 16;
    if (width < kWideEnough || box.label.empty()) continue;
    svg += "<text x=\"" + at(x + width / 2) + "\" y=\"" + at(y + 13) +
           "\" text-anchor=\"middle\">" + escaped(box.label) + "</text>\n";
  }
  x_body += svg + "</svg></div>\n";
}

void Page::text(const std::string& preformatted) {
  x_body += "<pre>" + escaped(preformatted) + "</pre>\n";
}

std::string Page::html(const Json& result) const {
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
         escaped(x_title) + "</title>\n<style>" + kStyle + "</style>\n</head>\n<body>\n<h1>" +
         escaped(x_title) + "</h1>\n" + x_body +
         "<script type=\"application/json\" id=\"result\">\n" + in_script(dump_json(result)) +
         "\n</script>\n</body>\n</html>\n";
}

}  // namespace foretrain
