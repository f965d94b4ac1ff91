// FT_CHECK: a broken promise of ours. Stays on in every build; aborts with the place and the
// reason.
#pragma once

namespace foretrain {

/// Prints "file:line: internal error: text" with a request to report it, then aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* text);

}  // namespace foretrain

#define FT_CHECK(condition, text)                                          \
  do {                                                                     \
    if (!(condition)) ::foretrain::check_failed(__FILE__, __LINE__, text); \
  } while (false)
