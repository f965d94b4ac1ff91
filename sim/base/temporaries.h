// Temporary files that a signal removes before it ends the process.
#pragma once

#include <string>

namespace foretrain {

/// Notes that `path` is a temporary file of this process, about to be made. SIGHUP, SIGINT,
/// SIGQUIT, SIGPIPE, SIGALRM, SIGTERM, SIGXCPU and SIGABRT then remove the file and end the process
/// as they would have. A signal that has a handler already, or is ignored, stays as it is.
///
/// Returns the place of the note, for `forget_temporary`; -1 where there are 64 notes, or the path
/// is longer than the system allows: such a file outlives a signal. Nothing removes a file after
/// SIGKILL. Safe to call from any thread.
int note_temporary(const std::string& path);

/// The file was renamed or removed. `place` may be -1.
void forget_temporary(int place);

/// Removes all files that are noted. A signal handler may call it.
void remove_temporaries();

}  // namespace foretrain
