// What kind of file something is, by its content.
#pragma once

#include <cstdint>
#include <string>

#include "sim/base/result.h"

namespace foretrain {

enum class FileKind : std::uint8_t {
  kRun,         ///< JSON with the keys of a RUN, or none that is known
  kPrediction,  ///< "foretrain/prediction/1"
  kTimeline,    ///< "foretrain/timeline/1"
  kOtherOwn,    ///< another schema of ours
  kEvents,      ///< Chrome trace events: PyTorch's profiler
  kSqlite,      ///< a SQLite database: Nsight Systems
  kUnknown,     ///< no JSON, nor anything of these
};

struct FileContent {
  FileKind kind = FileKind::kUnknown;
  std::string schema;  ///< of files of ours
};

/// By the first bytes of a SQLite database, else by the keys of a JSON object, as far as is needed.
/// Errors are those of the file: it cannot be read, or is damaged.
Result<FileContent> recognise(const std::string& path);

/// Whether a profiler wrote it.
bool is_trace(const std::string& path);

/// An error where a profiler wrote the file: what takes it.
Status refuse_trace(const std::string& path);

}  // namespace foretrain
