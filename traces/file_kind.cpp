#include "traces/file_kind.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>

#include "traces/json_stream.h"

namespace foretrain {
namespace {

constexpr std::string_view kSqliteMagic = "SQLite format 3";

/// Keys that stand at the top of a trace of events, and of nothing of ours.
constexpr std::string_view kEventKeys[] = {
    "traceEvents",     "schemaVersion",  "deviceProperties", "distributedInfo",
    "displayTimeUnit", "record_shapes",  "with_stack",       "baseTimeNanoseconds",
    "traceName",       "profile_memory", "with_flops",       "with_modules",
    "trace_id",        "otherData"};

FileContent of_schema(const std::string& schema) {
  if (schema.starts_with("foretrain/prediction/")) return {FileKind::kPrediction, schema};
  if (schema.starts_with("foretrain/timeline/")) return {FileKind::kTimeline, schema};
  if (schema.starts_with("foretrain/")) return {FileKind::kOtherOwn, schema};
  return {FileKind::kRun, schema};
}

/// A list is one of events where its first element has a phase.
FileContent of_list(JsonStream& json) {
  if (json.next() != JsonToken::kObject) return {};
  for (;;) {
    if (json.next() != JsonToken::kKey) return {};
    if (json.text() == "ph") return {FileKind::kEvents, ""};
    if (!json.skip(json.next())) return {};
  }
}

}  // namespace

Result<FileContent> recognise(const std::string& path) {
  FT_ASSIGN(ByteStream first, ByteStream::open(path));
  FT_ASSIGN(const std::string_view begin, first.next());
  if (begin.starts_with(kSqliteMagic)) return FileContent{FileKind::kSqlite, ""};
  const std::size_t text = begin.find_first_not_of(" \t\r\n");
  // What a person wrote may have comments, which the stream does not read.
  if (text == std::string_view::npos || begin.substr(text).starts_with("/")) {
    return FileContent{text == std::string_view::npos ? FileKind::kUnknown : FileKind::kRun, ""};
  }
  FT_ASSIGN(ByteStream bytes, ByteStream::open(path));
  JsonStream json(bytes);
  const JsonToken token = json.next();
  if (token == JsonToken::kArray) return of_list(json);
  if (token != JsonToken::kObject) return FileContent{};
  for (;;) {
    const JsonToken key = json.next();
    if (key == JsonToken::kObjectEnd) return FileContent{FileKind::kRun, ""};
    // A RUN that is no strict JSON is read, or refused, by the reader of RUNs.
    if (key != JsonToken::kKey) return FileContent{FileKind::kRun, ""};
    const std::string name = json.text();
    if (std::find(std::begin(kEventKeys), std::end(kEventKeys), name) != std::end(kEventKeys)) {
      return FileContent{FileKind::kEvents, ""};
    }
    const JsonToken value = json.next();
    const bool schema = name == "schema" || name == "$schema";
    if (schema && value == JsonToken::kString) {
      const FileContent found = of_schema(json.text());
      if (found.kind != FileKind::kRun) return found;
    } else if (name == "model" || name == "cluster") {
      return FileContent{FileKind::kRun, ""};
    }
    if (!json.skip(value)) return FileContent{FileKind::kRun, ""};
  }
}

bool is_trace(const std::string& path) {
  std::error_code ignored;
  // A look at a pipe would take bytes from its reader.
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  const Result<FileContent> found = recognise(path);
  if (!found.ok()) return false;
  return found.value().kind == FileKind::kEvents || found.value().kind == FileKind::kSqlite;
}

Status refuse_trace(const std::string& path) {
  if (!is_trace(path)) return ok_status();
  return input_error(path + ": a trace that a profiler wrote; `foretrain compare " + path +
                     "` takes it apart, `foretrain compare RUN " + path +
                     "` puts a prediction beside it");
}

}  // namespace foretrain
