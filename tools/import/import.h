// `import`: launch files of training frameworks as a RUN.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/import/draft.h"

namespace foretrain {

struct ImportOptions {
  std::string from;               ///< a table of configs/import; "": recognised
  std::string cluster;            ///< a preset or a path; "": the RUN has a marked place for it
  std::int64_t accelerators = 0;  ///< 0: as the files say
  std::vector<std::string> sets;  ///< KEY=VALUE, applied last
};

struct LaunchFile {
  std::string path, text;
};

/// Translates launch files. Flags, keys and values that have no counterpart are in the lists of the
/// draft; files that cannot be read are errors.
Result<Draft> import_launch(const std::vector<LaunchFile>& files, const ImportOptions& options);

/// What `import --json` writes, and the three lists as text.
Json import_json(const Draft& draft);
std::string import_text(const Draft& draft);

}  // namespace foretrain
