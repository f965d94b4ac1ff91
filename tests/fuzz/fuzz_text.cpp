// Any bytes are read by one reader of texts or files, FORETRAIN_FUZZED, or refused with a message.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "sim/base/file.h"
#include "sim/campaign/reliability.h"
#include "sim/campaign/trace_table.h"
#include "sim/program/program.h"
#include "sim/program/read_work.h"
#include "tests/fuzz/bytes_file.h"
#include "tools/import/documents.h"
#include "tools/import/shell.h"
#include "tools/score/score.h"
#include "traces/byte_stream.h"
#include "traces/file_kind.h"
#include "traces/nsight.h"

namespace foretrain {
namespace {

template <typename T>
void check(const Result<T>& read) {
  FT_CHECK(read.ok() || !read.error().message.empty(), "an error without a message");
}

/// The whole file and its pieces are the same bytes, or both are refused.
[[maybe_unused]] void gzip(std::string_view text) {
  const std::string path = memory_file(text);
  const Result<std::string> whole = read_compressed_file(path);
  check(whole);
  check(recognise(path));
  Result<ByteStream> stream = ByteStream::open(path);
  check(stream);
  if (!stream.ok()) return;
  std::string pieces;
  for (;;) {
    const Result<std::string_view> piece = stream.value().next();
    check(piece);
    FT_CHECK(piece.ok() || !whole.ok(), "a file that is whole and damaged");
    if (!piece.ok()) return;
    if (piece.value().empty()) break;
    pieces += piece.value();
  }
  FT_CHECK(whole.ok() && whole.value() == pieces, "the pieces of a file are another file");
}

/// A table of failures, and the failures that it tells of.
[[maybe_unused]] void table(std::string_view text) {
  check(trace_of_table(text, "fuzz"));
  JobUnits job;
  job.nodes = 64;
  const Json failures(Json::Object{{"trace", Json(memory_file(text))}});
  check(read_reliability(failures, "fuzz", "", job));
}

[[maybe_unused]] void rows(std::string_view text) { check(read_rows({memory_file(text)})); }

/// SQLite opens what a link leads to, and nothing is left there of a file without a name.
[[maybe_unused]] void nsight(std::string_view text) {
  static const std::string path = memory_folder() + "/trace.sqlite";
  static const int file = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  put_bytes(file, text);
  ActivityOptions how;
  how.details = true;
  check(read_nsight(path, how));
}

[[maybe_unused]] void yaml(std::string_view text) { check(parse_yaml(text, "fuzz")); }
[[maybe_unused]] void toml(std::string_view text) { check(parse_toml(text, "fuzz")); }

/// The second of two scripts sees the variables of the first.
[[maybe_unused]] void shell(std::string_view text) {
  Shell shell;
  for (int i = 0; i < 2; ++i) {
    const Status read = shell.read(text, "fuzz");
    check(read);
    if (!read.ok()) return;
  }
}

[[maybe_unused]] void work(std::string_view text) {
  const Result<Work> read = read_work(std::string(text));
  check(read);
  if (!read.ok()) return;
  const std::string written = text_of(read.value());
  const Result<Work> again = read_work(written);
  FT_CHECK(again.ok() && text_of(again.value()) == written, "a work that changes when written");
}

}  // namespace
}  // namespace foretrain

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  foretrain::FORETRAIN_FUZZED({reinterpret_cast<const char*>(data), size});
  return 0;
}
