// The command line: parses arguments, runs a verb, tells what went wrong.
#pragma once

namespace foretrain {

/// What `foretrain` does with these arguments; `argv[0]` is its name. Returns the exit code. Throws
/// std::bad_alloc where memory runs out, and std::system_error where threads do.
int run_command_line(int argc, char** argv);

/// The same with exceptions as messages: what `main` is.
int run_guarded(int argc, char** argv);

}  // namespace foretrain
