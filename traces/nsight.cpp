#include "traces/nsight.h"

#include <sqlite3.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "traces/activity_builder.h"

namespace foretrain {
namespace {

constexpr std::int64_t kLatestNs = std::int64_t{1} << 61;

struct Closer {
  void operator()(sqlite3* base) const { sqlite3_close(base); }
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Base = std::unique_ptr<sqlite3, Closer>;
using Statement = std::unique_ptr<sqlite3_stmt, Closer>;

class NsightReader {
 public:
  NsightReader(std::string path, const ActivityOptions& options)
      : x_path(std::move(path)), x_options(options) {}

  Result<std::vector<ActivityTrace>> read();

 private:
  Status open();
  Result<std::set<std::string>> columns(const std::string& table);
  template <typename Each>
  Status rows(const std::string& query, Each each);
  Status texts();
  Status devices();
  template <typename Name>
  Status gpu_rows(const std::string& table, const std::set<std::string>& there,
                  const std::string& named, Name name);
  Status kernels();
  Status moves(const char* table, bool copy);
  Status launches();
  Status ranges();
  ActivityBuilder& of_process(std::int64_t global);
  Status take(ActivityBuilder& builder, const RawEvent& raw);
  Error fault(const std::string& what) const { return input_error(x_path + ": " + what); }

