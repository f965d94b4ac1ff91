#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "traces/timeline_format.h"
#include "traces/timeline_json.h"

namespace foretrain {
namespace {

constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kTimeLimit = std::int64_t{1} << 62;  // differences still fit
constexpr double kDoubleMax = std::numeric_limits<double>::max();
constexpr std::size_t kProvenances = 3;

/// A table: an array of rows of integers, as many as there are columns.
class Rows {
 public:
  Rows(const Json& json, std::string source, std::string where,
       const std::vector<std::string>& columns)
      : x_json(json), x_source(std::move(source)), x_where(std::move(where)), x_columns(columns) {}

  template <typename Each>
  Status each(Each take) const {
    const Json::Array* rows = x_json.array();
    if (rows == nullptr) return problem("", "an array", x_json);
    std::vector<std::int64_t> numbers(x_columns.size());
    for (std::size_t i = 0; i < rows->size(); ++i) {
      const std::string at = "/" + std::to_string(i);
      const Json::Array* row = (*rows)[i].array();
      if (row == nullptr || row->size() != x_columns.size()) {
        return problem(at, "a row of " + std::to_string(x_columns.size()) + " integers",
                       (*rows)[i]);
      }
      for (std::size_t c = 0; c < numbers.size(); ++c) {
        const auto* number = std::get_if<std::int64_t>(&(*row)[c].value);
        if (number == nullptr) {
          return problem(at + "/" + std::to_string(c), "an integer (" + x_columns[c] + ")",
                         (*row)[c]);
        }
        numbers[c] = *number;
      }
      const std::string fault = take(numbers);
      if (!fault.empty()) return input_error(x_source + ": " + x_where + at + ": " + fault);
    }
    return ok_status();
  }

 private:
  Error problem(const std::string& at, const std::string& expected, const Json& found) const {
    return input_error(x_source + ": " + x_where + at + ": found " + describe(found) +
                       ", expected " + expected);
  }

  const Json& x_json;
  std::string x_source;
  std::string x_where;
  const std::vector<std::string>& x_columns;
};

bool in_table(std::int64_t index, std::size_t size) {
  return index >= 0 && static_cast<std::uint64_t>(index) < size;
}
bool is_label(std::int64_t value) { return value >= -1 && value <= kInt32Max; }

/// Fills one Timeline; every member function reads one part and reports its own faults.
class Loader {
 public:
  Loader(const Json& json, const std::string& source)
      : x_json(json), x_source(source), x_root(json, source, "") {}

  Result<Timeline> load();

 private:
  Status names(JsonReader& reader, std::string_view key, std::vector<std::string>& out);
  Status columns(std::string_view key, const std::vector<std::string>& expected);
  template <typename Each>
  Status objects(std::string_view key, Each each);
  Status info(const Json& json, const std::string& where);
  Status track(const Json& json, const std::string& where);
  std::string span(const std::vector<std::int64_t>& row);
  std::string flow(const std::vector<std::int64_t>& row);
  std::string sample(const std::vector<std::int64_t>& row);
  std::string host(const std::vector<std::int64_t>& row);
  template <typename Each>
  Status table(std::string_view key, const std::vector<std::string>& columns, Each each);

