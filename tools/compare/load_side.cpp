// Reads each file that the command line names by the kind of its content.
#include <algorithm>
#include <array>
#include <filesystem>

#include "tools/compare/side.h"
#include "traces/file_kind.h"
#include "traces/kineto.h"
#include "traces/nsight.h"
#include "traces/timeline_json.h"

namespace foretrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAccepted =
    "accepted are a RUN, a result of `simulate --json`, a timeline of `--timeline`, a trace of "
    "PyTorch's profiler (.json, .json.gz) and an export of Nsight Systems (.sqlite)";

Result<std::vector<ActivityTrace>> read_trace(const std::string& path, FileKind kind,
                                              const SideOptions& options) {
  ActivityOptions how;
  how.details = options.shapes;
  if (!options.step_name.empty()) how.step_name = options.step_name;
  how.progress = options.progress;
  if (kind == FileKind::kSqlite) return read_nsight(path, how);
  FT_ASSIGN(ByteStream bytes, ByteStream::open(path));
  return read_kineto(bytes, how);
}

/// One trace a rank, from one file or several.
Result<Side> load_traces(const std::string& what, const std::vector<std::string>& files,
                         FileKind kind, const SideOptions& options) {
  std::vector<ActivityTrace> traces;
  for (const std::string& file : files) {
    FT_ASSIGN(std::vector<ActivityTrace> of_file, read_trace(file, kind, options));
    for (ActivityTrace& trace : of_file) traces.push_back(std::move(trace));
  }
  const SideKind side = kind == FileKind::kSqlite ? SideKind::kNsight : SideKind::kKineto;
  FT_ASSIGN(Side out, side_of(std::move(traces), side, options));
  out.source = what;
  return out;
}

/// A RUN or a result that stands there itself.
Result<Side> load_inline(const std::string& what, const SideOptions& options) {
  FT_ASSIGN(const Json json, parse_json(what, "RUN"));
  const Json* schema = json.find("schema");
  if (schema != nullptr && *schema == Json("foretrain/prediction/1")) {
    return side_of_result(json, "result");
  }
  return side_of_run(what, options);
}

}  // namespace

std::string_view name_of(SideKind kind) {
  constexpr std::array<std::string_view, 5> kNames = {"RUN", "result", "timeline", "PyTorch trace",
                                                      "Nsight Systems export"};
  return kNames.at(static_cast<std::size_t>(kind));
}

Result<std::vector<std::string>> files_of_side(const std::string& what) {
  if (is_inline_run(what)) return std::vector<std::string>();
  std::error_code ignored;
  if (fs::exists(what, ignored) && !fs::is_directory(what, ignored)) {
    return std::vector<std::string>{what};
  }
  std::vector<std::string> out;
  if (!fs::is_directory(what, ignored)) {
    for (std::size_t at = 0; at <= what.size();) {
      const std::size_t comma = std::min(what.find(',', at), what.size());
      if (comma > at) out.push_back(what.substr(at, comma - at));
      at = comma + 1;
    }
    if (out.empty()) return input_error("found no name of a file or RUN, \"" + what + "\"");
    std::vector<std::string> sorted = out;
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) return input_error(what + ": " + *twice + " is named twice");
    return out;
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(what, ignored)) {
    const std::string path = entry.path().string();
    for (const char* ending : {".json", ".json.gz", ".sqlite"}) {
      if (path.ends_with(ending)) out.push_back(path);
    }
  }
  std::sort(out.begin(), out.end());
  if (out.empty()) {
    return input_error(what + ": found no .json, .json.gz or .sqlite in this folder; " + kAccepted);
  }
  return out;
}

Result<Side> load_side(const std::string& what, const SideOptions& options) {
  if (is_inline_run(what)) return load_inline(what, options);
  FT_ASSIGN(const std::vector<std::string> files, files_of_side(what));
  std::error_code ignored;
  if (files.size() == 1 && !fs::is_regular_file(files.front(), ignored)) {
    return side_of_run(what, options);  // a shipped RUN, a pipe, or an error that says so
  }
  std::vector<std::string> traces;
  FileKind kind = FileKind::kUnknown;
  for (const std::string& file : files) {
    FT_ASSIGN(const FileContent content, recognise(file));
    const bool trace = content.kind == FileKind::kEvents || content.kind == FileKind::kSqlite;
    if (trace && (kind == content.kind || traces.empty())) {
      kind = content.kind;
      traces.push_back(file);
      continue;
    }
    if (fs::is_directory(what, ignored) && !trace) continue;  // other files may lie there
    if (files.size() > 1) {
      return input_error(what + ": several files are ranks of one trace, but " + file +
                         (trace ? " is of another kind" : " is no trace"));
    }
    if (content.kind == FileKind::kUnknown) {
      return input_error(file + ": is neither JSON with known keys nor SQLite; " + kAccepted);
    }
    if (content.kind == FileKind::kOtherOwn) {
      return input_error(file + ": found the schema " + content.schema + "; " + kAccepted);
    }
    if (content.kind == FileKind::kTimeline) {
      FT_ASSIGN(Timeline timeline, load_timeline(file));
      return side_of(std::move(timeline), what, options);
    }
    if (content.kind == FileKind::kPrediction) {
      FT_ASSIGN(const Json json, read_json_file(file));
      return side_of_result(json, what);
    }
    return side_of_run(what, options);
  }
  if (traces.empty()) {
    return input_error(what + ": found " + std::to_string(files.size()) +
                       " files in this folder, none of them a trace; " + kAccepted);
  }
  return load_traces(what, traces, kind, options);
}

}  // namespace foretrain
