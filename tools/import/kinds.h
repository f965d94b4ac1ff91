// Which framework a file is for, by its content.
#pragma once

#include "tools/import/draft.h"
#include "tools/import/shell.h"

namespace foretrain {

/// Reads one file; `path` tells what its ending is, and stands in messages. A document's settings
/// go to `out`. A script is read by `shell`, which keeps its variables for the next one. `from` is
/// the framework that the user names, or "".
Status read_launch_text(std::string_view text, const std::string& path, const std::string& from,
                        Shell& shell, Launch& out);

/// Whether it is the configuration of DeepSpeed's engine.
bool is_engine_config(const Json& json);

/// The framework of a launch all of whose files were read: as the user says, as a document is
/// known by its keys, or as arguments are known by the program and the tables.
Status settle_framework(const std::string& from, Launch& out);

}  // namespace foretrain