  const Json& x_json;
  std::string x_source;
  JsonReader x_root;
  Timeline x_timeline;
};

Status Loader::names(JsonReader& reader, std::string_view key, std::vector<std::string>& out) {
  const Json* json = reader.require(key, "a list of names");
  const Json::Array* items = json != nullptr ? json->array() : nullptr;
  if (items == nullptr) {
    reader.fail(key, "expected a list of names");
    return reader.finish();
  }
  for (const Json& item : *items) {
    if (!item.is_string()) {
      reader.fail(key, "found " + describe(item) + ", expected a name");
      return reader.finish();
    }
    out.push_back(*item.string());
  }
  return ok_status();
}

Status Loader::columns(std::string_view key, const std::vector<std::string>& expected) {
  std::vector<std::string> found;
  FT_TRY(names(x_root, key, found));
  if (found == expected) return ok_status();
  std::string accepted;
  for (const std::string& name : expected) accepted += (accepted.empty() ? "" : ", ") + name;
  return input_error(x_source + ": /" + std::string(key) + ": accepted is exactly " + accepted);
}

template <typename Each>
Status Loader::objects(std::string_view key, Each each) {
  const Json* json = x_root.require(key, "a list of objects");
  if (json == nullptr) return x_root.finish();
  const Json::Array* items = json->array();
  if (items == nullptr) {
    return input_error(x_source + ": /" + std::string(key) + ": found " + describe(*json) +
                       ", expected a list of objects");
  }
  for (std::size_t i = 0; i < items->size(); ++i) {
    FT_TRY(each((*items)[i], "/" + std::string(key) + "/" + std::to_string(i)));
  }
  return ok_status();
}

Status Loader::info(const Json& json, const std::string& where) {
  JsonReader reader(json, x_source, where);
  SpanInfo info;
  read_any_text(reader, "name", info.name);
  reader.read("work", info.work);
  reader.read_enum("category", info.category, all_names<Category>());
  reader.read_enum("phase", info.phase, all_names<Phase>());
  reader.read("bytes", info.bytes, {0, kInt64Max});
  reader.read("flops", info.flops, {0, kDoubleMax});
  FT_TRY(reader.finish());
  x_timeline.infos.push_back(std::move(info));
  return ok_status();
}

Status Loader::track(const Json& json, const std::string& where) {
  JsonReader reader(json, x_source, where);
  Track track;
  reader.read("rank", track.rank.value, {-1, kInt32Max});
  read_any_text(reader, "name", track.name);
  reader.read("ranks_alike", track.ranks_alike, {1, kInt64Max});
  FT_TRY(names(reader, "streams", track.streams));
  FT_TRY(reader.finish());
  x_timeline.tracks.push_back(std::move(track));
  return ok_status();
}

std::string Loader::span(const std::vector<std::int64_t>& row) {
  if (!in_table(row[0], x_timeline.tracks.size())) return "there is no such track";
  if (!in_table(row[1], x_timeline.tracks[static_cast<std::size_t>(row[0])].streams.size())) {
    return "the track has no such stream";
  }
  if (!in_table(row[2], x_timeline.infos.size())) return "there is no such info";
  for (std::size_t i = 3; i < 7; ++i) {
    if (!is_label(row[i])) return kSpanColumns[i] + " must be -1 or an index";
  }
  if (row[7] < -kTimeLimit || row[9] > kTimeLimit) return "times go up to 2^62 ps";
  if (row[7] > row[8] || row[8] > row[9]) return "begin_ps <= start_ps <= end_ps does not hold";
  if (!in_table(row[10], kProvenances)) return "provenance must be 0, 1 or 2";
  Span span;
  span.track = static_cast<std::int32_t>(row[0]);
  span.stream = StreamId(static_cast<std::int32_t>(row[1]));
  span.info = static_cast<std::int32_t>(row[2]);
  span.call = static_cast<std::int32_t>(row[3]);
  span.op = static_cast<std::int32_t>(row[4]);
  span.layer = static_cast<std::int32_t>(row[5]);
  span.microbatch = static_cast<std::int32_t>(row[6]);
  span.begin = Time{row[7]};
  span.start = Time{row[8]};
  span.end = Time{row[9]};
  span.provenance = static_cast<Provenance>(row[10]);
  if (!x_timeline.spans.empty()) {
    const Span& last = x_timeline.spans.back();
    const bool same_stream = last.track == span.track && last.stream == span.stream;
    if (same_stream && span.begin < last.end) return "overlaps the span before it on its stream";
    if (last.track > span.track || (last.track == span.track && last.stream > span.stream)) {
      return "spans are not sorted by track, stream and begin";
    }
  }
  x_timeline.spans.push_back(span);
  return "";
}

std::string Loader::flow(const std::vector<std::int64_t>& row) {
  for (const std::int64_t index : row) {
    if (!in_table(index, x_timeline.spans.size())) return "there is no such span";
  }
  x_timeline.flows.push_back(
      {static_cast<std::int32_t>(row[0]), static_cast<std::int32_t>(row[1])});
  return "";
}

std::string Loader::sample(const std::vector<std::int64_t>& row) {
  if (!in_table(row[0], x_timeline.tracks.size())) return "there is no such track";
  if (!in_table(row[2], static_cast<std::size_t>(BufferKind::kCount))) return "no such kind";
  const bool sorted = x_timeline.memory.empty() || x_timeline.memory.back().track <= row[0];
  if (!sorted) return "samples of memory are not sorted by track";
  x_timeline.memory.push_back(
      {static_cast<std::int32_t>(row[0]), static_cast<BufferKind>(row[2]), Time{row[1]}, row[3]});
  return "";
}

std::string Loader::host(const std::vector<std::int64_t>& row) {
  if (!in_table(row[0], x_timeline.tracks.size())) return "there is no such track";
  if (!in_table(row[1], x_timeline.infos.size())) return "there is no such info";
  for (std::size_t i = 2; i < 4; ++i) {
    if (!is_label(row[i])) return kHostColumns[i] + " must be -1 or an index";
  }
  if (row[4] < -kTimeLimit || row[5] > kTimeLimit) return "times go up to 2^62 ps";
  if (row[4] > row[5]) return "begin_ps <= end_ps does not hold";
  const IssueSpan span{static_cast<std::int32_t>(row[0]),
                       static_cast<std::int32_t>(row[1]),
                       static_cast<std::int32_t>(row[2]),
                       static_cast<std::int32_t>(row[3]),
                       Time{row[4]},
                       Time{row[5]}};
  if (!x_timeline.host.empty()) {
    const IssueSpan& last = x_timeline.host.back();
    if (last.track > span.track || (last.track == span.track && last.end > span.begin)) {
      return "spans of hosts are not sorted by track and begin, or overlap";
    }
  }
  x_timeline.host.push_back(span);
  return "";
}

template <typename Each>
Status Loader::table(std::string_view key, const std::vector<std::string>& columns_of_key,
                     Each each) {
  FT_TRY(columns(std::string(key) + "_columns", columns_of_key));
  const Json* json = x_root.require(key, "a list of rows");
  if (json == nullptr) return x_root.finish();
  return Rows(*json, x_source, "/" + std::string(key), columns_of_key).each(each);
}

Result<Timeline> Loader::load() {
  std::string schema;
  x_root.read("schema", schema);
  if (!x_root.failed() && schema != kTimelineSchema) {
    return input_error(x_source + ": /schema: found \"" + schema + "\", accepted is \"" +
                       std::string(kTimelineSchema) + "\"");
  }
  read_any_text(x_root, "name", x_timeline.name);
  x_root.read("end_ps", x_timeline.end.ps, {std::numeric_limits<std::int64_t>::min(), kInt64Max});
  FT_TRY(objects("infos", [&](const Json& j, const std::string& at) { return info(j, at); }));
  FT_TRY(objects("tracks", [&](const Json& j, const std::string& at) { return track(j, at); }));
  using Row = std::vector<std::int64_t>;
  std::vector<std::string> kinds;
  FT_TRY(names(x_root, "memory_kinds", kinds));
  if (kinds != all_names<BufferKind>()) {
    return input_error(x_source + ": /memory_kinds: these are not the kinds of this version");
  }
  FT_TRY(table("spans", kSpanColumns, [&](const Row& row) { return span(row); }));
  FT_TRY(table("flows", kFlowColumns, [&](const Row& row) { return flow(row); }));
  FT_TRY(table("memory", kMemoryColumns, [&](const Row& row) { return sample(row); }));
  if (x_json.find("host") != nullptr) {  // files of earlier versions have none
    FT_TRY(table("host", kHostColumns, [&](const Row& row) { return host(row); }));
  }
  FT_TRY(x_root.finish());
  return std::move(x_timeline);
}

}  // namespace

Result<Timeline> read_timeline(const Json& json, const std::string& source) {
  if (json.object() == nullptr) {
    return input_error(source + ": found " + describe(json) + ", expected a timeline");
  }
  return Loader(json, source).load();
}

Result<Timeline> load_timeline(const std::string& path) {
  FT_ASSIGN(const std::string text, read_compressed_file(path));
  FT_ASSIGN(const Json json, parse_json(text, path));
  return read_timeline(json, path);
}

}  // namespace foretrain
