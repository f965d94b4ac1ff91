// What this binary is.
#pragma once

namespace foretrain {

extern const char* const kVersion;   ///< "0.1.0"
extern const char* const kRevision;  ///< the commit it was built from, or "unknown"

}  // namespace foretrain
