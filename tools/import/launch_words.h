// Settings of a command line: of the script's command that starts a training, or of a list of
// arguments.
#pragma once

#include "tools/import/draft.h"
#include "tools/import/shell.h"

namespace foretrain {

/// Adds what the scripts that were read would start. Of their commands that with the most settings
/// counts; where none has three, the arguments in variables, or lines of arguments alone, do.
Status add_launch(const Shell& shell, const std::string& source, Launch& out);

/// A flag as tables write it: --micro-batch-size is micro_batch_size.
std::string key_of_flag(std::string_view flag);

}  // namespace foretrain
