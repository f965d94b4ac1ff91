#include "sim/campaign/trace_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <deque>

namespace foretrain {
namespace {

const std::vector<std::string>& column_names() {
  static const std::vector<std::string> names = {"at_s", "component", "nodes", "repair_s", "live"};
  return names;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

/// Cells may stand in quotes, which no cell of a trace has a comma for.
std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> out;
  while (true) {
    const std::size_t comma = line.find(',');
    std::string_view cell = trimmed(line.substr(0, comma));
    if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"') {
      cell = trimmed(cell.substr(1, cell.size() - 2));
    }
    out.emplace_back(cell);
    if (comma == std::string_view::npos) return out;
    line.remove_prefix(comma + 1);
  }
}

struct Line {
  std::int64_t number = 0;
  std::vector<std::string> cells;
};

std::vector<Line> lines_of(std::string_view text) {
  std::vector<Line> out;
  constexpr std::string_view kMark = "\xef\xbb\xbf";  // with which some programs begin a file
  if (text.starts_with(kMark)) text.remove_prefix(kMark.size());
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    const std::string_view line = trimmed(text.substr(0, end));
    if (!line.empty() && line.front() != '#') out.push_back({number, cells_of(line)});
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return out;
}

/// A number where the cell is one, else the text.
Json value_of(const std::string& cell) {
  std::int64_t whole = 0;
  const char* const end = cell.data() + cell.size();
  const auto read_whole = std::from_chars(cell.data(), end, whole);
  if (read_whole.ptr == end && read_whole.ec == std::errc()) return Json(whole);
  double number = 0;
  const auto read = std::from_chars(cell.data(), end, number);
  if (read.ptr == end && read.ec == std::errc() && std::isfinite(number)) return Json(number);
  return Json(cell);
}

Status check_columns(const Line& header, const std::string& source) {
  const std::string where = line_of_table(source, header.number) + ": ";
  const std::string accepted = "expected at_s, component, nodes and repair_s, or at_s and live";
  for (std::size_t i = 0; i < header.cells.size(); ++i) {
    const std::string& name = header.cells[i];
    const std::string column = where + "column " + std::to_string(i + 1) + ": found ";
    if (std::count(column_names().begin(), column_names().end(), name) == 0) {
      const std::string near = nearest_name(name, column_names());
      return input_error(column + describe(Json(name)) + ", " + accepted +
                         (near.empty() ? "" : "; did you mean \"" + near + "\"?"));
    }
    const auto before = header.cells.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(header.cells.begin(), before, name) != before) {
      return input_error(column + describe(Json(name)) + " a second time");
    }
  }
  const auto has = [&header](const char* name) {
    return std::find(header.cells.begin(), header.cells.end(), name) != header.cells.end();
  };
  if (has("at_s") && has("live") && header.cells.size() == 2) return ok_status();
  if (has("at_s") && has("component") && !has("live")) return ok_status();
  return input_error(where + "found columns without what a trace needs, " + accepted);
}

/// Each node that a cloud takes is a failure.
constexpr std::int64_t kMostNodes = 1 << 20;

/// A moment, and how many nodes live from then on.
struct Living {
  double at_s = 0;
  std::int64_t nodes = 0;
};

Result<Living> living_of(const Line& line, const Json& row, const std::string& source,
                         double before_s) {
  Living out;
  JsonReader reader(row, line_of_table(source, line.number), "");
  reader.require("at_s", "seconds from the campaign's begin");
  reader.read("at_s", out.at_s, JsonReader::Range{0, 1e9});
  reader.require("live", "nodes that live from then on");
  reader.read("live", out.nodes, JsonReader::IntRange{0, kMostNodes});
  if (!reader.failed() && out.at_s < before_s) {
    reader.fail("at_s", "found " + describe(Json(out.at_s)) + ", which is before the " +
                            describe(Json(before_s)) +
                            " of the line before it; expected lines in order");
  }
  FT_TRY(reader.finish());
  return out;
}

/// A failure for each node that `live` falls by.
Result<std::vector<TableRow>> preemptions(const std::vector<TableRow>& rows,
                                          const std::vector<Line>& lines,
                                          const std::string& source) {
  std::vector<TableRow> out;
  std::deque<std::size_t> away;  // rows of `out`
  Living last;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    FT_ASSIGN(const Living now, living_of(lines[i + 1], rows[i].failure, source, last.at_s));
    for (std::int64_t n = i == 0 ? now.nodes : last.nodes; n > now.nodes; --n) {
      Json failure{Json::Object{}};
      failure.set("at_s", now.at_s);
      failure.set("component", "preemption");
      away.push_back(out.size());
      out.push_back({rows[i].line, std::move(failure)});
    }
    for (std::int64_t n = i == 0 ? now.nodes : last.nodes; n < now.nodes && !away.empty(); ++n) {
      Json& failure = out[away.front()].failure;
      failure.set("repair_s", now.at_s - failure.find("at_s")->number());
      away.pop_front();
    }
    last = now;
  }
  for (const std::size_t never : away) out[never].failure.set("repair_s", 1e9);
  return out;
}

}  // namespace

std::string line_of_table(const std::string& source, std::int64_t line) {
  return source + ", line " + std::to_string(line);
}

bool is_table(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return false;
  // JSON may begin with a remark of two strokes.
  return std::string_view("[{/").find(text[first]) == std::string_view::npos;
}

Result<std::vector<TableRow>> trace_of_table(std::string_view text, const std::string& source) {
  const std::vector<Line> lines = lines_of(text);
  if (lines.empty()) return input_error(source + ": found no line of a table");
  const Line& header = lines.front();
  FT_TRY(check_columns(header, source));
  std::vector<TableRow> out;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const Line& line = lines[i];
    if (line.cells.size() != header.cells.size()) {
      return input_error(line_of_table(source, line.number) + ": found " +
                         std::to_string(line.cells.size()) + " cells, expected " +
                         std::to_string(header.cells.size()) + " as in line " +
                         std::to_string(header.number));
    }
    Json row{Json::Object{}};
    for (std::size_t c = 0; c < line.cells.size(); ++c) {
      if (!line.cells[c].empty()) row.set(header.cells[c], value_of(line.cells[c]));
    }
    out.push_back({line.number, std::move(row)});
  }
  const bool live = std::count(header.cells.begin(), header.cells.end(), "live") > 0;
  return live ? preemptions(out, lines, source) : Result<std::vector<TableRow>>(std::move(out));
}

}  // namespace foretrain