  std::string x_path;
  const ActivityOptions& x_options;
  std::map<std::int64_t, ActivityBuilder> x_builders;  ///< by process
  std::map<std::uint32_t, std::string> x_devices;
  bool x_processes = false;  ///< kernels say of which process they are
  Base x_base;
  std::map<std::int64_t, std::string> x_texts;
  std::int64_t x_negative = 0;
};

std::int64_t integer(sqlite3_stmt* row, int column) { return sqlite3_column_int64(row, column); }

std::string words(sqlite3_stmt* row, int column) {
  const unsigned char* text = sqlite3_column_text(row, column);
  return text == nullptr ? std::string() : reinterpret_cast<const char*>(text);
}

Status NsightReader::open() {
  sqlite3* base = nullptr;
  const int code = sqlite3_open_v2(x_path.c_str(), &base, SQLITE_OPEN_READONLY, nullptr);
  x_base.reset(base);
  if (code != SQLITE_OK) return fault(std::string("cannot be read: ") + sqlite3_errstr(code));
  // What the file says of itself is not trusted: no functions or triggers of its own run.
  sqlite3_db_config(base, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(base, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  return ok_status();
}

/// `each(row)` for every row; it returns a Status.
template <typename Each>
Status NsightReader::rows(const std::string& query, Each each) {
  sqlite3_stmt* prepared = nullptr;
  int code = sqlite3_prepare_v2(x_base.get(), query.c_str(), -1, &prepared, nullptr);
  const Statement statement(prepared);
  if (code != SQLITE_OK)
    return fault(std::string("cannot be read: ") + sqlite3_errmsg(x_base.get()));
  while ((code = sqlite3_step(prepared)) == SQLITE_ROW) FT_TRY(each(prepared));
  if (code == SQLITE_DONE) return ok_status();
  return fault(std::string("cannot be read: ") + sqlite3_errmsg(x_base.get()));
}

/// None: there is no such table.
Result<std::set<std::string>> NsightReader::columns(const std::string& table) {
  std::set<std::string> out;
  FT_TRY(rows("SELECT name FROM pragma_table_info('" + table + "')", [&out](sqlite3_stmt* row) {
    out.insert(words(row, 0));
    return ok_status();
  }));
  return out;
}

Status NsightReader::texts() {
  FT_ASSIGN(const std::set<std::string> there, columns("StringIds"));
  if (there.empty()) return ok_status();
  return rows("SELECT id, value FROM StringIds", [this](sqlite3_stmt* row) {
    x_texts[integer(row, 0)] = words(row, 1);
    return ok_status();
  });
}

Status NsightReader::devices() {
  FT_ASSIGN(const std::set<std::string> there, columns("TARGET_INFO_GPU"));
  if (there.count("name") == 0) return ok_status();
  const std::string id = there.count("cuDevice") > 0 ? "cuDevice" : "id";
  if (there.count(id) == 0) return ok_status();
  return rows("SELECT " + id + ", name FROM TARGET_INFO_GPU", [this](sqlite3_stmt* row) {
    x_devices[static_cast<std::uint32_t>(integer(row, 0))] = words(row, 1);
    return ok_status();
  });
}

/// Identities of processes and threads hold the number of the process in their bits 24 to 47.
ActivityBuilder& NsightReader::of_process(std::int64_t global) {
  const std::int64_t process = x_processes ? (global >> 24) & 0xffffff : 0;
  return x_builders.try_emplace(process, x_path).first->second;
}

Status NsightReader::take(ActivityBuilder& builder, const RawEvent& raw) {
  if (raw.event.end < raw.event.begin) {
    ++x_negative;
    return ok_status();
  }
  if (raw.event.begin < -kLatestNs || raw.event.end > kLatestNs) {
    return fault("a kernel or copy has times beyond 2^61 ns");
  }
  builder.events.push_back(raw);
  return ok_status();
}

/// What ran on GPUs, of a table that has these columns; `name` says the name by the column `named`.
template <typename Name>
Status NsightReader::gpu_rows(const std::string& table, const std::set<std::string>& there,
                              const std::string& named, Name name) {
  const auto or_zero = [&there](const char* column) {
    return there.count(column) > 0 ? std::string(column) : std::string("0");
  };
  return rows("SELECT start, end, deviceId, streamId, " + named + ", " + or_zero("correlationId") +
                  ", " + or_zero("globalPid") + " FROM " + table,
              [this, &name](sqlite3_stmt* row) {
                ActivityBuilder& builder = of_process(integer(row, 6));
                RawEvent raw;
                raw.event.begin = integer(row, 0);
                raw.event.end = integer(row, 1);
                raw.device = static_cast<std::uint32_t>(integer(row, 2));
                raw.event.stream = builder.stream(raw.device, words(row, 3));
                raw.event.name = builder.name(name(integer(row, 4)));
                raw.correlation = static_cast<std::uint64_t>(integer(row, 5));
                return take(builder, raw);
              });
}

Status NsightReader::kernels() {
  const std::string table = "CUPTI_ACTIVITY_KIND_KERNEL";
  FT_ASSIGN(const std::set<std::string> there, columns(table));
  if (there.empty()) {
    return fault(
        "has no table " + table +
        ": is it an export of Nsight Systems with GPU work (nsys profile --trace=cuda,nvtx; "
        "nsys export --type sqlite)?");
  }
  for (const char* needed : {"start", "end", "deviceId", "streamId"}) {
    if (there.count(needed) == 0) return fault("table " + table + " has no column " + needed);
  }
  // The demangled name is the one with template arguments, which tell more.
  const std::string name = there.count("demangledName") > 0 ? "demangledName"
                           : there.count("shortName") > 0   ? "shortName"
                                                            : "0";
  x_processes = there.count("globalPid") > 0;
  return gpu_rows(table, there, name, [this](std::int64_t id) {
    const auto text = x_texts.find(id);
    return text == x_texts.end() ? std::string() : text->second;
  });
}

/// Kinds of copies: CUpti_ActivityMemcpyKind of CUPTI's cupti_activity.h.
const char* copy_called(std::int64_t kind) {
  constexpr std::int64_t kHtoD = 1, kDtoH = 2, kHtoA = 3, kAtoH = 4, kPtoP = 10;
  if (kind == kHtoD || kind == kHtoA) return "Memcpy HtoD";
  if (kind == kDtoH || kind == kAtoH) return "Memcpy DtoH";
  return kind == kPtoP ? "Memcpy PtoP" : "Memcpy DtoD";
}

Status NsightReader::moves(const char* table, bool copy) {
  FT_ASSIGN(const std::set<std::string> there, columns(table));
  for (const char* needed : {"start", "end", "deviceId", "streamId"}) {
    if (there.count(needed) == 0) return ok_status();
  }
  const std::string kind = copy && there.count("copyKind") > 0 ? "copyKind" : "0";
  return gpu_rows(table, there, kind, [copy](std::int64_t id) {
    return std::string(copy ? copy_called(id) : "Memset");
  });
}

Status NsightReader::launches() {
  FT_ASSIGN(const std::set<std::string> there, columns("CUPTI_ACTIVITY_KIND_RUNTIME"));
  for (const char* needed : {"start", "correlationId", "globalTid"}) {
    if (there.count(needed) == 0) return ok_status();
  }
  return rows("SELECT start, correlationId, globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME",
              [this](sqlite3_stmt* row) {
                ActivityBuilder& builder = of_process(integer(row, 2));
                builder.launches.push_back({static_cast<std::uint64_t>(integer(row, 1)),
                                            integer(row, 0), builder.thread("", words(row, 2))});
                return ok_status();
              });
}

/// NVTX ranges of threads: event types 59 (push and pop) and 60 (start and end).
Status NsightReader::ranges() {
  FT_ASSIGN(const std::set<std::string> there, columns("NVTX_EVENTS"));
  for (const char* needed : {"start", "end", "text", "globalTid"}) {
    if (there.count(needed) == 0) return ok_status();
  }
  const std::string by_id = there.count("textId") > 0 ? "textId" : "NULL";
  return rows("SELECT start, end, text, " + by_id +
                  ", globalTid FROM NVTX_EVENTS WHERE end IS NOT NULL AND end > start",
              [this](sqlite3_stmt* row) {
                std::string text = words(row, 2);
                const auto known = x_texts.find(integer(row, 3));
                if (text.empty() && known != x_texts.end()) text = known->second;
                HostSpan span;
                span.begin = integer(row, 0);
                span.end = integer(row, 1);
                if (span.begin < -kLatestNs || span.end > kLatestNs) return ok_status();
                ActivityBuilder& builder = of_process(integer(row, 4));
                span.thread = builder.thread("", words(row, 4));
                if (text.starts_with(x_options.step_name)) {
                  builder.facts.steps.push_back({span.begin, span.end, text});
                  return ok_status();
                }
                if (text.starts_with("nccl")) {
                  span.role = HostRole::kCollective;
                  span.collective = classify_collective(text);
                } else {
                  span.phase = phase_of_annotation(text);
                  if (span.phase == HostPhase::kUnknown) return ok_status();
                }
                builder.spans.push_back(span);
                return ok_status();
              });
}

Result<std::vector<ActivityTrace>> NsightReader::read() {
  FT_TRY(open());
  FT_TRY(texts());
  FT_TRY(kernels());
  FT_TRY(moves("CUPTI_ACTIVITY_KIND_MEMCPY", true));
  FT_TRY(moves("CUPTI_ACTIVITY_KIND_MEMSET", false));
  FT_TRY(devices());
  FT_TRY(launches());
  FT_TRY(ranges());
  std::vector<ActivityTrace> out;
  for (auto& entry : x_builders) {
    ActivityBuilder& builder = entry.second;
    for (const auto& device : x_devices) builder.facts.devices.insert(device);
    for (ActivityTrace& trace : builder.take()) out.push_back(std::move(trace));
  }
  if (out.empty()) return fault("holds no kernel or copy of a GPU");
  if (x_negative > 0) {
    out.front().notes.push_back(std::to_string(x_negative) +
                                " events of negative duration were left out");
  }
  return out;
}

}  // namespace

Result<std::vector<ActivityTrace>> read_nsight(const std::string& path,
                                               const ActivityOptions& options) {
  return NsightReader(path, options).read();
}

}  // namespace foretrain
